# SPDX-License-Identifier: Apache-2.0
"""``deepum bench core``: every figure of the contract, on a trace small enough for a test."""

import json

import pytest

from deepum.commands import bench

FIGURES = [
    "exec_update_ns",
    "exec_predict_ns",
    "block_record_ns",
    "block_lookup_ns",
    "sim_noop_accesses_per_s",
    "sim_chained_accesses_per_s",
    "python_policy_events_per_s",
]


@pytest.mark.slow
def test_json(run, trace_file):
    result = run("bench", "core", "--trace", trace_file, "--repeats", "1", "--json", "-")
    figures = json.loads(result.stdout)
    assert list(figures) == FIGURES
    for name, value in figures.items():
        assert value > 0
        # Far below and above what any machine reaches.
        assert 0.1 < value < 1e5 if name.endswith("_ns") else 100 < value < 1e12


@pytest.mark.slow
def test_table_and_file(run, trace_file, tmp_path):
    arguments = ("--trace", trace_file, "--repeats", "1", "--json", "core.json")
    result = run("bench", "core", *arguments)
    for name in FIGURES:
        assert name in result.stdout
    assert list(json.loads((tmp_path / "core.json").read_text("utf-8"))) == FIGURES


def test_median(monkeypatch):
    values = iter([5.0, 1.0, 3.0])
    monkeypatch.setattr("deepum._core.benchmark.exec_table_ns", lambda: (next(values), 2.0))
    monkeypatch.setattr("deepum._core.benchmark.block_table_ns", lambda: (1.0, 1.0))
    monkeypatch.setattr(bench, "accesses_per_s", lambda trace, policy: 1.0)
    monkeypatch.setattr(bench, "python_events_per_s", lambda trace: 1.0)
    assert bench.measure(None, repeats=3)["exec_update_ns"] == 3.0


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--nope"]])
def test_wrong_use(run, arguments):
    run("bench", "core", *arguments, status=2)


def test_unknown_trace(run):
    assert "no-such-trace" in run("bench", "core", "--trace", "no-such-trace", status=2).stderr


def test_bench_alone_shows_help(run):
    assert "core" in run("bench", "--help").stdout

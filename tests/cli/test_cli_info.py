# SPDX-License-Identifier: Apache-2.0
"""``deepum info`` and ``deepum policies``."""

import json

import pytest

from deepum.commands import info
from deepum.trace import Trace


@pytest.fixture
def shipped(monkeypatch, trace_file):
    """Make the small trace the only shipped one."""
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: {"tiny-b4": trace_file}))


def test_list(run, shipped):
    lines = run("info").stdout.splitlines()
    row = next(line for line in lines if "tiny" in line)
    assert row.split()[:6] == ["tiny", "layers", "4", "16", "201", "MB"]


def test_list_as_json(run, shipped):
    (row,) = json.loads(run("info", "--json").stdout)
    assert row["name"] == "tiny"
    assert row["kernels_per_step"] == 16
    assert row["file_bytes"] > 0


def test_nothing_shipped(run, monkeypatch):
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: {}))
    assert "`deepum record` makes them" in run("info", status=2).stderr


@pytest.mark.parametrize("by", ["name", "path"])
def test_details(run, shipped, trace_file, by):
    text = run("info", "tiny-b4" if by == "name" else trace_file).stdout
    for piece in (
        "layers, batch 4",
        "measured",
        "v100-pcie3-32g, 33.6 GB",
        "repeats from iteration",
        "16 a step; 16 different launches of 16 kernels",
        "201 MB live",
        "25.2 MB at most, by forward0",
        "parameter",
        "backward7",
    ):
        assert piece in text, piece


def test_top(run, trace_file):
    text = run("info", trace_file, "--top", "1").stdout
    assert "backward0" in text
    assert "backward1" not in text


def test_details_as_json(run, trace_file):
    data = json.loads(run("info", trace_file, "--json", "-").stdout)
    assert data["name"] == "tiny"
    assert data["working_set_bytes"] == 12 << 21
    assert len(data["top_by_time"]) == 8


def test_details_to_a_json_file(run, trace_file, tmp_path):
    result = run("info", trace_file, "--json", "out.json")
    assert "parameter" in result.stdout
    assert result.stderr == "wrote out.json\n"
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["name"] == "tiny"


@pytest.mark.parametrize("by", ["name", "path"])
def test_trace_in_the_place_of_the_json_file(run, shipped, trace_file, by):
    before = trace_file.read_bytes()
    result = run("info", "--json", "tiny-b4" if by == "name" else trace_file)
    assert json.loads(result.stdout)["name"] == "tiny"
    assert trace_file.read_bytes() == before


def test_plot(run, trace_file, tmp_path):
    pytest.importorskip("matplotlib")
    result = run("info", trace_file, "--plot", "memory.svg")
    assert result.stderr == "wrote memory.svg\n"
    assert "activation" in (tmp_path / "memory.svg").read_text("utf-8")


def test_plot_needs_a_trace(run):
    assert "--plot needs a TRACE" in run("info", "--plot", "a.png", status=2).stderr


def test_foreign_machines_are_no_obstacle(run, tmp_path):
    builder = Trace.builder("odd", machine="somebody's")
    weight = builder.alloc(1 << 21)
    builder.step()
    builder.launch("k", [(weight, "rw")], time_ns=1000)
    builder.build(loop=False).save(tmp_path / "odd.trace")
    text = run("info", "odd.trace").stdout
    assert "somebody's" in text
    assert "not named" in text
    assert "then the program ends" in text
    assert info._memory_of("") is None


def test_models_without_a_batch(run, tmp_path):
    builder = Trace.builder("odd", model="mine")
    weight = builder.alloc(1 << 21)
    builder.step()
    builder.launch("k", [(weight, "rw")], time_ns=1000)
    builder.build(loop=False).save(tmp_path / "odd.trace")
    row = run("info", "odd.trace").stdout.splitlines()[1]
    assert row.split() == ["model", "mine"]


@pytest.mark.parametrize("content", [b"", b"not a trace", b"PK\x03\x04 cut short"])
def test_damaged_files(run, tmp_path, content):
    (tmp_path / "bad.trace").write_bytes(content)
    result = run("info", "bad.trace", status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_policies(run):
    text = run("policies").stdout
    for name in ("noop", "single-level", "chained", "oracle"):
        assert name in text
    assert "under every policy: pre_evict_low=" in text


def test_policies_as_json(run):
    data = json.loads(run("policies", "--json").stdout)
    assert data["engine_options"]["window"] > 0
    rows = data["policies"]
    assert {"noop", "single-level", "chained", "oracle"} <= {row["name"] for row in rows}
    assert set(rows[0]) == {"name", "summary", "source", "options"}

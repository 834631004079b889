# SPDX-License-Identifier: Apache-2.0
"""A network that really trains in half the memory it needs: ``deepum demo --live``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

import deepum
from deepum.backends import live, memory
from deepum.backends.training import Shape, same, train
from deepum.commands import cli

from .drivers import Host


def faults(demo: dict[str, Any], policy: str) -> list[int]:
    (run,) = [run for run in demo["runs"] if run["policy"] == policy]
    return [iteration["faults"] for iteration in run["iterations"]]


def test_training_under_half_the_memory(uffd: Host) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "deepum", "demo", "--live", "--backend", "uffd",
            "--layers", "36", "--batch", "2", "--steps", "3", "--json", "-",
        ],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    demo: dict[str, Any] = json.loads(done.stdout)
    # The contract.
    assert demo["backend"] == "uffd"
    assert demo["bitwise_equal"] is True
    assert [run["policy"] for run in demo["runs"]] == ["noop", "single-level", "chained"]
    for run in demo["runs"]:
        assert len(run["iterations"]) == 3
        for iteration in run["iterations"]:
            assert iteration["time_s"] > 0
            assert iteration["faults"] >= 0
    assert demo["peak_bytes"] / (2 << 20) > 200
    assert demo["peak_bytes"] / 2 - (2 << 20) <= demo["budget_bytes"] <= demo["peak_bytes"] / 2
    # From the third step on chained hardly faults, and single-level lies between.
    noop, single, chained = (faults(demo, name) for name in ("noop", "single-level", "chained"))
    assert noop[2] > 200
    assert chained[2] <= 0.005 * noop[2]
    assert chained[2] < single[2] < 0.8 * noop[2]
    # And the network learns.
    assert demo["losses"][0] > 2 * demo["losses"][-1] > 0


@pytest.mark.parametrize("lib", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_both_libraries_give_the_same_bits(uffd: Host, lib: str) -> None:
    shape = Shape(layers=6, batch=2)
    plain = train(shape, 2, lib)
    assert plain.losses[1] < plain.losses[0]
    with deepum.Session("chained", memory_limit=plain.peak_bytes // 2, backend="uffd") as session:
        trained = train(shape, 2, lib, session)
    assert same(plain, trained)
    assert trained.peak_bytes == plain.peak_bytes
    trained.result[0][0, 0] += 1
    assert not same(plain, trained)


def test_the_policy_is_swapped_in_mid_training(uffd: Host) -> None:
    shape = Shape(layers=12, batch=2)
    plain = train(shape, 8, "numpy")
    with deepum.Session("noop", memory_limit=plain.peak_bytes // 2, backend="uffd") as session:

        def swap(step: int) -> None:
            if step in (3, 6):
                session.policy = "chained" if step == 3 else "noop"

        trained = train(shape, 8, "numpy", session, swap)
    assert same(plain, trained)
    counts = [step["faults"] for step in trained.counts]
    assert min(counts[1], counts[2], counts[7]) > 50
    assert max(counts[4], counts[5]) < 0.1 * counts[2]


@pytest.fixture
def run() -> Callable[..., Result]:
    """Return a function that runs ``deepum`` in this process."""

    def call(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, arguments, prog_name="deepum")
        assert result.exit_code == status, result.output
        return result

    return call


def test_the_table(uffd: Host, run: Callable[..., Result]) -> None:
    shown = run("demo", "--live", "--layers", "4", "--batch", "2", "--steps", "2").stdout
    for text in ("uffd", "(ordinary memory)", "noop", "single-level", "chained", "bit by bit"):
        assert text in shown
    assert "the same as in ordinary memory" in shown


def test_where_it_is_not_possible(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "unavailable", lambda name: f"no {name} today")
    shown = run("demo", "--live", "--where-possible").stdout
    assert shown == "No live demo here: kmod: no kmod today; uffd: no uffd today\n"
    shown = run("demo", "--live", status=2).stderr
    assert shown.count("\n") == 1
    assert shown.startswith("error: no backend for a live demo works here: kmod: no kmod today")
    shown = run("demo", "--live", "--backend", "kmod", status=2).stderr
    assert shown == "error: backend 'kmod' does not work here: no kmod today\n"


def test_with_too_little_memory(
    uffd: Host, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 200 << 20)
    shown = run("demo", "--live", "--where-possible").stdout
    assert shown.startswith("No live demo here: not enough host memory for the network: ")
    assert shown.count("\n") == 1


def test_bench(uffd: Host, run: Callable[..., Result]) -> None:
    figures = json.loads(run("bench", "uffd", "--repeats", "1", "--json", "-").stdout)
    assert figures["command"].startswith("deepum")
    assert {"date", "cpu", "cores", "load", "kernel", "python", "numpy", "deepum"} < set(figures)
    names = ["copy", "prefetch", "evict", "fault_empty", "fault_in", "fault_evict"]
    assert list(figures["figures"]) == names
    for figure in figures["figures"].values():
        assert 1e-6 < figure["best_s"] <= figure["median_s"] < 10
        assert 0 < figure["ratio_low"] <= figure["ratio"] <= figure["ratio_high"]
        assert figure["best_ratio"] > 0
    assert figures["figures"]["copy"]["best_ratio"] == 1
    shown = run("bench", "uffd", "--repeats", "1", "--copy").stdout
    assert "bare copy of a block" in shown
    assert "fault: another block out first" in shown

# SPDX-License-Identifier: Apache-2.0
"""The bound of all schedules: right where the answer is known, and never above what a run takes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deepum.backends.sim import simulate
from deepum.machine import Machine, Vmm
from deepum.trace import Operand, Trace

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "schedule_bound.py"
MIB = 1 << 20
TENSOR = 64 * MIB
RATES = (float(TENSOR), float(TENSOR), 2.0 * TENSOR)  # a second for each tensor, each way


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("schedule_bound", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def there_and_back(count: int, budget: int) -> Trace:
    """A step writes so many tensors and reads them in the opposite order."""
    b = Trace.builder("there and back", times="measured")
    for _ in range(2):
        b.step()
        made = []
        for k in range(count):
            made.append(b.alloc(TENSOR, "activation"))
            b.launch(f"write{k}", [(made[-1], "w")], time_ns=1000)
        for k, tensor in reversed(list(enumerate(made))):
            b.launch(f"read{k}", [(tensor, "r")], time_ns=1000)
            b.free(tensor)
    return b.build()


def rounds(count: int, mode: str, time_ns: int = 1000) -> Trace:
    """A step uses so many tensors that stay, one after the other."""
    b = Trace.builder("rounds", times="measured")
    tensors = [b.alloc(TENSOR, "parameter") for _ in range(count)]
    for _ in range(2):
        b.step()
        for k, tensor in enumerate(tensors):
            b.launch(f"k{k}", [(tensor, mode)], time_ns=time_ns)
    return b.build()


def seconds(script: Any, trace: Trace, budget: float, windows: int = 40) -> float:
    return float(script.solve(script.cut(trace, windows), budget * TENSOR, RATES)["bound_s"])


def test_what_is_written_has_to_leave_before_it_can_come_back(script: Any) -> None:
    # By bytes alone 4 seconds each way could overlap.
    assert seconds(script, there_and_back(10, 6), 6) == pytest.approx(8.0, rel=1e-3)


def test_where_all_fits_the_kernels_are_all(script: Any) -> None:
    assert seconds(script, rounds(8, "rw", 10**9), 8) == pytest.approx(8.0)
    assert seconds(script, there_and_back(10, 10), 10) == pytest.approx(20e-6)


def test_what_is_only_read_never_leaves(script: Any) -> None:
    trace = rounds(10, "r")
    found = script.solve(script.cut(trace, 40), 4.0 * TENSOR, RATES)
    # A round of ten in four places: six have to come each time.
    assert found["bound_s"] == pytest.approx(6.0, rel=1e-3)
    assert found["bytes_in"] == pytest.approx(6 * TENSOR, rel=1e-3)


def test_what_is_written_each_time_goes_out_while_the_next_comes_in(script: Any) -> None:
    assert seconds(script, rounds(10, "rw"), 4) == pytest.approx(6.0, rel=1e-3)


def test_both_directions_share_the_bus(script: Any) -> None:
    trace = rounds(10, "rw")
    shared = (*RATES[:2], 1.5 * TENSOR)
    found = script.solve(script.cut(trace, 40), 4.0 * TENSOR, shared)
    assert found["bound_s"] == pytest.approx(8.0, rel=1e-3)


def test_a_part_need_not_bring_the_whole(script: Any) -> None:
    b = Trace.builder("parts", times="measured")
    tensors = [b.alloc(TENSOR, "parameter") for _ in range(10)]
    for _ in range(2):
        b.step()
        for k, tensor in enumerate(tensors):
            b.launch(f"k{k}", [Operand(tensor, "r", length=MIB)], time_ns=1000)
    assert seconds(script, b.build(), 4) < 1e-3


@pytest.mark.parametrize("budget", [4, 6, 8])
@pytest.mark.parametrize("windows", [2, 5, 40])
def test_no_run_is_faster(script: Any, budget: int, windows: int) -> None:
    machine = dataclasses.replace(
        Machine.load("h200-pcie5"),
        vmm=Vmm(*RATES, (2.0 * MIB,), (0.0,), 1e12),
    )
    for trace in (there_and_back(10, budget), rounds(10, "rw"), rounds(10, "r", 3 * 10**8)):
        least = seconds(script, trace, budget, windows)
        for policy in ("oracle", "arguments"):
            run = simulate(
                trace, machine, policy, memory=budget * TENSOR, iterations=6, memory_mode="vmm"
            )
            assert least <= run.iterations[-1].time_s * 1.0001


def test_more_windows_are_stricter(script: Any) -> None:
    trace = there_and_back(10, 6)
    found = [seconds(script, trace, 6, windows) for windows in (1, 2, 20)]
    assert found[0] == pytest.approx(20e-6)
    assert found == sorted(found)


def test_managed_memory_has_its_own_rates(script: Any) -> None:
    v100 = Machine.load("v100-pcie3-32g")
    assert script.rates_of(v100, "managed") == (10.5e9, 11.0e9, 19.5e9)
    h200 = Machine.load("h200-pcie5")
    assert script.rates_of(h200, "vmm") != script.rates_of(h200, "managed")


def test_kernels_may_take_other_times_than_the_trace_says(script: Any) -> None:
    trace = rounds(8, "rw")
    step = script.cut(trace, 40, [0.5] * len(trace.kernel_time_ns))
    assert script.solve(step, 8.0 * TENSOR, RATES)["bound_s"] == pytest.approx(4.0)


def test_the_published_rows_beside_the_best_runs() -> None:
    rows = json.loads((ROOT / "bench/results/sim-managed-schedule.json").read_text())["rows"]
    page = (ROOT / "docs/simulator.md").read_text("utf-8")
    runs = {
        row["trace"]: row
        for row in json.loads((ROOT / "docs/reproduction.json").read_text())["rows"]
        if row["memory"] == "32 GB"
    }
    shares = {}
    for row in rows:
        run = runs[row["trace"]]
        best, bytes_alone = (run["ours"][key] / 100 for key in ("past_paper_s", "bound_s"))
        assert row["simple_bound_s"] == pytest.approx(bytes_alone, rel=1e-3)
        assert bytes_alone * 0.999 <= row["bound_s"] <= best * 1.001
        shares[row["trace"]] = best / row["bound_s"]
        line = (
            f"| {run['model']} {run['batch']} | {bytes_alone:.2f} | {row['bound_s']:.2f} |"
            f" {best:.2f} | {best / bytes_alone:.2f} | {best / row['bound_s']:.2f} |"
        )
        assert line in page
    assert len(shares) == 12  # as the remark in reproduction.md has it
    assert [name for name, share in shares.items() if share > 1.15] == ["gpt2-l-b3"]
    assert sum(share > 1.09 for share in shares.values()) == 3

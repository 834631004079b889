# SPDX-License-Identifier: Apache-2.0
"""The bound of all schedules: right where the answer is known, and never above what a run takes."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from deepum.backends.sim import simulate
from deepum.machine import Machine, Vmm
from deepum.trace import Operand, Trace

pytest.importorskip("scipy")
SCRIPT = Path(__file__).parents[2] / "bench" / "schedule_bound.py"
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

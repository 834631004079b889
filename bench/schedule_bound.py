# SPDX-License-Identifier: Apache-2.0
"""What no schedule of moves can beat: a linear program over one step of a trace.

    python bench/schedule_bound.py --json bench/results/sim-vmm-schedule.json
    python bench/schedule_bound.py --mode managed --json bench/results/sim-managed-schedule.json

The first is the recorded step in memory mode vmm at several budgets, the second the transformers of
the DeepUM paper in its machine's own memory; `--trace` and `--machine` take others.

The bound that every result is printed with, max(compute, bytes in / bus, bytes out / bus), takes it
that both directions can always be busy. A step does not let them be: what is written forward has to
leave before it can come back. Here the step is cut into windows, and what each window must move
decides how long it takes.

*Variables*, for each group of tensors that are used in the same windows: bytes on the device and
bytes with a valid copy on the host at each boundary, bytes that come in and go out in each window;
and each window's time. *Constraints*: what lives is on the device or valid on the host; the device
holds no more than the budget; what a window reads is there at its beginning or comes in during it;
what a window writes is valid on the host only once it went out again; a window takes at least its
kernels' time, and its bytes over the bus, each way and both together. The end of the step is the
beginning of the next. The least sum of the windows' times is the bound.

Every real schedule fulfils all of that, so none is faster: moving in pieces of any size, without
overhead, in any order inside a window, fractions of a tensor, and with contents that are dead from
their last reading on. What a kernel reads or writes only a part of is taken as not read, and as not
written where that would cost something. More windows make the bound stricter. Solved by HiGHS
(Q. Huangfu and J. Hall, Mathematical Programming Computation 10, 2018), in scipy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from deepum.backends.sim import bound, kernel_times
from deepum.machine import Machine
from deepum.reproduce.plan import MACHINES, POINTS_32GB, TRANSFORMERS
from deepum.trace import Trace
from deepum.trace.columns import ALLOC, FREE, KERNEL, PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable

VMM = "h200-pcie5", [Path(__file__).parent / "traces" / "gpt2-xl-bf16-b4.trace"]
MANAGED = MACHINES["32 GB"], [row.trace for row in POINTS_32GB if row.model in TRANSFORMERS]
RATIOS = (1.25, 1.5, 2.0, 4.0)
WINDOWS = 100
READS, WRITES, WRITES_SOME = 1, 2, 4
BEFORE = -1
SEQUENTIAL = PATTERNS.index("sequential")


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors that live and are used in the same windows.

    `born` is the window that first uses them, `BEFORE` if they live when the step begins; `dies` is
    the one that uses them last, the number of windows if they live on. `uses` has for each window
    that uses them whether it reads all that was there before, whether it writes all, and whether it
    writes anything.
    """

    born: int
    dies: int
    uses: tuple[tuple[int, bool, bool, bool], ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the steady state: seconds of each window's kernels, and bytes of each group."""

    compute: list[float]
    groups: dict[Group, float]


def cut(trace: Trace, windows: int, times_s: Any = None) -> Step:
    """Cut the last recorded step, which must be the one that repeats, into windows.

    `times_s` has the seconds of each kernel; what the trace says of them, if None. A window holds
    about as much of the kernels' time, of their number and of the bytes that are used for the first
    or the last time as any other.
    """
    last = len(trace.schedule) - 1
    if times_s is None:
        times_s = trace.kernel_time_ns * 1e-9
    alive = {int(tensor) for tensor in trace.initial}
    for iteration in range(last):
        for op, arg in _events(trace, iteration):
            if op == ALLOC:
                alive.add(arg)
            elif op == FREE:
                alive.discard(arg)
    there = set(alive)
    freed: set[int] = set()
    allocated: set[int] = set()
    uses: dict[int, list[tuple[int, int]]] = defaultdict(list)
    times = []
    for op, arg in _events(trace, last):
        if op == ALLOC:
            allocated.add(arg)
        elif op == FREE:
            freed.add(arg)
        elif op == KERNEL:
            low, high = trace.kernel_operand_start[arg], trace.kernel_operand_start[arg + 1]
            for operand in range(low, high):
                tensor, mode = int(trace.operand_tensor[operand]), int(trace.operand_mode[operand])
                whole = trace.operand_length[operand] >= trace.tensor_bytes[tensor]
                if not whole or trace.operand_pattern[operand] != SEQUENTIAL:
                    mode = WRITES_SOME if mode & WRITES else 0
                uses[tensor].append((len(times), mode))
            times.append(float(times_s[arg]))
    window = _windows(trace, np.array(times), uses, windows)
    count = int(window[-1]) + 1
    groups: dict[Group, float] = defaultdict(float)
    for tensor in there | set(uses):
        launches = uses.get(tensor, [])
        lives_before = tensor in there and tensor not in allocated
        lives_on = tensor not in freed
        if not launches and not (lives_before and lives_on):
            continue  # nobody needs what is in it
        by_window: dict[int, list[bool]] = {}
        for launch, mode in launches:
            use = by_window.setdefault(int(window[launch]), [bool(mode & READS), False, False])
            use[1] |= bool(mode & WRITES)
            use[2] |= bool(mode & (WRITES | WRITES_SOME))
        born = BEFORE if lives_before else min(by_window)
        dies = count if lives_on else max(by_window)
        key = Group(born, dies, tuple((k, *use) for k, use in sorted(by_window.items())))
        groups[key] += float(trace.tensor_bytes[tensor])
    return Step(np.bincount(window, times, count).tolist(), dict(groups))


def _events(trace: Trace, iteration: int) -> Iterable[tuple[int, int]]:
    step = trace.step_at(iteration)
    part = slice(int(trace.step_start[step]), int(trace.step_start[step + 1]))
    return zip(trace.event_op[part].tolist(), trace.event_arg[part].tolist(), strict=True)


def _windows(trace: Trace, times: Any, uses: dict[int, list[tuple[int, int]]], count: int) -> Any:
    weight = times / max(times.sum(), 1e-12) + 1.0 / len(times)
    fresh = np.zeros(len(times))
    for tensor, launches in uses.items():
        for launch in (launches[0][0], launches[-1][0]):
            fresh[launch] += float(trace.tensor_block_bytes[tensor])
    so_far = np.cumsum(weight + 2 * fresh / max(fresh.sum(), 1.0))
    ends = np.searchsorted(so_far, np.linspace(0, so_far[-1], count + 1)[1:-1])
    return np.searchsorted(np.unique(ends), np.arange(len(times)))


class _Program:
    """Rows of ``A x <= b``; times in seconds, amounts in units of 1e9 bytes."""

    def __init__(self, compute: list[float]) -> None:
        self.bounds: list[tuple[float, float | None]] = [(time, None) for time in compute]
        self.terms: list[tuple[int, int, float]] = []
        self.limits: list[float] = []

    def variable(self, most: float | None = None) -> int:
        self.bounds.append((0.0, most))
        return len(self.bounds) - 1

    def at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        self.terms += [(len(self.limits), column, factor) for column, factor in terms]
        self.limits.append(limit)

    def least(self, count: int) -> Any:
        rows, columns, factors = zip(*self.terms, strict=True)
        shape = (len(self.limits), len(self.bounds))
        cost = np.zeros(len(self.bounds))
        cost[:count] = 1.0
        found = linprog(
            cost, coo_matrix((factors, (rows, columns)), shape).tocsr(), self.limits,
            bounds=self.bounds, method="highs",
        )  # fmt: skip
        if found.status:
            raise RuntimeError(f"no solution: {found.message}")
        return found.x


def solve(step: Step, budget: float, rates: tuple[float, float, float]) -> dict[str, Any]:
    """Return the least time of a step, and what a step of that time moves.

    Parameters
    ----------
    step
        From `cut`.
    budget
        Bytes of the device.
    rates
        Bytes a second in, out, and both ways together.

    Returns
    -------
    dict
        ``bound_s``, ``bytes_in``, ``bytes_out``, and ``windows``: seconds, bytes in, bytes out of
        each.
    """
    count = len(step.compute)
    program = _Program(step.compute)
    held: list[list[int]] = [[] for _ in range(count)]
    ins: list[list[int]] = [[] for _ in range(count)]
    outs: list[list[int]] = [[] for _ in range(count)]
    for group, size in step.groups.items():
        _add(program, group, size / 1e9, held, ins, outs)
    for k in range(count):
        program.at_most(budget / 1e9, *((column, 1.0) for column in held[k]))
        for columns, rate in zip((ins[k], outs[k], ins[k] + outs[k]), rates, strict=True):
            program.at_most(0.0, (k, -rate / 1e9), *((column, 1.0) for column in columns))
    x = program.least(count)
    windows = [
        (round(float(x[k]), 6), *(round(1e9 * float(x[way[k]].sum())) for way in (ins, outs)))
        for k in range(count)
    ]
    time, bytes_in, bytes_out = (sum(column) for column in zip(*windows, strict=True))
    return {"bound_s": time, "bytes_in": bytes_in, "bytes_out": bytes_out, "windows": windows}


def _add(
    program: _Program, group: Group, size: float, held: list[list[int]], ins: list[list[int]],
    outs: list[list[int]],
) -> None:  # fmt: skip
    count = len(held)
    uses = {k: use for k, *use in group.uses}
    # At boundary k window k begins; the last one is the first of the next step.
    device: dict[int, int] = {}
    valid: dict[int, int] = {}
    first = 0 if group.born == BEFORE else group.born + 1
    lives_on = group.dies == count
    for k in range(first, min(group.dies, count) + 1):
        if k == count and group.born == BEFORE:
            device[k], valid[k] = device[0], valid[0]
            continue
        device[k], valid[k] = program.variable(size), program.variable(size)
        program.at_most(-size, (device[k], -1.0), (valid[k], -1.0))
        if k or lives_on:  # what ends in this step is counted as what it is at the end of one
            held[k % count].append(device[k])
    for k in range(max(group.born, 0), min(group.dies, count - 1) + 1):
        reads, writes, writes_some = uses.get(k, (False, False, False))
        if k in device:
            into = program.variable()
            ins[k].append(into)
            if reads:
                program.at_most(-size, (into, -1.0), (device[k], -1.0))
            elif not writes_some and k + 1 in device:
                program.at_most(0.0, (device[k + 1], 1.0), (device[k], -1.0), (into, -1.0))
        if k + 1 in device:
            out = program.variable()
            outs[k].append(out)
            before = [] if writes or k not in valid else [(valid[k], -1.0)]
            program.at_most(0.0, (valid[k + 1], 1.0), (out, -1.0), *before)


def rates_of(machine: Machine, mode: str) -> tuple[float, float, float]:
    """Return the bus's bytes a second in, out, and both ways together in a memory mode."""
    costs = machine if mode == "managed" else machine.costs_of_vmm()
    return costs.bus_in_bytes_s, costs.bus_out_bytes_s, costs.bus_both_bytes_s


def main() -> None:
    """Bound steps of traces, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="append", help="a file or a shipped one's name")
    parser.add_argument("--machine", help="a file or a shipped one's name")
    parser.add_argument("--mode", choices=("managed", "vmm"), default="vmm")
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    usual_machine, usual_traces = MANAGED if given.mode == "managed" else VMM
    machine = Machine.load(given.machine or usual_machine)
    rows = []
    for name in given.trace or usual_traces:
        trace = Trace.load(name)
        step = cut(trace, given.windows, kernel_times(trace, machine))
        budgets = {ratio: trace.peak_bytes / ratio for ratio in RATIOS}
        if given.mode == "managed":
            budgets = {trace.peak_bytes / machine.memory_bytes: machine.memory_bytes}
        for ratio, budget in budgets.items():
            simple = bound(trace, machine, int(budget), memory_mode=given.mode).bound_s
            found = solve(step, budget, rates_of(machine, given.mode))
            found["windows"] = len(found["windows"])
            rows.append({
                "trace": Path(name).stem, "groups": len(step.groups), "ratio": round(ratio, 3),
                "memory_bytes": int(budget), "simple_bound_s": simple, **found,
            })  # fmt: skip
            moved = f"{found['bytes_in'] / 1e9:.1f} GB in, {found['bytes_out'] / 1e9:.1f} out"
            print(
                f"{Path(name).stem} {ratio:.3g}x: no schedule below {found['bound_s']:.3f} s "
                f"({moved}); by bytes alone {simple:.3f} s",
                flush=True,
            )
    if given.json:
        result = {"machine": machine.name, "mode": given.mode, "rows": rows}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

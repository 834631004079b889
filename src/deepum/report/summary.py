# SPDX-License-Identifier: Apache-2.0
"""What a trace holds, in numbers: for ``deepum info`` and for the plots of its memory."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum.trace.columns import ALLOC, FREE, HOST, KERNEL, KINDS, UM_BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deepum.trace import Trace

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TraceSummary:
    """The row of a trace in a list of traces."""

    name: str
    model: str
    batch: str
    machine: str
    """Profile that the kernel times were estimated for, or measured on."""
    estimated: bool
    iterations: int
    steps: int
    kernels_per_step: int
    peak_bytes: int
    compute_s: float
    """Sum of the kernel times of the last step."""
    file_bytes: int


@dataclass(frozen=True)
class KindRow:
    """Tensors of one kind at the moment of the highest memory use."""

    kind: str
    tensors: int
    bytes: int


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel name in the last step."""

    name: str
    launches: int
    time_s: float
    bytes: int


@dataclass(frozen=True)
class TraceDetails:
    """Everything ``deepum info TRACE`` tells."""

    summary: TraceSummary
    events: int
    kernels: int
    """Distinct launches: a kernel launched again with the same arguments counts once."""
    kernel_names: int
    """Distinct kernel names."""
    segments: int
    segment_bytes: int
    """What the caching allocator took from the driver in all."""
    host_s: float
    """Time in which the program gives the GPU nothing, last step."""
    loop_from: int
    working_set_bytes: int
    """Largest amount that one kernel needs at once, in whole UM blocks."""
    working_set_kernel: str
    initial_bytes: int
    at_peak: tuple[KindRow, ...]
    top_by_time: tuple[KernelRow, ...]
    top_by_bytes: tuple[KernelRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        data = asdict(self)
        return {**data.pop("summary"), **data}


@dataclass(frozen=True)
class MemoryOverTime:
    """Live bytes by kind over the kernel time of one step."""

    time_s: Floats
    by_kind: dict[str, Ints]
    """Kind -> live bytes; only kinds that occur."""


def _step(trace: Trace, step: int) -> tuple[NDArray[np.uint8], Ints]:
    columns = trace.columns()
    first, last = (int(edge) for edge in columns["step_start"][step : step + 2])
    op = columns["event_op"][first:last]
    return op, columns["event_arg"][first:last].astype(np.int64)


def batch_text(meta: dict[str, Any]) -> str:
    """Return the batch as a text; an empty one when the trace does not tell it."""
    batch = meta.get("batch")
    if isinstance(batch, int) and batch >= 8192 and batch % 1024 == 0:
        return f"{batch // 1024}K"
    return "" if batch is None else str(batch)


def model_title(meta: dict[str, Any]) -> str:
    """Return the model as people write it; an empty text when the trace does not tell it."""
    from deepum.record.models import MODELS

    name = str(meta.get("model") or "")
    return MODELS[name].title.split(",")[0] if name in MODELS else name


def summarize(trace: Trace, file_bytes: int = 0) -> TraceSummary:
    """Sum up a trace in one row."""
    op, arg = _step(trace, int(trace.columns()["schedule"][-1]))
    time_ns = trace.columns()["kernel_time_ns"][arg[op == KERNEL]]
    return TraceSummary(
        name=trace.name,
        model=model_title(trace.meta),
        batch=batch_text(trace.meta),
        machine=str(trace.meta.get("machine") or ""),
        estimated=trace.meta.get("times") != "measured",
        iterations=int(trace.iterations),
        steps=len(trace.columns()["step_start"]) - 1,
        kernels_per_step=int(trace.kernels_per_step),
        peak_bytes=int(trace.peak_bytes),
        compute_s=float(time_ns.sum()) / 1e9,
        file_bytes=file_bytes,
    )


def detail(trace: Trace, file_bytes: int = 0, top: int = 10) -> TraceDetails:
    """Look closely at a trace.

    Parameters
    ----------
    top
        Rows in the lists of the most expensive kernels.
    """
    from deepum._core.lowering import Program

    columns = trace.columns()
    op, arg = _step(trace, int(columns["schedule"][-1]))
    launches = arg[op == KERNEL]
    rows = _by_name(trace, launches)
    sets = Program(columns).working_set
    widest = int(sets.argmax()) if len(sets) else -1
    return TraceDetails(
        summary=summarize(trace, file_bytes),
        events=len(columns["event_op"]),
        kernels=len(columns["kernel_name"]),
        kernel_names=len(trace.names),
        segments=len(columns["segment_bytes"]),
        segment_bytes=int(columns["segment_bytes"].sum()),
        host_s=float(arg[op == HOST].sum()) / 1e9,
        loop_from=trace.loop_from,
        working_set_bytes=int(sets[widest]) * UM_BLOCK if widest >= 0 else 0,
        working_set_kernel=(
            trace.names[int(columns["kernel_name"][widest])] if widest >= 0 else ""
        ),
        initial_bytes=int(columns["tensor_bytes"][columns["initial"]].sum()),
        at_peak=_at_peak(trace),
        top_by_time=tuple(sorted(rows, key=lambda row: (-row.time_s, row.name))[:top]),
        top_by_bytes=tuple(sorted(rows, key=lambda row: (-row.bytes, row.name))[:top]),
    )


def _by_name(trace: Trace, launches: Ints) -> list[KernelRow]:
    columns = trace.columns()
    names = columns["kernel_name"][launches]
    size = len(trace.names)
    calls = np.bincount(names, minlength=size)
    spent = np.bincount(names, columns["kernel_time_ns"][launches].astype(float), size)
    moved = np.bincount(names, columns["kernel_bytes"][launches].astype(float), size)
    return [
        KernelRow(name, int(calls[i]), float(spent[i]) / 1e9, int(moved[i]))
        for i, name in enumerate(trace.names)
        if calls[i]
    ]


def _deltas(trace: Trace, step: int) -> tuple[Ints, Ints, Ints]:
    """Return the tensors, the changes (+1 or -1) and the places of allocs and frees in a step."""
    op, arg = _step(trace, step)
    where = np.flatnonzero((op == ALLOC) | (op == FREE))
    change = np.where(op[where] == ALLOC, 1, -1)
    return arg[where], change, where


def _live_at_start(trace: Trace, iteration: int) -> Ints:
    """Return, for each tensor row, how many times it is alive when an iteration begins."""
    columns = trace.columns()
    rows = len(columns["tensor_bytes"])
    live = np.bincount(columns["initial"], minlength=rows).astype(np.int64)
    for step in columns["schedule"][:iteration]:
        tensor, change, _ = _deltas(trace, int(step))
        np.add.at(live, tensor, change)
    return live


def _peak_iteration(trace: Trace) -> tuple[int, int]:
    """Return the iteration with the peak of live bytes, and how many of its changes lead to it."""
    columns = trace.columns()
    sizes = columns["tensor_bytes"].astype(np.int64)
    now = int(sizes[columns["initial"]].sum())
    best, found = now, (0, 0)
    for iteration, step in enumerate(columns["schedule"]):
        tensor, change, _ = _deltas(trace, int(step))
        if len(tensor):
            level = now + np.cumsum(sizes[tensor] * change)
            top = int(level.argmax())
            if level[top] > best:
                best, found = int(level[top]), (iteration, top + 1)
            now = int(level[-1])
    return found


def _at_peak(trace: Trace) -> tuple[KindRow, ...]:
    columns = trace.columns()
    iteration, changes = _peak_iteration(trace)
    live = _live_at_start(trace, iteration)
    tensor, change, _ = _deltas(trace, int(columns["schedule"][iteration]))
    np.add.at(live, tensor[:changes], change[:changes])
    kinds = columns["tensor_kind"]
    tensors = np.bincount(kinds, live, len(KINDS)).astype(np.int64)
    amounts = np.bincount(kinds, live * columns["tensor_bytes"].astype(np.int64), len(KINDS))
    rows = [
        KindRow(kind, int(tensors[i]), int(amounts[i]))
        for i, kind in enumerate(KINDS)
        if tensors[i]
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def memory_over_time(trace: Trace, points: int = 1500) -> MemoryOverTime:
    """Follow the live bytes of each kind through the last step of the schedule.

    Parameters
    ----------
    points
        At most about this many; within a stretch the highest total is kept, so peaks stay.
    """
    columns = trace.columns()
    iteration = len(columns["schedule"]) - 1
    step = int(columns["schedule"][iteration])
    op, arg = _step(trace, step)
    elapsed = np.zeros(len(op) + 1)
    cost = np.zeros(len(op))
    cost[op == KERNEL] = columns["kernel_time_ns"][arg[op == KERNEL]]
    cost[op == HOST] = arg[op == HOST]
    np.cumsum(cost, out=elapsed[1:])
    tensor, change, where = _deltas(trace, step)
    sizes = columns["tensor_bytes"].astype(np.int64)
    kinds = columns["tensor_kind"]
    live = _live_at_start(trace, iteration)
    time_s = np.concatenate(([0.0], elapsed[where], [elapsed[-1]])) / 1e9
    levels = {}
    for number, kind in enumerate(KINDS):
        start = int((live * sizes)[kinds == number].sum())
        moves = np.where(kinds[tensor] == number, sizes[tensor] * change, 0)
        if start or moves.any():
            level = start + np.concatenate(([0], np.cumsum(moves)))
            levels[kind] = np.concatenate((level, level[-1:]))
    keep = _peaks(sum(levels.values(), np.zeros(len(time_s), np.int64)), points)
    return MemoryOverTime(time_s[keep], {kind: level[keep] for kind, level in levels.items()})


def _peaks(total: Ints, points: int) -> Ints:
    """Pick at most about `points` indices: in each stretch the highest and the last."""
    if len(total) <= points:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), points // 2 + 1).astype(int)
    picked = {0, len(total) - 1}
    for first, last in itertools.pairwise(edges):
        picked.add(int(first + total[first:last].argmax()))
        picked.add(int(last - 1))
    return np.array(sorted(picked))

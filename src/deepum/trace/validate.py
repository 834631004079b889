# SPDX-License-Identifier: Apache-2.0
"""Checks that a trace makes sense, and what is learnt on the way: its peak of live memory.

A step is stored once and may run many times, so it is first summed up alone (what must be alive
and what must be dead when it begins, what it leaves behind), with numpy over all its events.
The sums are then played through the schedule.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceError
from .columns import (
    ALLOC,
    DTYPES,
    FREE,
    HOST,
    KERNEL,
    KINDS,
    MAX_ADDRESS,
    MODES,
    PATTERNS,
    TABLES,
    UM_BLOCK,
    Columns,
)

Ints = NDArray[np.int64]
MAX_AMOUNT = np.uint64(1 << 62)
"""No time, byte count or touch count is larger, so that sums stay far from overflow."""


def check(columns: Columns, names: list[str], loop_from: int) -> int:
    """Raise :class:`TraceError` if the trace contradicts itself; return its peak live bytes."""
    _check_shapes(columns)
    _check_ranges(columns, names, loop_from)
    _check_places(columns)
    return _Walk(columns).run(loop_from)


def _check_shapes(c: Columns) -> None:
    for table, fields in TABLES.items():
        lengths = {field: len(c[f"{table}_{field}"]) for field in fields}
        if len(set(lengths.values())) > 1:
            raise TraceError(f"the columns of the {table} table differ in length: {lengths}")
    for name, rows, last in (
        ("kernel_operand_start", len(c["kernel_name"]), len(c["operand_tensor"])),
        ("step_start", None, len(c["event_op"])),
    ):
        start = c[name].astype(np.int64)
        if rows is not None and len(start) != rows + 1:
            raise TraceError(f"{name} has {len(start)} entries where {rows + 1} are needed")
        if len(start) == 0 or start[0] != 0 or start[-1] != last or (np.diff(start) < 0).any():
            raise TraceError(f"{name} does not rise from 0 to {last}")


def _below(
    c: Columns, name: str, limit: int, what: str, values: NDArray[Any] | None = None
) -> None:
    column = c[name] if values is None else values
    if len(column) and (worst := int(column.max())) >= limit:
        raise TraceError(f"{name} holds {worst}, but there are only {limit} {what}")


def _check_ranges(c: Columns, names: list[str], loop_from: int) -> None:
    tensors, kernels = len(c["tensor_bytes"]), len(c["kernel_name"])
    steps, schedule = len(c["step_start"]) - 1, len(c["schedule"])
    if schedule == 0:
        raise TraceError("the trace has no iterations")
    if not -1 <= loop_from < schedule:
        raise TraceError(f"loop_from is {loop_from}, but there are {schedule} iterations")
    _below(c, "schedule", steps, "steps")
    _below(c, "initial", tensors, "tensors")
    _below(c, "operand_tensor", tensors, "tensors")
    _below(c, "kernel_name", len(names), "kernel names")
    _below(c, "tensor_kind", len(KINDS), "kinds")
    _below(c, "kernel_dtype", len(DTYPES), "dtypes")
    _below(c, "operand_pattern", len(PATTERNS), "patterns")
    _below(c, "operand_mode", len(MODES), "modes")
    _below(c, "event_op", HOST + 1, "kinds of event")
    if len(c["operand_mode"]) and not c["operand_mode"].all():
        raise TraceError("operand_mode holds 0: an operand is read (1), written (2) or both (3)")
    op, arg = c["event_op"], c["event_arg"]
    _below(c, "event_arg", kernels, "kernels", arg[op == KERNEL])
    memory = (op == ALLOC) | (op == FREE)
    _below(c, "event_arg", tensors, "tensors", arg[memory])
    if not (op == KERNEL).any():
        raise TraceError("the trace launches no kernels")
    for name in ("kernel_time_ns", "kernel_bytes", "operand_touches", "event_arg"):
        if len(c[name]) and c[name].max() > MAX_AMOUNT:
            raise TraceError(f"{name} holds {int(c[name].max())}, which is absurd")
    flops = c["kernel_flops"]
    if len(flops) and not (np.isfinite(flops).all() and (flops >= 0).all()):
        raise TraceError("kernel_flops holds a number that is not finite and positive")


def _check_places(c: Columns) -> None:
    """Tensors fill their blocks, blocks lie in segments, operands lie in tensors."""
    for table, column in (("segment", "segment_bytes"), ("tensor", "tensor_block_bytes")):
        address, size = c[f"{table}_address"], c[column]
        limit = np.uint64(MAX_ADDRESS)
        high = (address > limit) | (size > limit) | (address + size > limit)
        if high.any():
            raise TraceError(f"{table} {int(np.argmax(high))} does not end below address 2^48")
    seg = c["segment_address"].astype(np.int64)
    seg_end = seg + c["segment_bytes"].astype(np.int64)
    if ((seg % UM_BLOCK) != 0).any() or ((seg_end % UM_BLOCK) != 0).any():
        raise TraceError("a segment does not begin and end at a multiple of 2 MiB")
    order = np.argsort(seg, kind="stable")
    if (seg_end[order][:-1] > seg[order][1:]).any():
        raise TraceError("two segments overlap")

    size, block = c["tensor_bytes"].astype(np.uint64), c["tensor_block_bytes"]
    bad = (size == 0) | (size > block)
    if bad.any():
        row = int(np.argmax(bad))
        raise TraceError(f"tensor {row} has {int(size[row])} bytes in a block of {int(block[row])}")
    address = c["tensor_address"].astype(np.int64)
    end = address + block.astype(np.int64)
    where = np.searchsorted(seg[order], address, side="right") - 1
    bad = (where < 0) | (end > np.append(seg_end[order], -1)[where])
    if bad.any():
        raise TraceError(f"tensor {int(np.argmax(bad))} does not lie in a segment")

    offset, length = c["operand_offset"], c["operand_length"]
    room = size[c["operand_tensor"].astype(np.int64)]
    bad = (offset > room) | (length > room) | (offset + length > room) | (length == 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise TraceError(
            f"operand {row} takes {int(length[row])} bytes at {int(offset[row])} "
            f"of a tensor of {int(room[row])} bytes"
        )


@dataclass(frozen=True)
class _Step:
    """What a step asks of the tensors alive when it begins, and what it leaves."""

    needs_alive: Ints
    needs_dead: Ints
    leaves_alive: Ints
    leaves_dead: Ints
    peak: int  # highest live bytes, relative to those at its start
    net: int
    moves: list[tuple[bool, int]]  # (is an allocation, tensor) in order


class _Walk:
    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.bytes = columns["tensor_bytes"].astype(np.int64)
        self.address = columns["tensor_address"].astype(np.int64)
        self.end = self.address + columns["tensor_block_bytes"].astype(np.int64)
        self.operand_start = columns["kernel_operand_start"].astype(np.int64)
        self.operand_tensor = columns["operand_tensor"].astype(np.int64)
        order = np.argsort(self.address, kind="stable")
        # Where every tensor of the trace has its own address, nothing can ever overlap.
        self.disjoint = bool((self.end[order][:-1] <= self.address[order][1:]).all())

    def run(self, loop_from: int) -> int:
        c = self.columns
        schedule = c["schedule"].tolist()
        steps = {s: self.summary(s) for s in set(schedule)}
        alive = np.zeros(len(self.bytes), dtype=bool)
        initial = c["initial"].astype(np.int64)
        alive[initial] = True
        if int(alive.sum()) != len(initial):
            raise TraceError("a tensor is listed twice in initial")
        live = peak = int(self.bytes[initial].sum())
        loop_start = None
        swept: set[tuple[int, bytes]] = set()
        for position, s in enumerate(schedule):
            if position == loop_from:
                loop_start = alive.copy()
            step = steps[s]
            for rows, state, what in (
                (step.needs_alive, True, "uses or frees tensor {} before it is allocated"),
                (step.needs_dead, False, "allocates tensor {} while it is alive"),
            ):
                bad = alive[rows] != state
                if bad.any():
                    row = int(rows[int(np.argmax(bad))])
                    raise TraceError(
                        f"iteration {position} (step {s}) {what.format(self.describe(row))}"
                    )
            if not self.disjoint and (key := (s, np.packbits(alive).tobytes())) not in swept:
                swept.add(key)
                self.sweep(step, alive, f"iteration {position} (step {s})")
            peak = max(peak, live + step.peak)
            live += step.net
            alive[step.leaves_alive] = True
            alive[step.leaves_dead] = False
        if loop_start is not None and (wrong := np.flatnonzero(loop_start != alive)).size:
            raise TraceError(
                f"the loop from iteration {loop_from} does not close: {wrong.size} tensors are "
                "alive only at its start or only at its end, such as "
                f"{self.describe(int(wrong[0]))}"
            )
        return peak

    def describe(self, row: int) -> str:
        return f"{row} ({int(self.bytes[row])} bytes at {int(self.address[row]):#x})"

    def summary(self, s: int) -> _Step:
        c = self.columns
        low, high = int(c["step_start"][s]), int(c["step_start"][s + 1])
        op, arg = c["event_op"][low:high], c["event_arg"][low:high].astype(np.int64)

        # Every touch of a tensor, in order: (tensor, position, 0 used | 1 allocated | 2 freed).
        at = np.flatnonzero(op == KERNEL)
        first = self.operand_start[arg[at]]
        count = self.operand_start[arg[at] + 1] - first
        total = int(count.sum())
        index = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(total)
        moves = np.flatnonzero((op == ALLOC) | (op == FREE))
        tensor = np.concatenate([self.operand_tensor[index], arg[moves]])
        place = np.concatenate([np.repeat(at, count), moves])
        what = np.concatenate([np.zeros(total, dtype=np.int8), op[moves].astype(np.int8)])
        order = np.lexsort((place, tensor))
        tensor, place, what = tensor[order], place[order], what[order]

        # What the last allocation or free of the same tensor, within the step, made of it.
        n = np.arange(len(tensor))
        head = np.append(True, tensor[1:] != tensor[:-1])[: len(n)]
        heads = np.flatnonzero(head)
        last = np.maximum.accumulate(np.where(what > 0, n, -1))
        before = np.append(-1, last)[:-1]
        same = before >= np.maximum.accumulate(np.where(head, n, 0))
        state = np.where(same, what[before], 0)

        for bad, text in (
            ((state == FREE) & (what == KERNEL), "{} uses tensor {} after it was freed"),
            ((state == ALLOC) & (what == ALLOC), "{} allocates tensor {} while it is alive"),
            ((state == FREE) & (what == FREE), "{} frees tensor {} twice"),
        ):
            if bad.any():
                i = int(np.flatnonzero(bad)[np.argmin(place[bad])])
                where = f"step {s}, event {int(place[i])}:"
                who = "a kernel" if what[i] == KERNEL else "the program"
                raise TraceError(where + " " + text.format(who, self.describe(int(tensor[i]))))

        unknown = state == 0
        final = last[np.append(heads, len(n))[1:] - 1]
        final = final[final >= heads]
        move_op, move_tensor = op[moves], arg[moves]
        sizes = self.bytes[move_tensor] * np.where(move_op == ALLOC, 1, -1)
        curve = np.cumsum(sizes)
        return _Step(
            needs_alive=tensor[unknown & (what != ALLOC)],
            needs_dead=tensor[unknown & (what == ALLOC)],
            leaves_alive=tensor[final[what[final] == ALLOC]],
            leaves_dead=tensor[final[what[final] == FREE]],
            peak=max(0, int(curve.max())) if len(curve) else 0,
            net=int(curve[-1]) if len(curve) else 0,
            moves=list(zip((move_op == ALLOC).tolist(), move_tensor.tolist(), strict=True)),
        )

    def sweep(self, step: _Step, alive: NDArray[np.bool_], where: str) -> None:
        """Play the step's allocations against the address space: no two live blocks overlap."""
        rows = np.flatnonzero(alive)
        rows = rows[np.argsort(self.address[rows], kind="stable")]
        if (bad := self.end[rows][:-1] > self.address[rows][1:]).any():
            i = int(np.argmax(bad))
            a, b = self.describe(int(rows[i])), self.describe(int(rows[i + 1]))
            raise TraceError(f"{where} begins with overlapping tensors {a} and {b}")
        starts = self.address[rows].tolist()
        ends = self.end[rows].tolist()
        address, end = self.address.tolist(), self.end.tolist()
        for is_alloc, row in step.moves:
            start = address[row]
            i = bisect_left(starts, start)
            if is_alloc:
                if (i < len(starts) and starts[i] < end[row]) or (i and ends[i - 1] > start):
                    raise TraceError(f"{where} puts tensor {self.describe(row)} over a live one")
                starts.insert(i, start)
                ends.insert(i, end[row])
            else:
                del starts[i], ends[i]

# SPDX-License-Identifier: Apache-2.0
"""A trace of a live run: a few steps of a real program, with the times its kernels really took.

What a launch touches is known from its arguments: the PT blocks that they point into, whole, and
not whether it reads or writes them. So each is taken as read and written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum._core.marks import MARK_DTYPE, MARKS
from deepum.errors import RecordError, TraceError
from deepum.record import kernel_times
from deepum.trace import Trace
from deepum.trace.timeline import KIND, LiveTimeline

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from deepum.trace import TraceBuilder

    Marks = NDArray[np.void]

STEPS = 4
"""Steps in a trace, unless asked otherwise."""
WARM_UP = 2
"""Steps before them: addresses and tables take as long to settle."""
MAX_MARKS = 4_000_000
"""Marks of one step that are kept, 48 bytes each."""
SURE = 64
"""Guessed steps that must have gone by before what was collected is taken for steps for good."""
SHORTEST_IDLE = 2_000
"""Pauses of the program below this are not written down, ns."""

FAULT_LAG_NS = {"uvm-tools": 1_000_000, "cupti": 100_000_000}
"""How late faults are seen at most, by source: a kernel that ended before is suspected too."""

_STEP = MARKS["step"]


@dataclass
class _Step:
    alive: dict[int, int]  # address: bytes of the PT blocks alive when it begins
    segments: dict[int, int]
    marks: Marks


@dataclass(frozen=True)
class Recording:
    """What became of a live run.

    Attributes
    ----------
    trace
        The program: its launches, allocations and frees.
    timeline
        When everything happened.
    notes
        What a user of the trace should know, a sentence each.
    """

    trace: Trace
    timeline: LiveTimeline
    notes: list[str]

    def save(self, path: Path) -> None:
        """Write both to one trace file."""
        self.trace.save(path, self.timeline.members())


class LiveRecorder:
    """Collects a session's marks until a few steps are together.

    Parameters
    ----------
    steps
        How many to keep.
    skip
        How many to let pass before.
    """

    def __init__(self, steps: int = STEPS, skip: int = WARM_UP) -> None:
        if steps < 1:
            raise RecordError(f"a trace has at least one step, not {steps}")
        self._wanted = steps
        self._skip = skip
        self._steps: deque[_Step] = deque()
        self._alive: dict[int, int] = {}
        self._segments: dict[int, int] = {}
        self._current: list[Marks] = []
        self._size = 0
        self._device: deque[Marks] = deque()
        self._later: list[Marks] = []
        self._ended = 0
        self._last = 0
        self._completed = 0
        self._sort = 0
        self._told = False
        self._too_long = False

    @property
    def done(self) -> bool:
        """Whether nothing more is needed."""
        sure = self._ended >= self._skip + self._wanted + (0 if self._told else SURE)
        return self._too_long or (sure and self._completed >= self._last)

    @property
    def _full(self) -> bool:
        return self._ended >= self._skip + self._wanted

    def take(self, marks: Marks) -> None:
        """Take marks, in the order in which they were put."""
        if self.done or not len(marks):
            return
        device = marks[marks["kind"] > _STEP]
        if len(device):
            if self._full and self._completed >= self._last:
                self._later = [device]  # needed if it all was no step
            else:
                self._device.append(device)
            seen = device["seq"][device["kind"] == MARKS["complete"]]
            self._completed = int(seen.max(initial=self._completed))
        program = marks[marks["kind"] <= _STEP]
        start = 0
        for end in np.flatnonzero(program["kind"] == _STEP).tolist():
            self._add(program[start:end])
            _, _, sort, told, seq, _, _ = program[end].item()
            if sort != self._sort:
                self._start_over(sort, bool(told))
            elif self._full:
                self._ended += 1
            else:
                self._end_step(seq)
            start = end + 1
        self._add(program[start:])

    def _start_over(self, sort: int, told: bool) -> None:
        """What was taken for steps was none: the next one begins here."""
        for marks in self._current:
            _follow(marks, self._alive, self._segments)
        self._current, self._size = [], 0
        self._steps.clear()
        self._device = deque(self._later or list(self._device)[-1:])
        self._later = []
        self._ended, self._sort, self._told = 0, sort, told

    def _add(self, marks: Marks) -> None:
        if self._full:
            _follow(marks, self._alive, self._segments)
            return
        self._current.append(marks)
        self._size += len(marks)
        if self._size > MAX_MARKS:
            self._too_long = True
            self._current.clear()
            self._device.clear()

    def _end_step(self, seq: int) -> None:
        marks = np.concatenate(self._current) if self._current else np.empty(0, MARK_DTYPE)
        self._current, self._size = [], 0
        self._steps.append(_Step(dict(self._alive), dict(self._segments), marks))
        if len(self._steps) > self._wanted:
            self._steps.popleft()
        self._ended += 1
        self._last = seq
        _follow(marks, self._alive, self._segments)
        begin = _submitted(self._steps[0].marks)
        while len(self._device) > 1 and int(self._device[1]["time"][0]) < begin:
            self._device.popleft()

    def finish(self, name: str, names: list[str], meta: dict[str, Any], lost: int = 0) -> Recording:
        """Make the trace of what was collected.

        Parameters
        ----------
        name
            The trace's name.
        names
            Names of functions by number.
        meta
            Facts about the session.
        lost
            Marks that did not fit: there is nothing after the first of them.

        Raises
        ------
        RecordError
            There is nothing to make a trace of; says why.
        """
        if self._too_long:
            raise RecordError(
                f"no trace: no step ended within {MAX_MARKS:,} marks; call session.step() at the "
                "end of each step"
            )
        notes = []
        steps = [step for step in self._steps if _last(step.marks) <= self._completed]
        whole = bool(steps)
        if not whole:
            rest = np.concatenate(self._current) if self._current else np.empty(0, MARK_DTYPE)
            rest = _up_to(rest, self._completed)
            steps = [_Step(dict(self._alive), dict(self._segments), rest)]
            notes.append(
                "no step was seen to end: the trace is one pass that does not repeat; call "
                "session.step() at the end of each step"
            )
        if lost:
            notes.append(f"{lost:,} marks did not fit the ring: steps after that are left out")
        if not any((step.marks["kind"] == MARKS["launch"]).any() for step in steps):
            raise RecordError("no trace: no launch was seen to finish")
        device = np.concatenate(self._device)
        source = meta.get("fault_source", "none")
        if source not in FAULT_LAG_NS:
            notes.append("faults were not seen: kernels that had some look longer than they are")
        lag = FAULT_LAG_NS.get(source, 0)
        return _Maker(steps, device, names, notes, lag).make(name, meta, loop=whole)


def _follow(marks: Marks, alive: dict[int, int], segments: dict[int, int]) -> None:
    """Bring what is alive up to date."""
    for kind, at, size in _rows(marks, "alloc", "free", "manage", "unmanage"):
        if kind == MARKS["alloc"]:
            alive[at] = size
        elif kind == MARKS["free"]:
            alive.pop(at, None)
        elif kind == MARKS["manage"]:
            segments[at] = size
        else:
            segments.pop(at, None)


def _rows(marks: Marks, *kinds: str) -> zip[tuple[int, int, int]]:
    chosen = marks[np.isin(marks["kind"], [MARKS[kind] for kind in kinds])]
    columns = (chosen[field].tolist() for field in ("kind", "what", "amount"))
    return zip(*columns, strict=True)


def _launches(marks: Marks) -> Marks:
    return marks[marks["kind"] == MARKS["launch"]]


def _last(marks: Marks) -> int:
    return int(_launches(marks)["seq"].max(initial=0))


def _submitted(marks: Marks) -> int:
    launches = _launches(marks)
    return int(launches["time"][0]) if len(launches) else 0


def _up_to(marks: Marks, seq: int) -> Marks:
    """Return the marks before the first launch that has not finished."""
    late = np.flatnonzero((marks["kind"] == MARKS["launch"]) & (marks["seq"] > seq))
    return marks[: late[0]] if late.size else marks


class _Maker:
    """Makes a trace and a timeline of steps that have finished."""

    def __init__(
        self, steps: list[_Step], device: Marks, names: list[str], notes: list[str], lag: int
    ) -> None:
        self.steps = steps
        self.device = device
        self.names = names
        self.notes = notes
        self.launches = _launches(np.concatenate([step.marks for step in steps]))
        self.seq = self.launches["seq"].astype(np.int64)
        self.ran = kernel_times.runs(
            self.seq,
            self.launches["time"].astype(np.int64),
            completed=self._table("complete", "seq", "time", "amount"),
            opened=self._table("open", "seq", "time"),
            faults=self._table("fault", "time")[:, 0],
            lag=lag,
        )
        self.ends = np.array([self._end(step) for step in steps])
        first = self.ran.begin[0] - self.ran.idle[0]
        self.begins = np.append(min(first, self.ran.ready[0]), self.ends[:-1])

    def _table(self, kind: str, *fields: str) -> NDArray[np.int64]:
        rows = self.device[self.device["kind"] == MARKS[kind]]
        return np.stack([rows[field].astype(np.int64) for field in fields], axis=1)

    def _end(self, step: _Step) -> int:
        return int(self.ran.end[np.searchsorted(self.seq, _last(step.marks))])

    def make(self, name: str, meta: dict[str, Any], *, loop: bool) -> Recording:
        times, doubtful = kernel_times.typical(self.launches["what"], self.ran)
        facts = {
            **meta,
            "look_ns": int(np.median(self.ran.look)),
            "doubtful_share": round(doubtful, 4),
            "live": self._measured(),
        }
        if doubtful > 0.05:
            self.notes.append(
                f"{doubtful:.0%} of the kernel time comes from kernels that always had faults: "
                "they look longer than they are; record with more memory, or with policy arguments"
            )
        builder = self._build(Trace.builder(name, times="measured", **facts), times)
        try:
            trace = builder.build(loop)
        except TraceError as error:
            self.notes.append(f"the recorded steps do not repeat: {error}")
            trace = builder.build(loop=False)
        return Recording(trace, self._timeline(), self.notes)

    def _measured(self) -> list[dict[str, Any]]:
        """What each step took in the session, for comparison with a simulation."""
        rows = []
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            within = self.device[(self.device["time"] > begin) & (self.device["time"] <= end)]
            amount = {
                kind: int(within["amount"][within["kind"] == MARKS[kind]].sum())
                for kind in ("fault", "in", "out", "drop")
            }
            rows.append(
                {
                    "time_s": (end - begin) * 1e-9,
                    "fault_records": amount["fault"],
                    "bytes_in": amount["in"] << 21,
                    "bytes_out": amount["out"] << 21,
                    "bytes_dropped": amount["drop"] << 21,
                }
            )
        return rows

    def _build(self, builder: TraceBuilder, times: NDArray[np.int64]) -> TraceBuilder:
        segments = dict(self.steps[0].segments)
        for step in self.steps:
            for _, at, size in _rows(step.marks, "manage"):
                segments[at] = max(size, segments.get(at, 0))
        for at, size in _merged(segments):
            builder.segment(at, size)
        handles = {
            at: builder.alloc_at(at, size, kind="other") for at, size in self.steps[0].alive.items()
        }
        launch = 0
        took, idle = times.tolist(), self.ran.idle.tolist()
        for step in self.steps:
            builder.step()
            named: dict[int, None] = {}
            rows = (step.marks[f].tolist() for f in ("kind", "what", "amount", "name"))
            for kind, what, amount, number in zip(*rows, strict=True):
                if kind == MARKS["range"]:
                    if what in handles:
                        named[handles[what]] = None
                elif kind == MARKS["launch"]:
                    if idle[launch] > SHORTEST_IDLE:
                        builder.host(idle[launch])
                    builder.launch(
                        self._name(number),
                        [(handle, "rw") for handle in named],
                        time_ns=took[launch],
                        key=what,
                    )
                    launch += 1
                    named = {}
                elif kind == MARKS["alloc"]:
                    handles[what] = builder.alloc_at(what, amount, kind="other")
                elif kind == MARKS["free"] and what in handles:
                    builder.free(handles.pop(what))
        return builder

    def _name(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else self.names[0]

    def _timeline(self) -> LiveTimeline:
        origin = int(self.begins[0])
        last = int(self.ends[-1])
        parts = [
            _part("kernel", self.ran.begin, self.ran.end, self.seq, name=self.launches["name"]),
            _part("step", self.begins, self.ends, np.arange(len(self.ends))),
        ]
        waits = self.ran.begin > self.ran.ready
        parts.append(
            _part(
                "wait",
                self.ran.ready[waits],
                self.ran.begin[waits],
                self.seq[waits],
                name=self.launches["name"][waits],
            )
        )
        idle = self.ran.idle > 0
        parts.append(_part("host", (self.ran.ready - self.ran.idle)[idle], self.ran.ready[idle]))
        for kind in ("in", "out", "drop", "fault", "resident"):
            rows = self.device[self.device["kind"] == MARKS[kind]]
            until = np.maximum(rows["until"], rows["time"])
            parts.append(_part(kind, rows["time"], until, rows["what"], amount=rows["amount"]))
        columns = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
        inside = (columns["end"] >= origin) & (columns["begin"] <= last)
        order = np.flatnonzero(inside)[np.argsort(columns["begin"][inside], kind="stable")]
        columns = {field: column[order] for field, column in columns.items()}
        used, name = np.unique(columns["name"], return_inverse=True)
        return LiveTimeline(
            kind=columns["kind"].astype(np.uint8),
            begin_ns=np.maximum(0, columns["begin"] - origin).astype(np.uint64),
            end_ns=np.maximum(0, columns["end"] - origin).astype(np.uint64),
            what=columns["what"].astype(np.uint64),
            amount=columns["amount"].astype(np.uint64),
            name=name.astype(np.uint32),
            names=[self._name(number) for number in used.tolist()],
        )


def _part(
    kind: str,
    begin: NDArray[Any],
    end: NDArray[Any],
    what: NDArray[Any] | None = None,
    *,
    amount: NDArray[Any] | None = None,
    name: NDArray[Any] | None = None,
) -> dict[str, NDArray[np.int64]]:
    nothing = np.zeros(len(begin), np.int64)
    columns = {"begin": begin, "end": end, "what": what, "amount": amount, "name": name}
    return {
        "kind": nothing + KIND[kind],
        **{
            field: nothing if column is None else column.astype(np.int64)
            for field, column in columns.items()
        },
    }


def _merged(segments: dict[int, int]) -> list[tuple[int, int]]:
    """Return regions without overlaps: the driver may give addresses out again."""
    merged: list[tuple[int, int]] = []
    for at, size in sorted(segments.items()):
        if merged and at < sum(merged[-1]):
            start, have = merged[-1]
            merged[-1] = (start, max(have, at + size - start))
        else:
            merged.append((at, size))
    return merged

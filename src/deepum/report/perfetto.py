# SPDX-License-Identifier: Apache-2.0
"""A live timeline as a Chrome trace: Perfetto (ui.perfetto.dev) and chrome://tracing show it.

The form is the JSON of Chrome's trace events: ``X`` has a beginning and a duration, ``i`` is a
moment, ``C`` a counter, ``M`` names a track; times are microseconds.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

from deepum.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from deepum.trace.timeline import LiveTimeline

TRACKS = {
    "step": "steps",
    "kernel": "kernels",
    "wait": "waits for memory",
    "host": "nothing submitted",
    "in": "moves in",
    "out": "moves out",
    "drop": "drops",
    "fault": "faults",
}
"""Tracks in order, by kind of entry."""

_LABELS = {"in": "in", "out": "out", "drop": "drop", "host": "idle"}
_BLOCK = 1 << 21
_LANES = 16  # tracks of one kind at most


def to_json(timeline: LiveTimeline, name: str) -> dict[str, Any]:
    """Return the trace as Chrome's trace viewer takes it."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"deepum: {name}"}}
    ]
    for place, (kind, title) in enumerate(TRACKS.items()):
        rows = _rows(timeline, kind)
        if not rows:
            continue
        lanes: set[int] = set()
        for lane, row in _lanes(rows):
            track = 1 + place * _LANES + lane
            if lane not in lanes:
                lanes.add(lane)
                events += _names(track, title if lane == 0 else f"{title} {lane + 1}")
            events.append({"pid": 1, "tid": track, "cat": kind, **_event(timeline, kind, row)})
    for begin, _, _, amount, _ in _rows(timeline, "resident"):
        events.append(
            {
                "ph": "C",
                "name": "resident",
                "pid": 1,
                "ts": begin / 1000,
                "args": {"GiB": amount * _BLOCK / 2**30},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"trace": name}}


def _rows(timeline: LiveTimeline, kind: str) -> list[tuple[int, ...]]:
    at = timeline.of(kind)
    columns = ("begin_ns", "end_ns", "what", "amount", "name")
    return list(zip(*(getattr(timeline, column)[at].tolist() for column in columns), strict=True))


def _names(track: int, title: str) -> list[dict[str, Any]]:
    base = {"ph": "M", "pid": 1, "tid": track}
    return [
        {**base, "name": "thread_name", "args": {"name": title}},
        {**base, "name": "thread_sort_index", "args": {"sort_index": track}},
    ]


def _lanes(rows: list[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    """Give each row a track of its kind on which nothing overlaps it."""
    free: list[tuple[int, int]] = []  # (when it comes free, lane)
    placed = []
    for row in rows:
        if free and (free[0][0] <= row[0] or len(free) == _LANES):
            lane = heapq.heappop(free)[1]
        else:
            lane = len(free)
        heapq.heappush(free, (row[1], lane))
        placed.append((lane, row))
    return placed


def _event(timeline: LiveTimeline, kind: str, row: tuple[int, ...]) -> dict[str, Any]:
    begin, end, what, amount, name = row
    if kind == "fault":
        return {
            "ph": "i",
            "s": "t",
            "name": "faults",
            "ts": begin / 1000,
            "args": {"records": amount, "first": hex(what)},
        }
    args: dict[str, Any] = {}
    title = _LABELS.get(kind, "")
    if kind in ("in", "out", "drop"):
        args = {"blocks": amount, "MiB": amount * 2, "first": hex(what * _BLOCK)}
        title = f"{title} {amount * 2} MiB"
    elif kind == "step":
        title = f"step {what + 1}"
    elif kind in ("kernel", "wait"):
        args = {"launch": what}
        title = timeline.names[name]
    return {
        "ph": "X",
        "name": title,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "args": args,
    }


def write(timeline: LiveTimeline, name: str, path: Path) -> None:
    """Write the trace to a file.

    Raises
    ------
    TraceError
        It cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            json.dump(to_json(timeline, name), file, separators=(",", ":"))
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error

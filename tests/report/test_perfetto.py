# SPDX-License-Identifier: Apache-2.0
"""A timeline as Chrome trace events: what the format asks of each, and what is in it."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import build_trace

from deepum.errors import TraceError
from deepum.report.perfetto import to_json, write
from deepum.trace import Trace
from deepum.trace.timeline import DTYPES, KIND, LiveTimeline

NUMBER = (int, float)
# What the Trace Event Format asks of an event of each phase.
FIELDS = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER},
    "i": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "s": str},
    "C": {"name": str, "pid": int, "ts": NUMBER, "args": dict},
}


def timeline(*rows: tuple[str, int, int, int, int, int]) -> LiveTimeline:
    """Rows of (kind, begin, end, what, amount, name)."""
    numbers = [(KIND[row[0]], *row[1:]) for row in rows]
    columns = zip(*numbers, strict=True)
    return LiveTimeline(
        **{
            column: np.array(values, dtype)
            for (column, dtype), values in zip(DTYPES.items(), columns, strict=True)
        },
        names=["", "gemm"],
    )


def example() -> LiveTimeline:
    return timeline(
        ("step", 0, 9000, 0, 0, 0),
        ("host", 0, 500, 0, 0, 0),
        ("wait", 500, 1000, 1, 0, 1),
        ("in", 600, 900, 7, 16, 0),
        ("in", 800, 1200, 99, 16, 0),  # with two threads: on a track of its own
        ("resident", 900, 900, 0, 512, 0),
        ("kernel", 1000, 4000, 1, 0, 1),
        ("fault", 2000, 2000, 0x7F0000001000, 12, 0),
        ("out", 3000, 3500, 7, 2, 0),
        ("drop", 3600, 3700, 8, 1, 0),
    )


def test_every_event_is_what_the_format_asks() -> None:
    data = json.loads(json.dumps(to_json(example(), "x")))
    assert data["displayTimeUnit"] in ("ms", "ns")
    for event in data["traceEvents"]:
        for field, kind in FIELDS[event["ph"]].items():
            assert isinstance(event[field], kind), (field, event)
        assert event.get("dur", 0) >= 0
        assert event.get("ts", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, NUMBER) for value in event["args"].values())


def test_what_is_on_the_tracks() -> None:
    events = to_json(example(), "x")["traceEvents"]
    tracks = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    shown = [
        (tracks[event["tid"]], event["name"], event["ts"], event.get("dur"))
        for event in events
        if event["ph"] in "Xi"
    ]
    assert shown == [
        ("steps", "step 1", 0.0, 9.0),
        ("kernels", "gemm", 1.0, 3.0),
        ("waits for memory", "gemm", 0.5, 0.5),
        ("nothing submitted", "idle", 0.0, 0.5),
        ("moves in", "in 32 MiB", 0.6, 0.3),
        ("moves in 2", "in 32 MiB", 0.8, 0.4),
        ("moves out", "out 4 MiB", 3.0, 0.5),
        ("drops", "drop 2 MiB", 3.6, 0.1),
        ("faults", "faults", 2.0, None),
    ]
    (counter,) = [event for event in events if event["ph"] == "C"]
    assert counter["args"] == {"GiB": 1.0}


def test_slices_of_a_track_never_overlap() -> None:
    random = np.random.default_rng(1)
    begin = np.sort(random.integers(0, 10_000, 200))
    rows = [
        ("in", int(b), int(b + d), 1, 1, 0)
        for b, d in zip(begin, random.integers(0, 300, 200), strict=True)
    ]
    last: dict[int, float] = {}
    for event in to_json(timeline(*rows), "x")["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= last.get(event["tid"], 0)
            last[event["tid"]] = event["ts"] + event["dur"]
    assert 1 < len(last) < 16


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "live.trace"
    build_trace().save(path, example().members())
    assert Trace.load(path) == build_trace()  # what lies beside it does not matter to a trace
    loaded = LiveTimeline.load(path)
    assert to_json(loaded, "x") == to_json(example(), "x")
    write(loaded, "x", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == to_json(loaded, "x")
    with pytest.raises(TraceError, match="cannot write"):
        write(loaded, "x", tmp_path)


def test_files_without_a_timeline(tmp_path: Path) -> None:
    path = tmp_path / "plain.trace"
    build_trace().save(path)
    with pytest.raises(TraceError, match="deepum run --trace"):
        LiveTimeline.load(path)
    path.write_text("{}")
    with pytest.raises(TraceError, match="is not a trace file"):
        LiveTimeline.load(path)
    members = example().members()
    path.unlink()
    build_trace().save(path, {**members, "timeline_kind.npy": members["timeline_kind.npy"][:-1]})
    with pytest.raises(TraceError, match="timeline_kind"):
        LiveTimeline.load(path)
    build_trace().save(path, {**members, "timeline.json": b"["})
    with pytest.raises(TraceError, match="not JSON"):
        LiveTimeline.load(path)
    build_trace().save(path, timeline(("in", 5, 4, 0, 0, 0)).members())
    with pytest.raises(TraceError, match="cannot be"):
        LiveTimeline.load(path)

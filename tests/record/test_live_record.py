# SPDX-License-Identifier: Apache-2.0
"""From marks to a trace: kernel times, steps, addresses, what is told."""

from pathlib import Path

import numpy as np
import pytest

from deepum import simulate
from deepum._core.marks import Marks
from deepum.errors import RecordError
from deepum.record import live
from deepum.record.kernel_times import runs, typical
from deepum.record.live import LiveRecorder
from deepum.trace import Trace
from deepum.trace.timeline import LiveTimeline

MIB = 1 << 20
BASE = 0x7F00_0000_0000
NAMES = ["unnamed", "graph", "memset", "memcpy", "gemm", "adam"]
FACTS = {"fault_source": "uvm-tools", "policy": "chained", "limit_bytes": 64 * MIB}


def table(*rows: tuple[int, ...], width: int = 2) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def times(submitted, completed, opened=(), faults=(), **options):
    """Return when launches 1, 2, … ran."""
    count = len(submitted)
    return runs(
        np.arange(1, count + 1),
        np.array(submitted),
        completed=table(*completed, width=3),
        opened=table(*opened),
        faults=np.array(faults, np.int64),
        **options,
    )


def test_a_kernel_runs_from_the_end_of_the_one_before() -> None:
    ran = times([0, 1, 2], [(1, 100, 5), (2, 150, 6), (3, 400, 7)])
    assert ran.begin.tolist() == [0, 100, 150]
    assert ran.end.tolist() == [100, 150, 400]
    assert ran.look.tolist() == [5, 6, 7]
    assert not ran.idle.any()


def test_kernels_that_one_look_finds_finished_share_their_time() -> None:
    ran = times([0, 1, 2, 3], [(1, 100, 5), (4, 400, 5)])
    assert (ran.end - ran.begin).tolist() == [100, 100, 100, 100]


def test_a_device_without_work_is_idle() -> None:
    ran = times([0, 500], [(1, 100, 5), (2, 600, 5)])
    assert ran.idle.tolist() == [0, 400]
    assert (ran.end - ran.begin).tolist() == [100, 100]


def test_waiting_behind_a_gate_is_not_running() -> None:
    ran = times([0, 1], [(1, 100, 5), (2, 900, 5)], opened=[(1, 20), (2, 700)])
    assert ran.begin.tolist() == [20, 700]
    assert ran.ready.tolist() == [0, 100]
    # Opened for later launches: the first ones had no gate.
    ran = times([0, 1], [(1, 100, 5), (2, 900, 5)], opened=[(7, 5000)])
    assert ran.begin.tolist() == [0, 100]


def test_kernels_with_faults_do_not_count_where_there_are_others() -> None:
    ran = times(
        [0, 1, 2, 3], [(1, 100, 5), (2, 1100, 5), (3, 1210, 5), (4, 2000, 5)],
        faults=[600, 1500, 1999],
    )  # fmt: skip
    assert ran.faulted.tolist() == [False, True, False, True]
    each, doubtful = typical(np.array([1, 1, 1, 2], np.uint64), ran)
    assert each.tolist() == [105, 105, 105, 790]
    assert doubtful == pytest.approx(790 / 1105)
    late = times([0, 1], [(1, 100, 5), (2, 200, 5)], faults=[150], lag=60)
    assert late.faulted.tolist() == [True, True]


class Program:
    """Says what a training loop does, as a conductor does."""

    def __init__(self) -> None:
        self.ring = Marks(1 << 14)
        self.now = 1_000_000
        self.seq = 0
        self.sort = 1
        self.ring.add("manage", what=BASE, amount=64 * MIB)
        self.weight = self.alloc(0, 8 * MIB)

    def alloc(self, offset: int, size: int) -> int:
        self.ring.add("alloc", what=BASE + offset, amount=size)
        return BASE + offset

    def free(self, at: int) -> None:
        self.ring.add("free", what=at)

    def launch(self, name: int, *touches: int, ns: int = 1000) -> None:
        self.seq += 1
        for at in touches:
            self.ring.add("range", what=at)
        self.ring.add(
            "launch", time=self.now, what=name * 7 + sum(touches), seq=self.seq, name=name
        )
        self.now += ns
        self.ring.add("complete", time=self.now, seq=self.seq, amount=9)

    def step(self, told: bool = True) -> None:
        self.ring.add("step", what=self.sort, amount=told, seq=self.seq)

    def train(self, steps: int, told: bool = True) -> None:
        for _ in range(steps):
            x = self.alloc(16 * MIB, 4 * MIB)
            self.launch(4, self.weight, x, ns=3000)
            self.ring.add("in", time=self.now - 500, until=self.now, what=BASE >> 21, amount=3)
            self.launch(5, self.weight, ns=1000)
            self.free(x)
            self.step(told)


def collect(program: Program, recorder: LiveRecorder | None = None):
    recorder = recorder or LiveRecorder(2, 1)
    recorder.take(program.ring.take())
    return recorder


def test_steps_become_a_trace_that_repeats(tmp_path: Path) -> None:
    program = Program()
    program.train(6)
    recorder = collect(program)
    assert recorder.done
    made = recorder.finish("two", NAMES, FACTS)
    trace = made.trace
    assert made.notes == []
    assert (trace.iterations, trace.kernels_per_step, trace.names) == (2, 2, ["gemm", "adam"])
    assert trace.loop_from >= 0
    assert trace.peak_bytes == 12 * MIB
    assert trace.kernel_time_ns.tolist() == [3000, 1000]
    assert trace.meta["look_ns"] == 9
    assert trace.meta["live"][0] == {
        "time_s": pytest.approx(4e-6),
        "fault_records": 0,
        "bytes_in": 6 * MIB,
        "bytes_out": 0,
        "bytes_dropped": 0,
    }
    made.save(tmp_path / "two.trace")
    assert Trace.load(tmp_path / "two.trace") == trace
    timeline = LiveTimeline.load(tmp_path / "two.trace")
    assert (timeline.of("kernel").size, timeline.of("in").size, timeline.of("step").size) == (
        4,
        2,
        2,
    )
    assert timeline.end_ns[timeline.of("kernel")].max() == 8000
    run = simulate(tmp_path / "two.trace", memory="16MiB", iterations=3)
    assert run.iterations[-1].compute_s == pytest.approx(4e-6)


def test_it_takes_marks_in_any_portions() -> None:
    whole, parts = Program(), Program()
    whole.train(6)
    one = collect(whole).finish("a", NAMES, FACTS)
    recorder = LiveRecorder(2, 1)
    parts.train(6)
    marks = parts.ring.take()
    for start in range(0, len(marks), 3):
        recorder.take(marks[start : start + 3])
    assert recorder.finish("a", NAMES, FACTS).trace == one.trace


def test_what_only_seemed_steps_is_left_out() -> None:
    program = Program()
    program.train(5, told=False)
    recorder = collect(program)
    assert not recorder.done  # guesses: it may come otherwise
    program.sort = 2
    program.alloc(32 * MIB, 2 * MIB)
    program.train(4)
    recorder.take(program.ring.take())
    assert recorder.done
    assert recorder.finish("a", NAMES, FACTS).trace.peak_bytes == 14 * MIB
    guessed = Program()
    guessed.train(live.SURE + 5, told=False)
    assert collect(guessed).done


def test_a_program_without_steps_is_one_pass() -> None:
    program = Program()
    program.launch(4, program.weight)
    made = collect(program).finish("a", NAMES, FACTS, lost=7)
    assert made.trace.loop_from == -1
    assert "call session.step()" in made.notes[0]
    assert "7 marks did not fit" in made.notes[1]


def test_a_step_that_does_not_repeat_is_told() -> None:
    program = Program()
    program.train(2)
    for k in range(3):
        program.alloc((20 + 4 * k) * MIB, 4 * MIB)
        program.train(1)
    made = collect(program, LiveRecorder(2, 2)).finish("a", NAMES, FACTS)
    assert made.trace.loop_from == -1
    assert "do not repeat" in made.notes[0]


def test_what_cannot_be_recorded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="no launch was seen"):
        LiveRecorder().finish("a", NAMES, FACTS)
    with pytest.raises(RecordError, match="at least one step"):
        LiveRecorder(0)
    monkeypatch.setattr(live, "MAX_MARKS", 10)
    program = Program()
    for _ in range(9):
        program.launch(4, program.weight)
    recorder = collect(program)
    assert recorder.done
    with pytest.raises(RecordError, match="no step ended"):
        recorder.finish("a", NAMES, FACTS)


def test_faults_nobody_saw_are_told_of() -> None:
    program = Program()
    program.train(6)
    made = collect(program).finish("a", NAMES, {**FACTS, "fault_source": "none"})
    assert "faults were not seen" in made.notes[0]

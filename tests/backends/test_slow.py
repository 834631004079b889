# SPDX-License-Identifier: Apache-2.0
"""When a step counts as slow for lack of memory."""

from typing import Any

from deepum.backends.slow import SlowSteps

GIB = 1 << 30


class Session:
    """Counts of a session whose steps are given one after the other."""

    def __init__(self) -> None:
        self.slow = SlowSteps()
        self.counts: dict[str, Any] = {
            "steps": 0, "last_step_s": None, "limit_bytes": 8 * GIB, "bytes_in": 0,
            "bytes_out": 0, "faults": 0, "busy_in_s": 0.0, "busy_out_s": 0.0,
        }  # fmt: skip

    def step(self, time_s: float, **more: float) -> str:
        for name, amount in more.items():
            self.counts[name] += amount
        self.counts["steps"] += 1
        self.counts["last_step_s"] = time_s
        return self.slow.look(self.counts)


def test_moves_that_make_a_step_slow_are_told_once() -> None:
    session = Session()
    assert not any(session.step(0.2) for _ in range(4))
    text = session.step(1.0, busy_out_s=0.7, bytes_out=9 * GIB, faults=3)
    assert "step 5 took 1 s, 5.0 times the 0.2 s" in text
    assert "9.0 GiB went out" in text
    assert "with 8.0 GiB to use" in text
    assert "memory_limit" in text
    assert session.step(2.0, busy_out_s=1.7) == ""


def test_faults_too() -> None:
    session = Session()
    assert not any(session.step(0.2) for _ in range(4))
    assert "4,000 blocks faulted" in session.step(1.2, faults=4000)


def test_what_is_slow_for_another_reason_is_not_told() -> None:
    session = Session()
    assert not any(session.step(0.2, busy_out_s=0.1) for _ in range(4))
    assert session.step(5.0, busy_out_s=0.3) == ""  # evaluation, a checkpoint
    assert session.step(0.5, busy_out_s=0.4) == ""  # not three times as long


def test_the_first_steps_are_slow_anyway() -> None:
    session = Session()
    assert session.step(0.1) == ""
    assert session.step(9.0, busy_out_s=9.0) == ""


def test_looks_between_steps_and_a_count_that_begins_anew() -> None:
    session = Session()
    assert not any(session.step(0.2) for _ in range(4))
    assert session.slow.look(session.counts) == ""
    session.counts["steps"] = 0
    assert session.slow.look(session.counts) == ""
    assert "step 1 took" in session.step(1.0, busy_out_s=0.7)

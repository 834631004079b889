# SPDX-License-Identifier: Apache-2.0
"""Where steps end: said by the program, or guessed from its launches."""

from itertools import pairwise

import pytest

from deepum._core.steps import Steps

LAYERS = 12


def program(steps: int) -> list[str]:
    """Kernels of a small transformer, step by step."""
    step = ["embed"]
    for _ in range(LAYERS):
        step += ["attention", "mlp", "norm"]
    step.append("loss")
    for _ in range(LAYERS):
        step += ["norm backward", "mlp backward", "attention backward"]
    return (step + ["adam"] * 4) * steps


def follow(found: Steps, kernels: list[str], first: int = 1) -> list[int]:
    """Launch kernels, each done 10 ns after it was launched; return where steps ended."""
    ends = []
    for seq, name in enumerate(kernels, first):
        if found.launched(hash(name) & (1 << 64) - 1, seq, seq * 10):
            ends.append(seq - 1)
        found.completed(seq, seq * 10 + 10)
    return ends


def test_steps_are_guessed_from_the_longest_way_round() -> None:
    found = Steps()
    kernels = program(6)
    length = len(kernels) // 6
    ends = follow(found, kernels)
    # In the first step layers look like steps; in the second one the guess is put right.
    late = [end for end in ends if end > length]
    assert [b - a for a, b in pairwise(late)] == [length] * (len(late) - 1)
    assert found.count == len(late) == 4
    assert found.seconds == pytest.approx([length * 10e-9] * 4)


def test_evaluation_now_and_then_is_no_step() -> None:
    found = Steps()
    length = len(program(1))
    done = 0
    for _ in range(4):
        kernels = program(300)
        follow(found, kernels, done + 1)
        done += len(kernels)
        evaluation = ["eval"] * 50
        follow(found, evaluation, done + 1)
        done += len(evaluation)
    times = found.seconds
    assert len(times) == 64
    assert sorted(times)[32] == pytest.approx(length * 10e-9)
    assert 1190 <= found.count <= 1200


def test_what_the_program_says_counts() -> None:
    found = Steps()
    seq = 0
    for number in range(5):
        for name in program(1)[: 20 + number]:
            seq += 1
            found.launched(hash(name) & (1 << 64) - 1, seq, seq * 10)
        assert found.step(seq)
        assert not found.step(seq)  # an empty step is none
    found.completed(seq, seq * 10 + 10)
    assert found.count == 5
    follow(found, program(3), seq + 1)
    assert found.count == 5  # no guesses any more


def test_a_step_ends_when_its_last_launch_has_finished() -> None:
    found = Steps()
    found.launched(1, 1, 100)
    found.launched(2, 2, 110)
    found.step(2)
    found.completed(1, 500)
    assert found.count == 0
    found.completed(2, 700)
    assert found.count == 1
    assert found.seconds == pytest.approx([600e-9])


def test_more_steps_than_can_wait() -> None:
    found = Steps()
    for seq in range(1, 200):
        found.launched(7, seq, seq)
        found.step(seq)
    found.completed(199, 1000)
    assert found.count == 64
    assert len(found.seconds) == 64


def test_more_kernels_than_are_kept() -> None:
    found = Steps()
    for seq in range(1, 1 << 15):
        found.launched(seq << 20, seq, seq)
    assert not found.launched(1 << 60, 1 << 15, 1 << 15)

# SPDX-License-Identifier: Apache-2.0
"""What breaks repetition never makes chained slow, and it soon recovers.

Each trace trains alike up to iteration 3; iteration 4 differs: a ragged batch, another sequence
length, an evaluation pass, or from there on gradient clipping or accumulation.
"""

import functools
from pathlib import Path

import pytest

from deepum.backends.sim import simulate
from deepum.trace import Trace

pytestmark = pytest.mark.slow  # 40 iterations of a model a test: minutes in a traced build

FOLDER = Path(__file__).resolve().parent.parent / "data"
NAMES = ["ragged", "seqlen", "clip", "accumulate", "eval"]
CHANGES_AT = 4
ITERATIONS = 10
MACHINE = "v100-pcie3-32g"


@functools.cache
def times(name, policy, percent=60):
    trace = Trace.load(FOLDER / f"perturb-{name}.trace")
    memory = trace.peak_bytes * percent // 100
    return simulate(trace, MACHINE, policy, memory=memory, iterations=ITERATIONS).iterations


@pytest.mark.parametrize("name", NAMES)
def test_the_traces_are_what_they_should_be(name):
    trace = Trace.load(FOLDER / f"perturb-{name}.trace")
    steps = [trace.step_at(i) for i in range(ITERATIONS)]
    assert len(set(steps[1:CHANGES_AT])) == 1
    assert steps[CHANGES_AT] not in steps[:CHANGES_AT]
    assert len(set(steps[CHANGES_AT + 1 :])) == 1


@pytest.mark.parametrize("percent", [50, 60, 80])
@pytest.mark.parametrize("name", NAMES)
def test_chained_is_never_much_slower_than_noop(name, percent):
    naive, chained = times(name, "noop", percent), times(name, "chained", percent)
    for i in range(1, ITERATIONS):
        assert chained[i].time_s <= 1.02 * naive[i].time_s, f"iteration {i}"


@pytest.mark.parametrize("name", NAMES)
def test_chained_recovers_within_two_iterations(name):
    naive, chained = times(name, "noop"), times(name, "chained")
    assert naive[CHANGES_AT - 1].faults > 100  # there is something to hide
    before = chained[CHANGES_AT - 1].faults
    for i in range(CHANGES_AT + 2, ITERATIONS):
        assert chained[i].faults <= max(0.02 * naive[i].faults, before), f"iteration {i}"

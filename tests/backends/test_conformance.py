# SPDX-License-Identifier: Apache-2.0
"""The same events give the same residency: the simulator, the engine alone, and host backends."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .drivers import Call, Host, Program, Simulated, Stepped

TENSORS = "abcd"

# Each example runs on the host in real time, and the fixture is the same for all of them.
live_settings = settings(
    max_examples=min(6, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Call], Program]:
    """Return a set-up and steps that repeat. A kernel fits, all of them do not."""
    setup: list[Call] = [("alloc", name, draw(st.sampled_from([3, 5, 8, 10]))) for name in TENSORS]
    kernels = draw(st.lists(st.sampled_from([*TENSORS, "ab", "cb", "da"]), min_size=2, max_size=5))
    body: list[Call] = [("run", f"k{n}", tensors) for n, tensors in enumerate(kernels)]
    if draw(st.booleans()):
        body += [("alloc", "t", 5), ("run", "t", "t"), *body[:1], ("free", "t")]
    return setup, [body] * draw(st.integers(2, 3))


@pytest.mark.parametrize("policy", ["noop", "single-level", "chained"])
@live_settings
@given(programs(), st.sampled_from([(), ("pre-evict",), ("invalidate",), ("prefetch",)]))
def test_a_host_backend_does_what_the_engine_says(
    host: Host, policy: str, program: tuple[list[Call], Program], without: tuple[str, ...]
) -> None:
    setup, steps = program
    expected = Stepped().run(steps, policy, 20, setup, depth=3, without=without)
    assert host.run(steps, policy, 20, setup, depth=3, without=without) == expected


@live_settings
@given(programs())
def test_without_prefetching_it_is_what_the_simulator_says(
    host: Host, program: tuple[list[Call], Program]
) -> None:
    setup, steps = program
    expected = Simulated().run(steps, "noop", 20, setup)
    assert host.run(steps, "noop", 20, setup) == expected


def test_the_programs_do_move_blocks(host: Host) -> None:
    setup: list[Call] = [("alloc", name, 11) for name in TENSORS]
    body: list[Call] = [("run", "one", "a"), ("run", "two", "b"), ("run", "three", "c")]
    steps = [body] * 3
    noop = host.run(steps, "noop", 20, setup)
    chained = host.run(steps, "chained", 20, setup, depth=1)
    assert [outcome.counts["faults"] for outcome in noop] == [33, 33, 33]
    assert [outcome.counts["fault_evictions"] for outcome in noop] == [13, 33, 33]
    assert chained[2].counts["faults"] < 11
    assert chained[2].counts["prefetched"] >= 33 - 20
    assert chained[2].counts["pre_evictions"] >= 33 - 20

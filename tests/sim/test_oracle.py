# SPDX-License-Identifier: Apache-2.0
"""The oracle: fetches in order of need, evicts what is needed last."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import V100, blocks_managed, trainings

from deepum.backends.sim import SimBackend, bound, simulate
from deepum.trace import Trace
from how_many import examples

BLOCK = 2 << 20
US = 1e-6
MACHINE = dataclasses.replace(
    V100,
    name="round",
    bus_in_bytes_s=BLOCK / (100 * US),
    bus_out_bytes_s=BLOCK / (100 * US),
    bus_both_bytes_s=2 * BLOCK / (100 * US),
    move_in_s=0.0,
    move_out_s=0.0,
)


def in_turn(order, blocks=1, us=1000):
    """One kernel for each letter, over a tensor of the letter's own."""
    b = Trace.builder("letters", times="measured")
    tensors = {letter: b.alloc(blocks * BLOCK) for letter in sorted(set(order))}
    b.step()
    for letter in order:
        b.launch(letter, [(tensors[letter], "rw")], time_ns=us * 1000)
    return b.build()


def run(trace, blocks, iterations=6, **more):
    return simulate(
        trace, MACHINE, "oracle", memory=blocks * BLOCK, iterations=iterations, **more
    ).iterations


def test_everything_is_there_when_it_is_needed():
    # Twelve tensors in turn under a budget of six: each is fetched behind the one before it.
    for i in run(in_turn("abcdefghijkl", blocks=4), 24)[1:]:
        assert (i.faults, i.late, i.stall_s) == (0, 0, 0)
        assert i.prefetched == i.prefetch_used
        assert i.wasted == 0


@pytest.mark.parametrize("blocks", [4, 6, 8, 10])
def test_it_moves_what_belady_moves(blocks):
    # Slow kernels and nothing fetched or evicted ahead, so that the choice of victims alone counts.
    trace = in_turn("abcdefgahbicgdjekalfhbcjidg", us=5000)
    least = bound(trace, MACHINE, blocks * BLOCK)
    quiet = {"horizon": 0, "pre_evict_low": 0, "pre_evict_high": 0}
    moved = [i.bytes_in for i in run(trace, blocks, 12, options=quiet)[3:]]
    assert set(moved) == {least.bytes_in}


def test_what_is_needed_last_goes():
    # a and b alternate; c d e pass by once: of two frames beside the passing one, a and b keep
    # theirs. The least recently migrated would be wrong each time.
    order = "ababcababdababe"
    iterations = run(in_turn(order, us=5000), 3)
    for i in iterations[2:]:
        assert (i.bytes_in, i.faults) == (3 * BLOCK, 0)
    naive = simulate(in_turn(order), MACHINE, "noop", memory=3 * BLOCK).iterations[-1]
    assert naive.bytes_in > 4 * BLOCK


def test_what_died_goes_first_and_for_nothing():
    b = Trace.builder("dies", times="measured")
    kept = [b.alloc(4 * BLOCK) for _ in range(2)]
    b.step()
    for weight in kept * 3:
        x = b.alloc(4 * BLOCK)
        b.launch("make", [(weight, "r"), (x, "w")], time_ns=1_000_000)
        b.free(x)
    for i in run(b.build(), 12)[1:]:
        assert (i.bytes_in, i.bytes_out, i.faults, i.stall_s) == (0, 0, 0, 0)


def test_the_horizon_is_in_launches():
    # Each kernel needs four blocks, 400 us, and runs for 100. With one launch of foresight the
    # bus stands still while it could work; after a long kernel that shows.
    b = Trace.builder("bursts", times="measured")
    tensors = [b.alloc(4 * BLOCK) for _ in range(12)]
    b.step()
    b.launch("long", time_ns=6_000_000)
    for tensor in tensors:
        b.launch("short", [(tensor, "r")], time_ns=100_000)
    trace = b.build()
    stalls = [run(trace, 40, options={"horizon": h})[-1].stall_s for h in (0, 1, 4, 64)]
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > stalls[1] > stalls[2] > stalls[3]


def test_the_end_of_a_call_is_not_the_end_of_the_world():
    # What the next iteration needs stays, and is fetched, though only one was asked for.
    trace = in_turn("abcdefghijkl", blocks=4)
    backend = SimBackend(trace, MACHINE, "oracle", memory=24 * BLOCK)
    for n in range(5):
        i = backend.run(1).iterations[0]
        assert n == 0 or (i.faults, i.late, i.stall_s) == (0, 0, 0)
        backend.engine.check()


def test_a_trace_that_ends():
    b = Trace.builder("ends", times="measured")
    tensors = [b.alloc(4 * BLOCK) for _ in range(12)]
    b.step()
    for tensor in tensors:
        b.launch("k", [(tensor, "r")], time_ns=1_000_000)
    (only,) = run(b.build(loop=False), 24, 1)
    assert only.prefetched + only.faults == 48
    assert only.bytes_in == 48 * BLOCK


def test_it_may_be_told_anew():
    # Swapped in with memory full: what is resident then is filed under its next use as well.
    trace = in_turn("abcdefghijkl", blocks=4)
    backend = SimBackend(trace, MACHINE, "noop", memory=24 * BLOCK)
    backend.run(2)
    backend.policy = "oracle"
    settled = backend.run(4).iterations[1:]
    fresh = run(trace, 24, 4)[1:]
    assert [i.stall_s for i in settled] == [i.stall_s for i in fresh] == [0, 0, 0]
    backend.engine.check()


@given(trace=trainings(), percent=st.integers(50, 95))
@examples(40)
def test_it_is_the_fastest_in_training(trace, percent):
    memory = max(blocks_managed(trace) * percent // 100, 60) * BLOCK
    times = {
        policy: sum(i.time_s for i in simulate(trace, V100, policy, memory=memory).iterations[1:])
        for policy in ("noop", "single-level", "chained", "oracle")
    }
    assert times["oracle"] <= min(times.values()) * 1.02

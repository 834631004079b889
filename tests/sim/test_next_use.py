# SPDX-License-Identifier: Apache-2.0
"""Victims by predicted next use: as good as knowing the future, once the program is learnt."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deepum.backends.sim import SimBackend, bound, simulate
from deepum.errors import PolicyError
from deepum.machine import Machine
from deepum.trace import Trace

MIB = 1 << 20
BLOCK = 2 * MIB
BUDGET = 40
# A block takes a second each way, and the kernels are so long that the bus never holds them up.
MACHINE = dataclasses.replace(
    Machine.load("v100-pcie3-32g"),
    bus_in_bytes_s=float(BLOCK),
    bus_out_bytes_s=float(BLOCK),
    bus_both_bytes_s=2.0 * BLOCK,
    move_in_s=0.0,
    move_out_s=0.0,
    populate_s=0.0,
    launch_s=0.0,
)
PAST = {"next_use": True, "auto_depth": True, "ranges": True}


def rounds(blocks: int, kernel_s: int = 10, mode: str = "rw") -> Trace:
    """Each step uses so many blocks one after the other: the worst case of least recent use."""
    b = Trace.builder("rounds", times="measured")
    tensors = [b.alloc(BLOCK, "parameter") for _ in range(blocks)]
    for _ in range(2):
        b.step()
        for k, tensor in enumerate(tensors):
            b.launch(f"k{k}", [(tensor, mode)], time_ns=kernel_s * 10**9)
    return b.build()


def run(trace: Trace, iterations: int = 8, depth: int = 32, **options: Any) -> Any:
    return simulate(
        trace,
        MACHINE,
        "chained",
        memory=BUDGET * BLOCK,
        depth=depth,
        iterations=iterations,
        options=options,
    ).iterations


# Every frame is of use but the one that is made free for the next block.
TIGHT = {"pre_evict_low": 1, "pre_evict_high": 1}


@pytest.mark.slow
@pytest.mark.parametrize("ranges", [False, True])
def test_a_round_moves_what_belady_moves_and_not_everything(ranges: bool) -> None:
    trace = rounds(2 * BUDGET)
    least = bound(trace, MACHINE, BUDGET * BLOCK).bytes_in
    assert least < 2 * BUDGET * BLOCK * 0.6
    plain = run(trace, depth=1, **TIGHT)[-1]
    past = run(trace, depth=1, next_use=True, ranges=ranges, **TIGHT)[-1]
    assert plain.bytes_in >= 2 * BUDGET * BLOCK  # each block is gone when its turn comes
    assert least <= past.bytes_in <= least + 4 * BLOCK
    assert past.faults == 0
    assert past.time_s == pytest.approx(past.compute_s)


@pytest.mark.slow
def test_what_is_fetched_early_takes_the_place_of_what_could_have_stayed() -> None:
    trace = rounds(2 * BUDGET)
    moved = [
        run(trace, depth=depth, next_use=True, **TIGHT)[-1].bytes_in for depth in (1, 4, 16, 32)
    ]
    assert moved == sorted(moved)
    assert moved[0] < 0.7 * moved[-1]


@pytest.mark.slow
def test_the_gate_holds_back_what_would_push_out_what_is_needed_sooner() -> None:
    held, loose = (
        simulate("bert-large-b16", policy="chained", iterations=5, options={**PAST, "gate": gate})
        for gate in (True, False)
    )
    assert held.iterations[-1].time_s < 0.9 * loose.iterations[-1].time_s


def test_what_fits_stays() -> None:
    last = run(rounds(BUDGET - 1), **PAST)[-1]
    assert last.bytes_in == last.bytes_out == last.faults == 0


def test_a_step_that_leaves_the_prediction_costs_no_more_than_plain() -> None:
    # Every third step goes through the blocks backwards.
    b = Trace.builder("turns", times="measured")
    tensors = [b.alloc(BLOCK, "parameter") for _ in range(2 * BUDGET)]
    for step in range(12):
        b.step()
        for k in range(len(tensors)):
            at = len(tensors) - 1 - k if step % 3 == 2 else k
            b.launch(f"k{at}", [(tensors[at], "rw")], time_ns=10**9)
    trace = b.build(loop=False)
    backend = SimBackend(trace, MACHINE, "chained", memory=BUDGET * BLOCK, options=PAST)
    past = sum(i.time_s for i in backend.run(12).iterations)
    backend.engine.check()
    plain = sum(i.time_s for i in run(trace, 12))
    assert past <= plain * 1.02


def test_an_empty_frame_is_not_worth_a_transfer_before_it_is_needed() -> None:
    # Fresh memory at the end of each step, far from its start, where parameters wait.
    b = Trace.builder("fresh", times="measured")
    held = [b.alloc(BLOCK, "parameter") for _ in range(30)]
    for _ in range(2):
        b.step()
        for k in range(120):
            b.launch(f"k{k}", [(held[k % 30], "rw")], time_ns=10**9)
        fresh = [b.alloc(BLOCK) for _ in range(20)]
        b.launch("make", [(f, "w") for f in fresh], time_ns=10**9)
        b.launch("use", [(f, "r") for f in fresh], time_ns=10**9)
        for f in fresh:
            b.free(f)
    last = run(b.build(), **PAST)[-1]
    # Making room for the 20 costs the 10 or so that do not fit beside the 30, once a step.
    assert last.bytes_in <= 26 * BLOCK


def test_tables_count_what_looking_ahead_takes() -> None:
    trace = rounds(10)
    sizes = [
        simulate(trace, MACHINE, "chained", iterations=3, options={"next_use": on}).table_bytes
        for on in (False, True)
    ]
    assert sizes[1] > sizes[0]


def test_looking_ahead_takes_no_more_in_a_long_run() -> None:
    # All is as foreseen for long, so what a block was filed under is never what is looked at.
    def took(iterations: int) -> int:
        return simulate(
            rounds(45, 1), MACHINE, "chained", memory=BUDGET * BLOCK, iterations=iterations,
            options={"next_use": True},
        ).table_bytes  # fmt: skip

    assert took(400) == took(40)


def test_more_memory_may_come_while_it_looks_ahead() -> None:
    backend = SimBackend(rounds(60), MACHINE, "chained", memory=BUDGET * BLOCK, options=PAST)
    backend.run(3)
    backend.engine.event("manage", address=1 << 45, bytes=64 << 30)
    backend.run(3)
    backend.engine.check()


def test_it_can_be_switched_to_and_from() -> None:
    from deepum_policies.chained import Chained

    trace = rounds(2 * BUDGET)
    backend = SimBackend(trace, MACHINE, "chained", memory=BUDGET * BLOCK)
    plain = backend.run(6).iterations[-1]
    backend.policy = Chained(next_use=True)
    past = backend.run(12).iterations[-1]
    backend.engine.check()
    assert past.bytes_in < plain.bytes_in
    backend.policy = "chained"
    assert backend.run(6).iterations[-1].bytes_in == plain.bytes_in


def test_unknown_options_are_refused() -> None:
    with pytest.raises(PolicyError, match="no option 'nextuse'"):
        run(rounds(4), nextuse=True)

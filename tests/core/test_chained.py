# SPDX-License-Identifier: Apache-2.0
"""Chained prefetching and its mechanisms by example: kernels, blocks, exact commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepum.policy import Policy

from .harness import BLOCK, Bench, brief, native

A, B, C, D = 0xA, 0xB, 0xC, 0xD
BLOCKS = {A: (10, 11), B: (20, 21, 22), C: (30,), D: (40, 41)}
QUIET = {"low": 0, "high": 0, "learn_allocations": False}


def taught(*loop: int, budget: int = 64, rounds: int = 3, **options: int) -> Bench:
    """Return a bench that has run kernels in turn, then lost their blocks.

    So the tables know them, nothing is resident and no chain is under way.
    """
    bench = Bench(budget, "chained", **{**QUIET, **options})
    for exec_id in loop * rounds:
        bench.run(exec_id, *BLOCKS[exec_id])
    forget(bench)
    return bench


def forget(bench: Bench) -> None:
    """Take all blocks from the device; what has been learnt stays."""
    bench.engine.event("unmanage", address=0, bytes=4096 * BLOCK)
    bench.manage(0, 4096)
    if bench.engine.policy.name == "chained":
        bench.engine.set_policy(native("chained"))
    bench.engine.check()
    assert bench.engine.resident == 0


def test_the_second_time_round_everything_is_prefetched():
    bench = Bench(64, "chained", **QUIET)
    first = bench.run(A, 10, 11), bench.run(B, 20, 21, 22), bench.run(C, 30)
    # The first time each block faults, and what its kernel is to touch next is unknown.
    assert [brief(commands) for commands in first] == [
        ["prefetch 10!", "prefetch 11!"],
        ["prefetch 20!", "prefetch 21!", "prefetch 22!"],
        ["prefetch 30!"],
    ]
    forget(bench)
    faults = bench.engine.stats["faults"]
    # A comes after C now, which has not been seen, so it prefetches for itself alone. That C
    # follows where B comes after A is known.
    assert brief(bench.run(A, 10, 11)) == ["prefetch 10-11"]
    assert brief(bench.run(B, 20, 21, 22)) == ["prefetch 20-22", "prefetch 30"]
    assert bench.run(C, 30) == []
    # Now the loop is known.
    forget(bench)
    assert brief(bench.run(A, 10, 11)) == ["prefetch 10-11", "prefetch 20-22", "prefetch 30"]
    assert bench.run(B, 20, 21, 22) == []
    assert bench.run(C, 30) == []
    assert bench.engine.stats["faults"] == faults


def test_prefetches_say_which_launch_they_are_for():
    bench = taught(A, B, C, depth=2)
    bench.launch(A)
    assert bench.drain() == [
        ("prefetch", 10, 2, False, 10),
        ("prefetch", 20, 3, False, 11),
        ("prefetch", 30, 1, False, 12),
    ]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, ["prefetch 10-11"]),
        (1, ["prefetch 10-11", "prefetch 20-22"]),
        (2, ["prefetch 10-11", "prefetch 20-22", "prefetch 30"]),
        (3, ["prefetch 10-11", "prefetch 20-22", "prefetch 30", "prefetch 40-41"]),
    ],
)
def test_depth_is_how_many_kernels_ahead(depth, expected):
    bench = taught(A, B, C, D, depth=depth)
    bench.launch(A)
    assert brief(bench.settle()) == expected
    if depth == 0:
        bench.complete()
        assert brief(bench.settle()) == ["prefetch 20-22"]  # what should run now


def test_the_chain_goes_on_as_kernels_complete():
    bench = taught(A, B, C, D, depth=1)
    bench.launch(A)
    assert brief(bench.settle()) == ["prefetch 10-11", "prefetch 20-22"]
    bench.launch(B)
    assert bench.settle() == []  # A still runs
    bench.complete(bench.engine.running)
    assert brief(bench.settle()) == ["prefetch 30"]
    bench.complete()
    assert brief(bench.settle()) == ["prefetch 40-41"]


def test_the_chain_may_run_ahead_of_launches_but_not_of_completions():
    bench = taught(A, B, C, D, depth=1)
    for exec_id in (A, B, C):
        bench.launch(exec_id)  # the host is ahead: these are known to come
    assert "prefetch 30" in brief(bench.settle())
    assert bench.engine.state(40) == "absent"


def test_it_stops_where_nothing_is_known_and_starts_again_at_the_next_launch():
    bench = taught(A, B, rounds=1)
    bench.run(C, 30)
    forget(bench)
    bench.launch(A)
    assert brief(bench.settle()) == ["prefetch 10-11"]  # C, A has never been seen
    bench.complete()
    bench.launch(B)
    assert brief(bench.settle()) == ["prefetch 20-22", "prefetch 30"]


def test_a_launch_that_was_not_predicted_starts_the_chain_again():
    bench = taught(A, B, C, A, B, D, depth=1)
    bench.launch(A)
    assert brief(bench.settle()) == ["prefetch 10-11", "prefetch 20-22"]
    bench.launch(D)
    assert brief(bench.settle()) == ["prefetch 40-41"]
    assert bench.engine.inspect(40)["needed"] == bench.engine.stats["launches"]


def test_a_launch_that_was_predicted_leaves_the_chain_alone():
    bench = taught(A, B, C, depth=2)
    bench.launch(A)
    bench.settle()
    # Its blocks go out again; only a chain that started anew would bring them once more.
    bench.engine.event("unmanage", address=20 * BLOCK, bytes=3 * BLOCK)
    bench.manage(20, 3)
    bench.launch(B)
    assert bench.settle() == []


def test_the_longest_context_tells_kernels_apart():
    bench = Bench(64, "chained", depth=1, **QUIET)
    for exec_id in (A, B, C, D, B, A) * 3:  # after B comes C or A, by what came before
        bench.run(exec_id, *BLOCKS[exec_id])
    forget(bench)
    bench.launch(A)
    assert "prefetch 20-22" in brief(bench.settle())
    bench.complete()
    bench.launch(B)
    assert brief(bench.settle()) == ["prefetch 30"]


def test_a_fault_inside_a_known_kernel_walks_from_the_faulted_block():
    bench = Bench(64, "chained", window=64, **QUIET)
    bench.run(A, 10, 11, 12, 13)
    forget(bench)
    bench.launch(C)  # unknown: no chain
    bench.settle()
    bench.complete()
    bench.launch(A)
    bench.fault(12)  # before the chain has begun
    commands = bench.drain()
    # The faulted block first, then what follows it, then the rest of the kernel.
    assert brief(commands) == ["prefetch 12!", "prefetch 13", "prefetch 10-11"]
    assert commands[1][4] == bench.engine.running


def test_a_fault_goes_before_the_chain():
    bench = taught(A, B, C, window=1)
    bench.launch(A)
    assert brief(bench.drain()) == ["prefetch 10"]
    bench.fault(22, 20)  # not A's so far
    bench.carry_out([("prefetch", 10, 1, False, 0)])
    assert brief(bench.drain())[:2] == ["prefetch 22!", "prefetch 20!"]


def test_a_fault_while_nothing_runs_teaches_nothing():
    bench = Bench(64, "chained", **QUIET)
    bench.fault(1)
    bench.settle()
    bench.run(A, 10)
    bench.fault(2)
    bench.settle()
    assert bench.engine.correlator.blocks_of(A) == [10]
    assert bench.engine.stats["faults"] == 3


def test_faults_belong_to_the_kernel_that_runs_not_to_the_one_launched_last():
    bench = Bench(64, "chained", **QUIET)
    bench.launch(A)
    bench.launch(B)
    bench.touch(1, 2)
    bench.complete(1)
    bench.touch(3)
    assert bench.engine.correlator.blocks_of(A) == [1, 2]
    assert bench.engine.correlator.blocks_of(B) == [3]


def test_each_launch_begins_a_new_run_of_faults():
    bench = Bench(64, "chained", **QUIET)
    bench.run(A, 1, 2)
    bench.run(A, 5, 6)
    # 5 opened a launch: linked after the end, 2. It does not follow what the launch before saw.
    assert bench.engine.correlator.blocks_of(A) == [1, 2, 5, 6]
    bench.run(A, 1, 7)
    forget(bench)
    bench.run(B)
    bench.launch(A)
    assert brief(bench.settle())[0] == "prefetch 1-2"


def test_predicting_and_looking_at_the_tables():
    bench = taught(A, B, C)
    correlator = bench.engine.correlator
    assert correlator.predict(C, 4) == [A, B, C, A]
    assert correlator.predict(C, 0) == []
    assert correlator.predict(99, 4) == []
    assert correlator.blocks_of(B) == [20, 21, 22]
    assert correlator.blocks_of(99) == []
    assert len(correlator.execs) == 3
    assert bench.engine.table_bytes == correlator.nbytes > correlator.execs.nbytes
    before = correlator.nbytes
    bench.run(D, *range(40, 90))
    assert correlator.nbytes > before + 50 * 4 * 6


# -- allocations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("learns", [True, False])
def test_allocations_enter_the_table_of_the_next_launch(learns):
    bench = Bench(64, "chained", **{**QUIET, "learn_allocations": learns})
    bench.alloc(5, 2)
    bench.launch(A)
    assert bench.engine.correlator.blocks_of(A) == ([5, 6] if learns else [])
    assert brief(bench.settle()) == (["prefetch 5-6"] if learns else [])
    bench.touch(7)
    bench.complete()
    bench.launch(B)
    assert bench.engine.correlator.blocks_of(B) == []  # they were A's
    assert bench.engine.correlator.blocks_of(A) == ([5, 6, 7] if learns else [7])


def test_an_allocation_does_not_displace_what_faults_have_taught():
    bench = Bench(64, "chained", **{**QUIET, "learn_allocations": True, "rows": 1, "ways": 2})
    bench.run(A, 1)
    bench.alloc(2)
    bench.run(A, 1)
    assert bench.engine.correlator.blocks_of(A) == [1, 2]
    bench.alloc(3)
    bench.run(A, 1)
    assert bench.engine.correlator.blocks_of(A) == [1, 2]
    bench.run(A, 4)
    assert 4 in bench.engine.correlator.blocks_of(A)


def test_setting_up_more_than_the_budget_is_no_kernels_output():
    bench = Bench(8, "chained", **{**QUIET, "learn_allocations": True})
    bench.alloc(0, 20)
    bench.launch(A)
    assert bench.engine.correlator.blocks_of(A) == [*range(8)]


# -- past the paper -------------------------------------------------------------------------------


def test_memory_that_a_launch_names_is_known_at_once():
    bench = Bench(64, "chained", **QUIET)
    bench.name(5, 2)
    bench.engine.event("range", address=9 * BLOCK + 5, bytes=BLOCK)
    bench.engine.event("range", address=20 * BLOCK + 5, bytes=0)
    bench.launch(A)
    assert bench.engine.correlator.blocks_of(A) == [5, 6, 9, 10]
    assert bench.drain() == [("prefetch", 5, 2, False, 1), ("prefetch", 9, 2, False, 1)]
    bench.engine.event("complete", seq=1)
    bench.launch(B)
    assert bench.engine.correlator.blocks_of(B) == []  # they were A's


def test_named_memory_comes_even_if_the_chain_has_gone_by():
    bench = taught(A, B, C)
    bench.launch(A)
    bench.settle()
    bench.name(50)
    bench.launch(B)  # as predicted, so the chain stays where it is
    assert brief(bench.settle()) == ["prefetch 50"]


def test_naming_memory_to_a_policy_that_keeps_no_tables():
    class Forgetful(Policy):
        native = "chained"
        learns = False

    bench = Bench(64, Forgetful())
    bench.name(5)
    bench.launch(A)
    bench.launch(A)
    assert bench.settle() == []
    assert brief(bench.touch(5)) == ["prefetch 5!"]


def wide(bench: Bench, kernels: int, blocks: int) -> None:
    """Teach a loop of kernels of several blocks each, then take the blocks away."""
    for exec_id in [*range(kernels)] * 3:
        bench.run(exec_id, *range(exec_id * blocks, exec_id * blocks + blocks))
    forget(bench)


def reached(bench: Bench) -> int:
    return sum(count for kind, _, count, _, _ in bench.settle() if kind == "prefetch")


def test_automatic_depth_speaks_for_three_quarters_of_the_frames():
    bench = Bench(64, "chained", auto_depth=True, depth=1, **QUIET)
    wide(bench, 40, 4)
    bench.launch(0)
    assert reached(bench) == 52  # 48 are not more than three quarters; the next four are
    bench.complete()
    assert reached(bench) == 4


def test_automatic_depth_is_not_used_up_by_completions_told_at_once():
    bench = Bench(64, "chained", auto_depth=True, learn_allocations=False)
    wide(bench, 40, 4)
    for exec_id in range(10):
        bench.launch(exec_id)
        bench.settle()
    assert bench.engine.resident == 52
    bench.complete()  # all ten
    bench.settle()
    # Ten kernels' blocks are spoken for no longer: as many more kernels come.
    needed = [bench.engine.inspect(b)["needed"] for b in range(160)]
    assert max(needed) == bench.engine.stats["launches"] + 13


def test_automatic_depth_begins_where_the_program_is():
    bench = Bench(64, "chained", auto_depth=True, **QUIET)
    wide(bench, 40, 4)
    bench.engine.set_policy(native("noop"))
    for _ in range(1100):  # more than one round of what is noted for each launch
        bench.launch(0)
    bench.complete()
    bench.engine.set_policy(native("chained"))
    bench.launch(0)
    assert reached(bench) == 52
    bench.complete()
    assert reached(bench) == 4


# -- eviction -------------------------------------------------------------------------------------


def test_pre_eviction_begins_below_low_and_ends_at_high():
    bench = Bench(64, "chained", low=4, high=7, learn_allocations=False, depth=0)
    bench.alloc(0, 100)
    for seq in range(60):
        assert brief(bench.run(seq, seq)) == [f"prefetch {seq}!"]
    assert bench.engine.free_frames == 4
    bench.launch(A)
    bench.fault(60)
    # The 61st leaves three: four go, least recently migrated first, in one command.
    assert brief(bench.drain()) == ["prefetch 60!", "evict 0-3"]
    assert bench.drain() == []  # frames that are coming free count as free
    bench.carry_out([("prefetch", 60, 1, True, 0), ("evict", 0, 4, False, 0)])
    assert bench.engine.free_frames == 7
    assert bench.drain() == []
    stats = bench.engine.stats
    assert (stats["pre_evicted"], stats["demand_evicted"]) == (4, 0)


def test_frames_do_not_run_short_where_all_memory_fits():
    for blocks, expected in ((64, []), (65, ["discard 0-3"])):
        bench = Bench(64, "chained", blocks=blocks, low=4, high=4, learn_allocations=False)
        for block in range(64):
            bench.fault(block)
        assert brief(bench.settle())[4:] == expected


def test_what_a_predicted_kernel_needs_is_not_evicted_ahead():
    bench = Bench(64, "chained", low=4, high=4, learn_allocations=False, depth=2)
    bench.alloc(0, 200)
    for _ in range(3):
        for exec_id in (A, B, C, D):
            bench.run(exec_id, *BLOCKS[exec_id])
    bench.launch(A)
    bench.settle()
    last = bench.engine.running
    assert [bench.engine.inspect(b)["needed"] - last for b in (10, 20, 30)] == [0, 1, 2]
    assert bench.engine.inspect(40)["needed"] < last
    for block in range(50, 97):
        bench.touch(block)
    # 53 free frames were enough for those above; from here on blocks must go, oldest first.
    assert bench.engine.free_frames == 64 - 8 - 47
    bench.touch(97, 98, 99, 100, 101)
    assert bench.log[-1] == ("prefetch", 101, 1, True, last)
    assert brief(bench.touch(102)) == ["prefetch 102!", "evict 40"]
    assert brief(bench.touch(103)) == ["prefetch 103!", "evict 41"]
    # Now only A's to C's are left, and what A has touched itself: nothing may go ahead.
    assert brief(bench.touch(104)) == ["prefetch 104!"]
    # When A completes, what it was predicted to need may go and what it touched as well, and
    # the chain is at D.
    bench.complete()
    assert brief(bench.drain()) == ["evict 10", "prefetch 40-41", "evict 11", "evict 50"]
    assert bench.engine.state(20) == "resident"


@pytest.mark.parametrize("active", [True, False])
def test_a_fault_takes_the_newest_expected_block_if_all_are_expected(active):
    bench = Bench(4, "chained", learn_allocations=False, depth=3, queue=8)
    bench.alloc(0, 100 if active else 0)
    for _ in range(3):
        for exec_id in (1, 2, 3, 4):
            bench.run(exec_id, exec_id)
    bench.launch(1)
    bench.settle()
    assert bench.engine.resident_blocks() == [1, 2, 3, 4]
    commands = bench.touch(50)
    assert brief(commands) == ["evict 4!" if active else "discard 4!", "prefetch 50!"]


def test_a_fault_takes_the_least_recently_migrated_block_otherwise():
    bench = Bench(3)
    bench.touch(0, 1, 2, 0)
    assert bench.engine.resident_blocks() == [0, 1, 2]  # touching is not migrating
    assert brief(bench.touch(3)) == ["evict 0!", "prefetch 3!"]
    assert brief(bench.touch(0)) == ["evict 1!", "prefetch 0!"]


# -- invalidation ---------------------------------------------------------------------------------


def test_an_inactive_block_is_dropped_before_any_is_copied():
    bench = Bench(4, "chained", **QUIET)
    bench.alloc(0, 4)
    bench.run(A, 0, 1, 2, 3)
    bench.free(2)
    assert bench.engine.resident_blocks() == [2, 0, 1, 3]
    bench.alloc(5)
    assert brief(bench.run(B, 5)) == ["discard 2!", "prefetch 5!"]
    assert bench.engine.inspect(2)["content"] is False
    assert brief(bench.run(B, 6)) == ["evict 0!", "prefetch 6!"]
    assert bench.engine.inspect(0)["content"] is True
    assert bench.engine.stats["discarded"] == 1


def test_a_block_partly_active_is_copied():
    bench = Bench(2, "chained", **QUIET)
    bench.engine.event("alloc", address=0, bytes=BLOCK // 2)
    bench.engine.event("alloc", address=BLOCK // 2, bytes=BLOCK // 2)
    bench.alloc(1)
    bench.run(A, 0, 1)
    bench.engine.event("free", address=0, bytes=BLOCK // 2)
    bench.alloc(2, 2)
    assert brief(bench.run(B, 2)) == ["evict 0!", "prefetch 2!"]
    bench.engine.event("free", address=BLOCK // 2, bytes=BLOCK // 2)  # out on the host
    assert bench.engine.inspect(0)["content"] is False


def test_dead_blocks_go_first_freed_first():
    bench = Bench(4, "chained", **QUIET)
    bench.alloc(0, 8)
    bench.run(A, 0, 1, 2, 3)
    bench.free(3)
    bench.free(1)
    assert brief(bench.run(B, 4, 5, 6))[::2] == ["discard 3!", "discard 1!", "evict 0!"]


def test_memory_that_is_used_again_is_migrated_anew():
    bench = Bench(4, "chained", **QUIET)
    bench.alloc(0, 8)
    bench.run(A, 0, 1, 2)
    bench.free(0)
    assert bench.engine.inspect(0)["inactive"]
    bench.engine.event("alloc", address=5, bytes=1)
    assert not bench.engine.inspect(0)["inactive"]
    assert bench.engine.resident_blocks() == [1, 2, 0]
    assert bench.engine.inspect(0)["content"]


def test_what_goes_inactive_on_its_way():
    bench = Bench(2, "chained", **QUIET)
    bench.alloc(0, 3)
    bench.fault(0)
    bench.drain()
    bench.free(0)
    assert not bench.engine.inspect(0)["inactive"]
    bench.engine.event("arrived", address=0)
    assert bench.engine.inspect(0)["inactive"]
    bench.touch(1)
    bench.alloc(0)
    bench.fault(2)
    assert brief(bench.drain()) == ["evict 1!"]
    bench.free(1)
    assert bench.engine.inspect(1)["content"]
    bench.engine.event("departed", address=BLOCK)
    assert not bench.engine.inspect(1)["content"]


# -- each mechanism off ---------------------------------------------------------------------------


def test_without_prefetching_nothing_moves_ahead_but_the_tables_learn():
    bench = taught(A, B, C, prefetch=False)
    bench.launch(A)
    assert bench.settle() == []
    assert bench.engine.correlator.blocks_of(A) == [10, 11]
    assert brief(bench.touch(10, 11)) == ["prefetch 10!", "prefetch 11!"]


def test_without_pre_eviction_a_prefetch_makes_its_own_room():
    bench = Bench(16, "chained", low=2, high=4, learn_allocations=False, pre_evict=False, queue=9)
    bench.alloc(0, 100)
    bench.run(A, *range(16))
    bench.run(B, 20, 21, 22)
    bench.run(A, *range(16))
    assert bench.engine.free_frames == 0
    assert bench.engine.stats["pre_evicted"] > 0  # on behalf of prefetches
    bench.engine.check()


def test_without_invalidation_inactive_blocks_are_copied():
    bench = Bench(2, "chained", invalidate=False, **QUIET)
    bench.alloc(0, 4)
    bench.run(A, 0, 1)
    bench.free(0, 2)
    assert bench.engine.resident_blocks() == [0, 1]
    assert brief(bench.run(B, 2)) == ["evict 0!", "prefetch 2!"]
    assert bench.engine.inspect(0)["content"]


# -- swapping -------------------------------------------------------------------------------------


def test_swapping_policies_keeps_residency_and_files_inactive_blocks():
    bench = Bench(8, "noop", **QUIET)
    bench.alloc(0, 8)
    bench.touch(3, 1, 2, 0)
    bench.free(2, 2)
    bench.free(5)
    e = bench.engine
    assert e.resident_blocks() == [3, 1, 2, 0]
    e.set_policy(native("chained"))
    assert e.resident_blocks() == [2, 3, 1, 0]
    assert [e.inspect(b)["inactive"] for b in range(4)] == [False, False, True, True]
    assert e.inspect(2)["content"]
    assert not e.inspect(5)["content"]
    e.set_policy(native("noop"))
    assert e.resident_blocks() == [1, 0, 2, 3]
    assert not any(e.inspect(b)["inactive"] for b in range(4))
    assert e.policy.name == "noop"
    e.check()
    bench.touch(4, 5, 6, 7)
    assert brief(bench.touch(9)) == ["evict 1!", "prefetch 9!"]


def test_swapping_forgets_what_was_wished_and_not_what_is_under_way():
    bench = taught(A, B, C, window=1)
    bench.launch(A)
    assert brief(bench.drain()) == ["prefetch 10"]
    assert bench.engine.inspect(11)["queued"]
    bench.engine.set_policy(native("noop"))
    assert not bench.engine.inspect(11)["queued"]
    assert bench.engine.in_flight == (1, 0)
    assert bench.engine.table_bytes == 0
    bench.carry_out([("prefetch", 10, 1, False, 0)])
    assert bench.engine.is_resident(10)
    assert brief(bench.touch(11)) == ["prefetch 11!"]
    bench.complete()
    # The tables are still there for the next one that wants them.
    bench.engine.set_policy(native("chained"))
    assert bench.engine.table_bytes > 0
    bench.launch(B)
    assert "prefetch 20" in brief(bench.drain())[0]


# -- single level ---------------------------------------------------------------------------------


def test_single_level_prefetches_what_followed_the_faulted_block():
    bench = Bench(64, "single-level", **QUIET)
    assert bench.engine.table_bytes > 0
    assert brief(bench.touch(1, 2, 3)) == ["prefetch 1!", "prefetch 2!", "prefetch 3!"]
    forget(bench)
    assert brief(bench.touch(1)) == ["prefetch 1!", "prefetch 2"]
    # The prefetch hit, so 2 does not fault and nothing brings 3 in time: the chain is broken.
    assert brief(bench.touch(2, 3)) == ["prefetch 3!"]
    assert bench.engine.stats["prefetched"] == 1
    assert bench.engine.correlator.nbytes < 2000  # it keeps no kernel tables


def test_single_level_with_levels_looks_further():
    bench = Bench(64, native("single-level", levels=2, successors=2), queue=9, **QUIET)
    bench.touch(1, 2, 3, 4)
    forget(bench)
    assert brief(bench.touch(1)) == ["prefetch 1!", "prefetch 2-3"]


def test_single_level_does_not_see_kernels():
    bench = Bench(64, "single-level", **QUIET)
    bench.run(A, 1)
    bench.run(B, 2)
    forget(bench)
    assert brief(bench.run(C, 1)) == ["prefetch 1!", "prefetch 2"]


GROWS_MEANWHILE = """
from tests.core.test_chained import A, B, BLOCK, QUIET, Bench, brief, forget

bench = Bench(2048, "chained", **QUIET, queue=4)
for _ in range(3):
    bench.run(A, *range(60))
    bench.run(B, 1000)
forget(bench)
bench.launch(A)
assert brief(bench.drain()) == ["prefetch 0-15", "prefetch 16-31"]  # and the walk is paused
new = range(100, 300)
bench.fault(*new)
bench.carry_out(bench.drain())
bench.engine.event("unmanage", address=new.start * BLOCK, bytes=len(new) * BLOCK)
bench.manage(new.start, len(new))
for block in range(32):
    bench.engine.event("arrived", address=block * BLOCK)
print(*brief(bench.settle()), sep="\\n")
"""


def test_a_walk_sees_all_of_a_table_that_grows_while_it_is_paused():
    # What memory holds before it is used is set by the C library, so that it is never zero.
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", GROWS_MEANWHILE],
        env={**os.environ, "MALLOC_PERTURB_": "90", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    *first, last = done.stdout.splitlines()
    assert last == "prefetch 1000"  # the next kernel's
    brought = {
        block
        for line in first
        for bounds in [line.split()[1].split("-")]
        for block in range(int(bounds[0]), int(bounds[-1]) + 1)
    }
    assert brought == {*range(32, 60), *range(100, 300)}

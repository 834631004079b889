# SPDX-License-Identifier: Apache-2.0
"""An engine that follows: what its backend did on its own becomes what the engine knows."""

import pytest

from .harness import BLOCK, Bench


def bench(**options):
    b = Bench(4, "noop", follows=True, **options)
    b.alloc(0, 64)
    return b


def arrived(b, block):
    b.engine.event("arrived", address=block * BLOCK)


def departed(b, block):
    b.engine.event("departed", address=block * BLOCK)


@pytest.mark.parametrize("event", ["arrived", "departed"])
def test_without_it_such_events_are_errors(event):
    b = Bench(4, "noop")
    with pytest.raises(ValueError, match="was not"):
        b.engine.event(event, address=0)


def test_a_block_that_came_by_itself_is_resident():
    b = bench()
    arrived(b, 3)
    arrived(b, 3)
    assert b.engine.resident_blocks() == [3]
    b.engine.check()


def test_a_block_that_left_by_itself_is_absent_and_counts_as_evicted_for_a_fault():
    b = bench()
    b.touch(1, 2)
    departed(b, 1)
    departed(b, 1)
    assert b.engine.resident_blocks() == [2]
    assert b.engine.stats["demand_evicted"] == 1
    b.engine.check()
    assert b.touch(1) == [("prefetch", 1, 1, True, 1)]


def test_a_prefetch_that_was_given_up_is_absent():
    b = bench(window=4)
    b.launch(1)
    b.engine.event("fault", address=5 * BLOCK)
    assert [command[:3] for command in b.drain()] == [("prefetch", 5, 1)]
    assert b.engine.in_flight == (1, 0)
    departed(b, 5)
    assert b.engine.in_flight == (0, 0)
    assert b.engine.state(5) == "absent"
    assert b.engine.stats["demand_evicted"] == 0
    b.engine.check()
    b.touch(5)


def test_a_block_prefetched_in_vain_is_counted_once():
    b = Bench(8, "single-level", follows=True)
    b.alloc(0, 64)
    b.touch(1, 2, 9, 10, 11, 12, 13, 14, 15, 16)
    b.fault(1)
    b.settle()
    ahead = [block for block in range(64) if b.engine.inspect(block)["ahead"]]
    assert ahead
    wasted = b.engine.stats["wasted"]
    departed(b, ahead[0])
    departed(b, ahead[0])
    assert b.engine.stats["wasted"] == wasted + 1
    assert not b.engine.inspect(ahead[0])["ahead"]
    b.engine.check()


def test_a_fault_served_by_itself_waits_for_no_frame():
    b = bench()
    b.fault(7)
    arrived(b, 7)
    assert b.settle() == []
    assert b.engine.stats["faults"] == 1
    assert b.engine.resident_blocks() == [7]


def test_an_eviction_that_had_happened_already_frees_its_frame_once():
    b = bench()
    b.touch(0, 1, 2, 3)
    b.fault(9)
    assert [command[:2] for command in b.drain()] == [("evict", 0)]
    departed(b, 0)
    arrived(b, 0)  # it was touched, and brought at once
    departed(b, 1)
    b.settle()
    b.engine.check()
    assert sorted(b.engine.resident_blocks()) == [0, 2, 3, 9]

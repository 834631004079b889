# SPDX-License-Identifier: Apache-2.0
"""Events that cannot be, and what each event that can be does."""

import numpy as np
import pytest

from deepum._core.engine import COMMAND_DTYPE, EVENT_DTYPE, EVENT_TYPES, Engine

from .harness import BLOCK, Bench, brief, decode, engine, native, records

LAST = (1 << 32) - 2  # the last block's number


@pytest.fixture(params=["noop", "chained", "single-level"])
def bench(request):
    """Blocks 0-7 of memory; 1 resident, 2 coming in; a tensor in 1-2; launch 1 runs."""
    bench = Bench(8, request.param, blocks=8, learn_allocations=False)
    bench.alloc(1, 2)
    bench.launch(5)
    bench.touch(1)
    bench.fault(2)
    assert brief(bench.drain()) == ["prefetch 2!"]
    return bench


def snapshot(e: Engine) -> list[object]:
    blocks = [e.inspect(block) for block in range(8)]
    return [blocks, e.stats, e.resident_blocks(), e.free_frames, e.in_flight, e.running]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("arrived", {"address": BLOCK}, "block 1 arrived but was not on its way"),
        ("arrived", {"address": 3 * BLOCK}, "block 3 arrived but was not on its way"),
        ("departed", {"address": BLOCK}, "block 1 left but was not evicted"),
        ("departed", {"address": 2 * BLOCK}, "block 2 left but was not evicted"),
        ("arrived", {"address": 8 * BLOCK}, "block 8 arrived"),
        ("arrived", {"address": 5000 * BLOCK}, "outside managed memory"),
        ("departed", {"address": 5000 * BLOCK}, "outside managed memory"),
        ("fault", {"address": 8 * BLOCK}, "address 0x1000000 lies outside managed memory"),
        ("fault", {"address": 5000 * BLOCK}, "outside managed memory"),
        ("alloc", {"address": 8 * BLOCK, "bytes": 1}, "outside managed memory"),
        ("alloc", {"address": 7 * BLOCK, "bytes": BLOCK + 1}, "outside managed memory"),
        ("alloc", {"address": BLOCK, "bytes": 1}, "was allocated twice"),
        ("alloc", {"address": 0, "bytes": 2 * BLOCK}, "memory at 0x200000 was allocated twice"),
        ("alloc", {"address": 2 * BLOCK + 5, "bytes": 2 * BLOCK}, "was allocated twice"),
        ("free", {"address": 0, "bytes": 1}, "was freed but is not allocated"),
        ("free", {"address": 8 * BLOCK, "bytes": 1}, "was freed but is not allocated"),
        ("free", {"address": BLOCK, "bytes": 3 * BLOCK}, "memory at 0x600000 was freed"),
        ("unmanage", {"address": BLOCK, "bytes": BLOCK}, "given back while a tensor lives in it"),
        ("unmanage", {"address": 0, "bytes": 8 * BLOCK}, "block 1 was given back"),
        ("complete", {"seq": 2}, "launch 2 completed before it was submitted"),
        ("complete", {"seq": (1 << 64) - 1}, "completed before it was submitted"),
        ("manage", {"address": 1 << 53}, "above 2^53"),
        ("manage", {"address": (1 << 53) - BLOCK, "bytes": 1}, "above 2^53"),
        ("manage", {"address": (1 << 53) - 2 * BLOCK, "bytes": BLOCK + 1}, "above 2^53"),
        ("manage", {"address": 0, "bytes": 1 << 53}, "above 2^53"),
        ("manage", {"address": 4 * BLOCK, "bytes": (1 << 64) - 4 * BLOCK}, "above 2^53"),
        ("free", {"address": BLOCK, "bytes": (1 << 64) - BLOCK}, "above 2^53"),
        ("range", {"address": (1 << 64) - 1, "bytes": 1}, "above 2^53"),
        ("fault", {"address": (1 << 53) + BLOCK}, "above 2^53"),
        ("arrived", {"address": (1 << 53) + 2 * BLOCK}, "above 2^53"),
        ("fault", {"address": (1 << 53) - 1}, "above 2^53"),
    ],
)  # fmt: skip
def test_an_event_that_cannot_be_changes_nothing(bench, kind, fields, message):
    e = bench.engine
    before = snapshot(e)
    with pytest.raises(ValueError, match=message.replace("^", r"\^")):
        e.event(kind, **fields)
    e.check()
    assert snapshot(e) == before
    assert bench.drain() == []
    # All goes on as if it had not come.
    e.event("arrived", address=2 * BLOCK)
    e.event("free", address=BLOCK, bytes=2 * BLOCK)
    bench.complete()
    assert e.resident == 2
    bench.touch(1, 2, 3)


@pytest.mark.parametrize("number", [0, 11, 12, 1 << 31, (1 << 32) - 1])
def test_an_unknown_type_of_event(bench, number):
    event = np.zeros(1, EVENT_DTYPE)
    event["type"] = number
    before = snapshot(bench.engine)
    with pytest.raises(ValueError, match=f"unknown event type {number}"):
        bench.engine.feed(event)
    event["address"] = 5000 * BLOCK
    with pytest.raises(ValueError):
        bench.engine.feed(event)
    with pytest.raises(KeyError):
        bench.engine.event("holiday")
    assert snapshot(bench.engine) == before


def test_the_events_before_the_wrong_one_have_been_taken():
    e = engine(8)
    block = {"address": 0, "bytes": BLOCK}
    batch = [("manage", block), ("launch", {}), ("free", block), ("launch", {})]
    with pytest.raises(ValueError, match="freed"):
        e.feed(records(batch))
    assert e.state(0) == "absent"
    assert e.running == 1


def test_what_a_feed_may_be():
    e = engine(8)
    e.feed(np.zeros(0, EVENT_DTYPE))
    e.feed([])
    batch = records([("manage", {"bytes": BLOCK}), ("launch", {}), ("launch", {"exec_id": 7})])
    e.feed(batch[::2])  # not contiguous
    assert e.state(0) == "absent"
    assert (e.running, e.running_exec_id) == (1, 7)
    e.feed(batch[1])
    assert e.stats["launches"] == 2
    with pytest.raises((TypeError, ValueError)):
        e.feed("launch")
    assert e.drain().dtype == COMMAND_DTYPE
    assert e.drain().shape == (0,)


def test_drained_commands_are_the_callers_own():
    bench = Bench(8)
    bench.fault(1)
    first = bench.engine.drain()
    bench.fault(3)
    bench.fault(5)
    bench.engine.drain()
    assert brief(decode(first)) == ["prefetch 1!"]


def test_launches_in_flight_are_limited():
    e = engine(8, "chained")
    for seq in range(4096):
        e.event("launch", exec_id=seq)
    with pytest.raises(ValueError, match="more than 4096 launches are waiting"):
        e.event("launch")
    assert e.stats["launches"] == 4096
    e.check()
    e.event("complete", seq=1)
    assert (e.running, e.running_exec_id) == (2, 1)
    e.event("launch", exec_id=7)
    with pytest.raises(ValueError, match="more than 4096"):
        e.event("launch")
    e.event("complete", seq=4096)
    assert (e.running, e.running_exec_id) == (4097, 7)
    e.event("complete", seq=4)  # old news
    assert e.running == 4097
    e.event("complete", seq=4097)
    assert (e.running, e.running_exec_id) == (None, None)


def test_memory_up_to_the_last_block():
    e = engine(8)
    e.event("manage", address=LAST * BLOCK, bytes=BLOCK)
    assert e.state(LAST) == "absent"
    assert e.state(LAST - 1) is None
    assert e.state(LAST + 1) is None
    assert e.inspect(LAST + 1) is None
    assert e.state(1 << 63) is None
    assert e.inspect((1 << 32) + LAST) is None  # not the same block
    assert e.state((1 << 32) + LAST) is None
    e.event("fault", address=LAST * BLOCK + BLOCK - 1)
    assert decode(e.drain()) == [("prefetch", LAST, 1, True, 1)]
    e.event("arrived", address=LAST * BLOCK)
    assert e.is_resident(LAST)
    assert not e.is_resident(LAST + 1)
    e.check()


def test_a_block_counts_its_active_bytes_exactly():
    bench = Bench(8, "chained")
    e = bench.engine
    e.event("alloc", address=BLOCK - 3, bytes=BLOCK + 5)
    assert [e.inspect(b)["active_bytes"] for b in range(4)] == [3, BLOCK, 2, 0]
    e.event("alloc", address=0, bytes=BLOCK - 3)
    assert e.inspect(0)["active_bytes"] == BLOCK
    e.event("alloc", address=5, bytes=0)  # nothing, even in a full block
    e.event("free", address=5, bytes=0)
    e.event("range", address=5, bytes=0)
    e.event("manage", address=5000 * BLOCK, bytes=0)
    assert e.state(5000) is None
    e.event("free", address=BLOCK, bytes=BLOCK + 2)
    assert [e.inspect(b)["active_bytes"] for b in range(3)] == [BLOCK, 0, 0]


def test_managed_memory_is_whole_blocks_outward_and_given_back_inward():
    e = engine(8)
    e.event("manage", address=BLOCK - 1, bytes=2)
    assert [e.state(b) for b in range(3)] == ["absent", "absent", None]
    e.event("manage", address=BLOCK, bytes=BLOCK)
    assert e.state(2) is None
    e.event("manage", address=1022 * BLOCK, bytes=4 * BLOCK)  # over a boundary of leaves
    assert [e.state(b) for b in range(1021, 1027)] == [None, *["absent"] * 4, None]
    e.event("unmanage", address=1022 * BLOCK + 1, bytes=2 * BLOCK)
    assert [e.state(b) for b in range(1022, 1026)] == ["absent", None, "absent", "absent"]
    e.event("unmanage", address=1022 * BLOCK, bytes=BLOCK - 1)
    assert e.state(1022) == "absent"
    e.event("unmanage", address=1022 * BLOCK, bytes=BLOCK)
    assert e.state(1022) is None
    e.event("unmanage", address=9000 * BLOCK, bytes=BLOCK)  # never known: nothing to do


def test_many_ranges_of_memory():
    # More leaves than the index begins with, in an order that is not that of addresses.
    e = engine(8)
    chunks = [(k * 7919) % 100_003 * 1024 for k in range(200)]
    for chunk in chunks:
        e.event("manage", address=chunk * BLOCK, bytes=BLOCK)
    for chunk in chunks:
        assert e.state(chunk) == "absent"
        assert e.state(chunk + 1) is None
    for chunk in chunks[:8]:
        e.event("fault", address=chunk * BLOCK)
    assert [c[1] for c in decode(e.drain())] == chunks[:8]
    e.check()


# -- memory that is given back --------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["noop", "chained"])
def test_memory_given_back_frees_frames_at_once(policy):
    bench = Bench(4, policy, blocks=8, learn_allocations=False)
    bench.alloc(0, 8)
    bench.launch(1)
    bench.touch(0, 1)
    bench.complete()
    bench.free(0, 8)
    bench.engine.event("unmanage", address=0, bytes=2 * BLOCK)
    assert bench.engine.free_frames == 4
    assert bench.drain() == []
    bench.manage(0, 2)
    assert bench.engine.inspect(0)["content"] is False
    assert bench.engine.inspect(0)["state"] == "absent"


def test_memory_given_back_while_on_its_way():
    bench = Bench(2, "noop", blocks=4)
    bench.fault(0)
    bench.drain()
    bench.engine.event("unmanage", address=0, bytes=BLOCK)
    assert bench.engine.in_flight == (1, 0)
    bench.engine.event("arrived", address=0)
    assert bench.engine.in_flight == (0, 0)
    assert bench.engine.free_frames == 2
    bench.touch(1, 2)
    bench.fault(3)
    assert brief(bench.drain()) == ["evict 1!"]
    bench.engine.event("unmanage", address=BLOCK, bytes=BLOCK)
    bench.engine.event("departed", address=BLOCK)
    assert brief(bench.drain()) == ["prefetch 3!"]
    bench.manage(1, 1)
    assert bench.engine.inspect(1)["content"] is False


def test_a_fault_in_memory_given_back_meanwhile_is_forgotten():
    # It must not come back as a command for memory that is no longer there.
    bench = Bench(4, "noop", blocks=4)
    bench.fault(0, 1)
    bench.engine.event("unmanage", address=0, bytes=BLOCK)
    assert brief(bench.settle()) == ["prefetch 1!"]


def test_a_prefetch_into_memory_given_back_is_forgotten():
    bench = prefetching(window=1)
    bench.fault(0)
    assert bench.engine.inspect(3)["queued"]
    bench.engine.event("unmanage", address=3 * BLOCK, bytes=BLOCK)
    assert brief(bench.settle()) == ["prefetch 0!", "prefetch 4", "prefetch 2", "prefetch 1"]


def test_a_prefetched_block_given_back_is_wasted():
    bench = prefetching(window=1)
    bench.fault(0)
    bench.settle()
    assert bench.engine.inspect(4)["ahead"]
    wasted = bench.engine.stats["wasted"]
    bench.engine.event("unmanage", address=3 * BLOCK, bytes=3 * BLOCK)
    assert bench.engine.stats["wasted"] == wasted + 2
    # Nothing of it is left when the memory comes again.
    bench.manage(4, 1)
    bench.fault(4)
    bench.drain()
    late = bench.engine.stats["late"]
    bench.fault(4)
    assert bench.engine.stats["late"] == late


# -- faults ---------------------------------------------------------------------------------------


def prefetching(window: int = 2) -> Bench:
    """Return a bench whose policy asks for 4, 3, 2 and 1 after a fault on 0."""
    bench = Bench(64, "single-level", pre_evict=False, window=window)
    for follower in (1, 2, 3, 4):
        bench.fault(0, follower)
        bench.settle()
        bench.engine.event("unmanage", address=0, bytes=5 * BLOCK)
        bench.manage(0, 5)
    return bench


def test_a_fault_on_a_block_on_its_way_is_late_and_used_once():
    bench = prefetching()
    before = bench.engine.stats
    bench.fault(0)
    assert brief(bench.drain()) == ["prefetch 0!", "prefetch 4"]
    bench.fault(4, 4)
    bench.fault(0)  # a fault of its own is on its way: nothing new
    stats = bench.engine.stats
    assert stats["late"] - before["late"] == 1
    assert stats["prefetch_used"] - before["prefetch_used"] == 1
    assert stats["faults"] - before["faults"] == 1
    bench.settle()
    bench.fault(4, 0)  # resident by now
    assert bench.drain() == []
    assert bench.engine.stats["faults"] - before["faults"] == 1


def test_a_fault_on_a_block_that_waits_goes_first():
    bench = prefetching(window=1)
    before = bench.engine.stats
    bench.fault(0)
    assert brief(bench.drain()) == ["prefetch 0!"]
    assert bench.engine.inspect(1)["queued"]
    bench.fault(1)
    assert not bench.engine.inspect(1)["ahead"]
    assert brief(bench.drain()) == ["prefetch 1!"]
    stats = {name: value - before[name] for name, value in bench.engine.stats.items()}
    assert stats == {
        "launches": 0, "faults": 1, "misses": 0, "prefetched": 1, "prefetch_used": 1, "late": 1,
        "wasted": 0, "pre_evicted": 0, "demand_evicted": 0, "discarded": 0, "refused": 0,
    }  # fmt: skip


@pytest.mark.parametrize("state", ["absent", "queued", "incoming", "resident"])
def test_a_faulted_block_stays_until_its_launch_completes(state):
    # In whatever state the fault finds the block: the running launch is known to need it.
    bench = prefetching(window=1)
    bench.launch(9)
    bench.fault(0)
    if state == "resident":
        bench.settle()
    elif state == "incoming":
        bench.drain()
        bench.carry_out([("prefetch", 0, 1, True, 1)])
        assert brief(bench.drain()) == ["prefetch 4"]
    bench.fault({"absent": 6, "queued": 3, "incoming": 4, "resident": 1}[state])
    pinned = {"absent": 6, "queued": 3, "incoming": 4, "resident": 1}[state]
    assert bench.engine.inspect(pinned)["pinned"] == 1
    bench.settle()
    bench.launch(9)
    bench.fault(pinned)
    assert bench.engine.inspect(pinned)["pinned"] == 1  # launch 1 is the one that runs
    bench.complete(1)
    bench.fault(pinned)
    assert bench.engine.inspect(pinned)["pinned"] == 2
    bench.complete()
    bench.fault(2)
    assert bench.engine.inspect(2)["pinned"] == 0  # nothing runs


def test_named_ranges_pin_for_their_launch_only():
    bench = Bench(8)
    bench.name(1, 2)
    bench.engine.event("range", address=4 * BLOCK + 1, bytes=BLOCK)  # the second half lies in 5
    bench.engine.event("range", address=5000 * BLOCK, bytes=1)  # not ours
    bench.launch(1)
    bench.launch(1)
    assert [bench.engine.inspect(b)["pinned"] for b in range(7)] == [0, 1, 1, 0, 1, 1, 0]


def test_a_fault_waits_in_turn_for_a_frame():
    bench = Bench(1)
    bench.touch(0)
    bench.fault(1, 2)
    assert brief(bench.drain()) == ["evict 0!"]
    assert bench.drain() == []  # the frame comes free when the copy ends
    bench.engine.event("departed", address=0)
    assert brief(bench.drain()) == ["prefetch 1!"]
    assert bench.drain() == []
    bench.engine.event("arrived", address=BLOCK)
    assert brief(bench.drain()) == ["evict 1!"]
    bench.engine.event("departed", address=BLOCK)
    assert brief(bench.drain()) == ["prefetch 2!"]


def test_a_fault_on_a_block_on_its_way_out_waits_for_it():
    bench = Bench(2)
    bench.touch(0, 1)
    bench.fault(2)
    assert brief(bench.drain()) == ["evict 0!"]
    bench.fault(0, 1)
    assert bench.drain() == []
    bench.engine.event("departed", address=0)
    assert brief(bench.drain()) == ["prefetch 2!", "evict 1!"]
    bench.settle()


def test_nothing_can_be_evicted_that_the_running_kernel_needs():
    bench = Bench(2)
    bench.launch(1)
    bench.touch(0, 1)
    bench.fault(2)
    assert bench.drain() == []  # every frame is held
    bench.complete()
    assert brief(bench.settle()) == ["evict 0!", "prefetch 2!"]


def test_runs_of_neighbours_are_one_command():
    bench = Bench(64)
    bench.fault(5, 6, 7, 9, 10, 8, *range(20, 38))
    assert bench.drain() == [
        ("prefetch", 5, 3, True, 1),
        ("prefetch", 9, 2, True, 1),
        ("prefetch", 8, 1, True, 1),
        ("prefetch", 20, 16, True, 1),
        ("prefetch", 36, 2, True, 1),
    ]


# -- setting up -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be between 1"),
        ({"budget": 1 << 32}, "budget must be between 1"),
        ({"window": 0}, "window and max_run must be at least 1"),
        ({"max_run": 0}, "window and max_run must be at least 1"),
        ({"low": 5, "high": 4}, r"high \(4\) must not be below low \(5\)"),
        ({"rows": 0}, "rows must be"),
        ({"ways": 65}, "ways must be"),
        ({"successors": 0}, "successors must be"),
        ({"levels": 9}, "levels must be"),
    ],
)
def test_impossible_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Engine(**{"budget": 64, "policy": native("noop"), **options})
    with pytest.raises(TypeError):
        Engine(64, None)
    with pytest.raises(OverflowError):
        Engine(64, native("noop"), depth=-1)


def test_settings_at_their_limits():
    for options in ({"budget": 1}, {"budget": (1 << 32) - 1}, {"low": 4, "high": 4}):
        e = Engine(**{"budget": 64, "policy": native("noop"), **options})
        e.event("manage", bytes=BLOCK)
        e.event("fault")
        assert brief(decode(e.drain())) == ["prefetch 0!"]
    assert Engine((1 << 32) - 1, native("noop")).budget == (1 << 32) - 1


def test_chaining_has_a_greatest_depth():
    engine(64, "chained", depth=1023)
    with pytest.raises(ValueError, match="depth must be at most 1023 kernels, not 1024"):
        engine(64, "chained", depth=1024)
    # A policy that cannot serve does not get the job.
    e = engine(64, "noop", depth=1024)
    with pytest.raises(ValueError, match="at most 1023"):
        e.set_policy(native("chained"))
    assert e.policy.name == "noop"
    with pytest.raises(TypeError):
        e.set_policy(None)


def test_every_event_has_a_name():
    assert sorted(EVENT_TYPES.values()) == [*range(1, 11)]


# -- what live backends ask for -------------------------------------------------------------------


def test_a_range_that_has_its_frames_is_resident_as_far_as_there_are_any():
    e = engine(3, native("noop"))
    e.event("manage", address=2 * BLOCK, bytes=5 * BLOCK, flags=1)
    assert [e.state(k) for k in range(2, 7)] == ["resident"] * 3 + ["absent"] * 2
    assert e.free_frames == 0
    e.check()
    e.event("fault", address=5 * BLOCK)
    assert brief(decode(e.drain())) == ["evict 2!"]


def test_a_gated_launch_asks_for_what_it_names():
    e = engine(8, native("noop"), gated=True, low=0, high=0)
    e.event("manage", address=0, bytes=6 * BLOCK)
    e.event("range", address=BLOCK + 5, bytes=2 * BLOCK)
    e.event("launch", exec_id=7)
    assert brief(decode(e.drain())) == ["prefetch 1-3!"]
    assert e.stats["misses"] == 3
    assert e.stats["faults"] == 0
    assert e.pinned == 3
    e.event("range", address=2 * BLOCK, bytes=3 * BLOCK)
    e.event("launch", exec_id=8)
    assert e.stats["misses"] == 4
    assert e.pinned == 4
    e.event("complete", seq=1)
    assert e.pinned == 3
    e.event("complete", seq=2)
    assert e.pinned == 0


def test_a_gated_launch_misses_nothing_that_is_there():
    e = engine(8, native("noop"), gated=True, low=0, high=0)
    e.event("manage", address=0, bytes=6 * BLOCK)
    for exec_id in (7, 8):
        e.event("range", address=BLOCK, bytes=2 * BLOCK)
        e.event("launch", exec_id=exec_id)
        assert e.stats["misses"] == 2
        if exec_id == 7:
            assert brief(decode(e.drain())) == ["prefetch 1-2!"]
            for block in (1, 2):
                e.event("arrived", address=block * BLOCK)
    assert brief(decode(e.drain())) == []
    e.event("complete", seq=2)
    assert e.pinned == 0


def test_memory_that_a_waiting_launch_may_use_is_not_dropped():
    e = engine(2, native("chained"), frees_early=True, low=0, high=0)
    e.event("manage", address=0, bytes=4 * BLOCK, flags=1)
    e.event("alloc", address=0, bytes=BLOCK)
    e.event("launch", exec_id=1)
    e.event("free", address=0, bytes=BLOCK)
    assert e.inspect(0)["inactive"]
    e.event("fault", address=2 * BLOCK)
    e.event("fault", address=3 * BLOCK)
    # Block 1 is free of everything and is dropped; block 0 may be in use yet, so it is copied.
    assert brief(decode(e.drain())) == ["discard 1!", "prefetch 2!", "evict 0!"]
    e.event("complete", seq=1)
    assert e.stats["discarded"] == 1


def test_frames_for_all_faults_are_freed_at_once_where_the_backend_can():
    # As many as may be on their way at once: half of the budget here.
    for batches, evicted in ((False, ["evict 0!"]), (True, ["evict 0-1!"])):
        e = engine(4, native("noop"), batches_demand=batches)
        e.event("manage", address=0, bytes=4 * BLOCK, flags=1)
        e.event("manage", address=8 * BLOCK, bytes=4 * BLOCK)
        for k in (8, 9, 10):
            e.event("fault", address=k * BLOCK)
        assert brief(decode(e.drain())) == evicted


def test_the_same_fault_again_counts_once():
    e = engine(1, native("noop"))
    e.event("manage", address=0, bytes=2 * BLOCK, flags=1)
    for _ in range(3):
        e.event("fault", address=BLOCK + 4096)
    assert e.stats["faults"] == 1


def test_contents_are_kept_once_it_is_not_known_what_runs():
    e = engine(1, native("chained"))
    e.event("manage", address=0, bytes=2 * BLOCK, flags=1)
    e.keep_contents()
    e.event("fault", address=BLOCK)
    assert brief(decode(e.drain())) == ["evict 0!"]


def test_a_search_for_victims_is_not_resumed_at_a_block_that_came_back():
    bench = Bench(4, blocks=8)
    bench.run(1, 0, 1, 2, 3)
    bench.name(0)
    bench.launch(2)
    assert brief(bench.touch(4)) == ["evict 1!", "prefetch 4!"]  # 0 was passed over
    bench.engine.event("unmanage", address=0, bytes=BLOCK)
    bench.manage(0, 1)
    bench.touch(0)  # the last in the order now: nothing follows it
    assert brief(bench.touch(5)) == ["evict 2!", "prefetch 5!"]

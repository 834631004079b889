# SPDX-License-Identifier: Apache-2.0
"""Frames, host places and addresses, each beside a plain model of it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.how_many import examples

from deepum._core.chunk_map import ChunkMap
from deepum._core.frame_pool import FramePool
from deepum._core.host_pool import HostPool

SLAB = 128


@given(
    budget=st.integers(1, 100),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 99)), max_size=80),
)
@examples(200)
def test_frames_can_be_had_while_the_budget_has_room(
    budget: int, actions: list[tuple[bool, int, int]]
) -> None:
    pool = FramePool(budget)
    used: dict[int, tuple[int, int]] = {}  # frame: (class, handle)
    handles: dict[int, int] = {}  # handle: class, of all frames that there are
    number = 0
    for take, size, which in actions:
        if not take:
            if used:
                frame = sorted(used)[which % len(used)]
                del used[frame]
                pool.gave(frame)
            continue
        room = sum(1 << kind for kind, _ in used.values()) + (1 << size) <= budget
        for _ in range(budget + 2):
            answer, frame = pool.ask(size)
            if answer == "break":
                assert frame is not None
                del handles[pool.removed(frame)]
                continue
            break
        assert (answer != "wait") == room
        if answer == "make":
            number += 1
            handles[number] = size
            frame = pool.made_one(size, number)
        if answer != "wait":
            assert frame is not None
            assert frame not in used
            handle = pool.handle_of(frame)
            assert handles[handle] == size
            assert handle not in [other for _, other in used.values()]
            used[frame] = (size, handle)
        assert pool.made == sum(1 << kind for kind in handles.values()) <= budget
        assert pool.used == sum(1 << kind for kind, _ in used.values())
        assert pool.ever == number


@given(
    limit=st.integers(0, 5 * SLAB),
    actions=st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 99)), max_size=150),
)
@examples(200)
def test_host_places_never_overlap_and_free_ones_become_whole(
    limit: int, actions: list[tuple[bool, int, int]]
) -> None:
    pool = HostPool(limit)
    taken: dict[int, int] = {}  # place: class
    slabs = 0
    for take, size, which in actions:
        if not take:
            if taken:
                place = sorted(taken)[which % len(taken)]
                pool.gave(place, taken.pop(place))
            continue
        if taken:
            assert pool.remove_slab() == 0
        place = pool.ask(size)
        if place is None:
            grown = pool.add_slab((slabs + 1) << 40)
            assert grown == ((slabs + 1) * SLAB <= limit)
            slabs += grown
            place = pool.ask(size)
            assert (place is not None) == grown
        if place is None:
            # No aligned run of that size is free in any slab.
            blocks = {p + i for p, kind in taken.items() for i in range(1 << kind)}
            for start in range(0, slabs * SLAB, 1 << size):
                assert blocks & set(range(start, start + (1 << size)))
            continue
        assert place % (1 << size) == 0
        assert 0 <= place < slabs * SLAB
        for other, kind in taken.items():
            assert place + (1 << size) <= other or other + (1 << kind) <= place
        assert pool.address_of(place) == ((place // SLAB + 1) << 40) + (place % SLAB << 21)
        taken[place] = size
        assert pool.used == sum(1 << kind for kind in taken.values())
    for place, size in taken.items():
        pool.gave(place, size)
    whole = [pool.ask(7) for _ in range(slabs)]
    assert pool.ask(0) is None
    for place in whole:
        assert place is not None
        pool.gave(place, 7)
    assert sorted(pool.remove_slab() >> 40 for _ in range(slabs)) == [*range(1, slabs + 1)]
    assert pool.remove_slab() == 0
    assert pool.ask(0) is None


@given(
    largest=st.sampled_from([1, 2, 8, 16]),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 70), st.integers(0, 99)), max_size=60),
)
@examples(200)
def test_addresses(largest: int, actions: list[tuple[bool, int, int]]) -> None:
    first, count = 1024, 256
    space = ChunkMap(first, count, largest)
    placed: dict[int, int] = {}  # first block: blocks
    for add, blocks, which in actions:
        if not add:
            if placed:
                start = sorted(placed)[which % len(placed)]
                space.remove(start, placed.pop(start))
                assert space.at(start) is None
        elif start := space.add(blocks):
            assert first <= start <= first + count - blocks
            for other, size in placed.items():
                assert start + blocks <= other or other + size <= start
            placed[start] = blocks
        else:
            align = max(k for k in (1, 2, 4, 8, 16) if k <= min(blocks, largest))
            for hole, size in space.holes:
                at = -(-hole // align) * align
                assert at + blocks > hole + size
        ranges = sorted([*placed.items(), *space.holes])  # they make up the whole, in order
        assert ranges[0][0] == first
        assert sum(size for _, size in ranges) == count
        for (a, size), (b, _) in pairwise(ranges):
            assert a + size == b
        assert all(a + size < b for (a, size), (b, _) in pairwise(space.holes))
        for start, blocks in placed.items():
            at = start
            while at < start + blocks:
                found = space.at(at)
                assert found is not None
                assert found[0] == at
                size = found[1]
                assert size <= largest
                assert at % size == 0
                left = start + blocks - at
                assert 2 * size > min(left, largest) or at % (2 * size)
                assert all(space.at(at + i) == found for i in range(size))
                at += size
            assert at == start + blocks


def test_a_frame_of_another_size_is_broken_up_for_want_of_room() -> None:
    pool = FramePool(16)
    answer, _ = pool.ask(4)
    assert answer == "make"
    large = pool.made_one(4, 77)
    assert pool.ask(0) == ("wait", None)
    pool.gave(large)
    assert pool.ask(0) == ("break", large)
    assert pool.removed(large) == 77
    assert pool.ask(0)[0] == "make"


@pytest.mark.parametrize("size", range(8))
def test_a_slab_holds_as_many_places_as_fit(size: int) -> None:
    pool = HostPool(SLAB)
    assert pool.add_slab(1 << 30)
    places = {pool.ask(size) for _ in range(SLAB >> size)}
    assert len(places) == SLAB >> size
    assert None not in places
    assert pool.ask(0) is None

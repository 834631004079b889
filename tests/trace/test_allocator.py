# SPDX-License-Identifier: Apache-2.0
"""The model of the caching allocator: an example done by hand, and what always holds."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepum.errors import TraceError
from deepum.record.allocator import BASE, TOP, CachingAllocator
from how_many import examples

KIB, MIB = 1 << 10, 1 << 20


def at(allocator: CachingAllocator, size: int) -> tuple[int, int]:
    block = allocator.alloc(size)
    return block.address - BASE, block.block_bytes


def test_by_hand():
    """Worked out on paper from PyTorch's rules."""
    a = CachingAllocator()
    # The small pool: one 2 MiB segment, cut from its beginning.
    assert at(a, 1) == (0, 512)
    assert at(a, 512) == (512, 512)
    assert at(a, 513) == (1024, 1024)
    assert at(a, MIB) == (2048, MIB)
    # 2 MiB - 2048 - 1 MiB = 1022 KiB are left: 1 MiB needs the next segment, 1023 KiB too.
    assert at(a, 1023 * KIB) == (2 * MIB, 1023 * KIB)
    # Best fit: 1022 KiB free in the first segment, 1025 KiB in the second.
    assert at(a, 1022 * KIB) == (2048 + MIB, 1022 * KIB)
    # The large pool: 1 MiB + 1 byte is a large request, in a segment of 20 MiB.
    assert at(a, MIB + 1) == (4 * MIB, MIB + 512)
    assert at(a, 8 * MIB) == (5 * MIB + 512, 8 * MIB)
    # 11 MiB - 512 are left; 10 MiB fit, and the 1 MiB - 512 over are not split off.
    assert at(a, 10 * MIB) == (13 * MIB + 512, 11 * MIB - 512)
    # 10 MiB and more get a segment of their own size, rounded up to 2 MiB.
    assert at(a, 10 * MIB) == (24 * MIB, 10 * MIB)
    assert at(a, 11 * MIB) == (34 * MIB, 12 * MIB)  # 1 MiB over: not more than 1 MiB, so not split
    assert a.reserved_bytes == (2 + 2 + 20 + 10 + 12) * MIB
    assert [(s - BASE, n) for s, n in a.segments] == [
        (0, 2 * MIB),
        (2 * MIB, 2 * MIB),
        (4 * MIB, 20 * MIB),
        (24 * MIB, 10 * MIB),
        (34 * MIB, 12 * MIB),
    ]
    assert a.allocated_bytes == 2 * MIB + 1023 * KIB + 20 * MIB + 10 * MIB + 12 * MIB


def test_splits_at_the_limits():
    a = CachingAllocator()
    assert at(a, MIB)[1] == MIB
    assert at(a, MIB - 512)[1] == MIB - 512  # 512 bytes over: split off
    assert at(a, 512) == (2 * MIB - 512, 512)
    b = CachingAllocator()
    b.free(b.alloc(20 * MIB).address)
    assert at(b, 19 * MIB) == (0, 20 * MIB)  # exactly 1 MiB over: kept
    b.free(BASE)
    assert at(b, 19 * MIB - 512) == (0, 19 * MIB - 512)  # more: split off
    assert at(b, MIB + 512) == (19 * MIB - 512, MIB + 512)
    assert b.reserved_bytes == 20 * MIB


def test_freed_memory_merges_with_both_neighbours():
    a = CachingAllocator()
    x, y, z = (a.alloc(4 * MIB).address for _ in range(3))
    for address in (x, z, y):
        a.free(address)
    assert a.allocated_bytes == 0
    assert at(a, 20 * MIB) == (0, 20 * MIB)
    assert a.reserved_bytes == 20 * MIB


def test_the_best_fit_is_taken_and_the_lowest_of_equals():
    a = CachingAllocator()
    sizes = (6, 2, 4, 2, 4, 2)
    addresses = [a.alloc(n * MIB).address for n in sizes]
    for i in (0, 2, 4):
        a.free(addresses[i])
    assert a.alloc(4 * MIB).address == addresses[2]
    assert a.alloc(3 * MIB).address == addresses[4]
    assert a.alloc(3 * MIB).address == addresses[0]


def test_pools_are_separate():
    a = CachingAllocator()
    a.free(a.alloc(20 * MIB).address)
    assert at(a, MIB) == (20 * MIB, MIB)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: CachingAllocator(4096), "base 0x1000 is not a multiple of 2 MiB below 2^47"),
        (lambda: CachingAllocator(TOP), "is not a multiple of 2 MiB below 2^47"),
        (lambda: CachingAllocator().alloc(0), "cannot allocate 0 bytes"),
        (lambda: CachingAllocator().alloc(-5), "cannot allocate -5 bytes"),
        (lambda: CachingAllocator().free(BASE), "no block is allocated at 0x7f0000000000"),
        (lambda: CachingAllocator().alloc(TOP), "bytes do not fit below address 2"),
    ],
)
def test_errors(call, text):
    with pytest.raises(TraceError, match=text.replace("^", r"\^")):
        call()


def test_it_is_fast():
    """Hundreds of thousands of calls a second when alone; far fewer must pass on a busy machine."""
    a = CachingAllocator()
    begin = time.process_time()
    live = []
    for i in range(20_000):
        live.append(a.alloc(((i * 7919) % 3000 + 1) * 1000).address)
        if i % 3:
            a.free(live.pop((i * 31) % len(live)))
    assert time.process_time() - begin < 2.0


SIZES = st.one_of(
    st.integers(1, 2 * KIB),
    st.integers(1, 24 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 19 * MIB, 20 * MIB]),
)


class Machine(RuleBasedStateMachine):
    """Any calls: blocks lie in segments, never overlap, and never merge across segments."""

    def __init__(self):
        super().__init__()
        self.allocator = CachingAllocator()
        self.twin = CachingAllocator()
        self.live: list[tuple[int, int]] = []

    @rule(size=SIZES)
    def alloc(self, size):
        before = self.allocator.reserved_bytes
        block = self.allocator.alloc(size)
        assert block == self.twin.alloc(size)
        assert block.block_bytes >= size
        assert block.address % 512 == block.block_bytes % 512 == 0
        waste = block.block_bytes - size
        assert waste < 512 or (size > MIB and waste < MIB + 512)
        self.live.append((block.address, block.block_bytes))
        if self.allocator.reserved_bytes > before:
            segment = self.allocator.segments[-1]
            assert segment[0] == block.address
            assert segment[1] == self.allocator.reserved_bytes - before

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        address, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.allocator.free(address)
        self.twin.free(address)
        with pytest.raises(TraceError, match="no block is allocated"):
            self.allocator.free(address)

    @invariant()
    def blocks_do_not_overlap(self):
        blocks = sorted(self.live)
        segments = self.allocator.segments
        assert self.allocator.allocated_bytes == sum(n for _, n in blocks)
        assert self.allocator.reserved_bytes == sum(n for _, n in segments)
        for (a, n), (b, _) in pairwise(blocks):
            assert a + n <= b
        for a, n in blocks:
            assert sum(s <= a and a + n <= s + m for s, m in segments) == 1
        for (s, m), (t, _) in pairwise(segments):
            assert s + m == t
            assert s % (2 * MIB) == 0

    def teardown(self):
        """With everything freed, each segment is one free block again."""
        for address, _ in self.live:
            self.allocator.free(address)
        reserved = self.allocator.reserved_bytes
        starts = {s for s, _ in self.allocator.segments}
        for _, size in sorted(self.allocator.segments, key=lambda s: s[1]):
            first = MIB if size == 2 * MIB else size
            assert self.allocator.alloc(first).address in starts
            if first < size:
                self.allocator.alloc(size - first)
        assert self.allocator.reserved_bytes == reserved


TestMachine = Machine.TestCase
TestMachine.settings = examples(25, stateful_step_count=30, deadline=None)


@given(st.lists(SIZES, min_size=1, max_size=30))
@examples(30)
def test_addresses_repeat(sizes):
    """Iterations that free all they allocate have the same addresses from the second on."""
    a = CachingAllocator()

    def iteration():
        addresses = [a.alloc(n).address for n in sizes]
        for address in addresses:
            a.free(address)
        return addresses

    iteration()
    reserved = a.reserved_bytes
    assert iteration() == iteration()
    assert a.reserved_bytes == reserved

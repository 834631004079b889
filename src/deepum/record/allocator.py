# SPDX-License-Identifier: Apache-2.0
"""A model of PyTorch's CUDA caching allocator: which addresses a program's tensors get.

Requests are rounded to 512 bytes. Up to 1 MiB they come from the small pool, whose segments are
2 MiB; larger ones from the large pool, whose segments are 20 MiB for requests under 10 MiB and
the request rounded up to 2 MiB otherwise. The smallest free block that fits is taken, the one at
the lowest address among equals. It is split if at least 512 bytes (small pool) or more than 1 MiB
(large pool) would be left over; otherwise the request gets all of it. A freed block merges with
free neighbours of its segment and stays with the allocator: nothing goes back to the driver unless
`CachingAllocator.release_cached` is called, because unified memory never runs out. Plain device
memory does: with a limit the steps of an allocation, `from_cache` and `from_driver`, can fail.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from ..errors import TraceError

KIB, MIB = 1 << 10, 1 << 20
ROUND = 512
SMALL_REQUEST = 1 * MIB
SMALL_SEGMENT = 2 * MIB
MEDIUM_REQUEST = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
ROUND_SEGMENT = 2 * MIB
LARGE_REMAINDER = 1 * MIB

BASE = 0x7F00_0000_0000
TOP = 1 << 47


@dataclass(frozen=True, slots=True)
class Block:
    """What an allocation got: a PT block."""

    address: int
    block_bytes: int


class _Piece:
    """A stretch of a segment, free or in use, chained to its neighbours."""

    __slots__ = ("address", "free", "next", "pool", "prev", "size")

    def __init__(self, address: int, size: int, pool: list[tuple[int, int]]) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.free = False
        self.prev: _Piece | None = None
        self.next: _Piece | None = None


def _segment_bytes(size: int) -> int:
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < MEDIUM_REQUEST:
        return MEDIUM_SEGMENT
    return -(-size // ROUND_SEGMENT) * ROUND_SEGMENT


class CachingAllocator:
    """Gives out addresses as PyTorch's caching allocator would.

    The same sequence of calls gives the same addresses. Segments lie one after the other from
    ``base``, a multiple of 2 MiB. All of them together never exceed ``limit`` bytes, if given.
    """

    def __init__(self, base: int = BASE, limit: int | None = None) -> None:
        if base % ROUND_SEGMENT or not 0 < base < TOP:
            raise TraceError(f"base {base:#x} is not a multiple of 2 MiB below 2^47")
        self.limit = limit
        self._next = base
        self._segments: list[tuple[int, int]] = []
        self._small: list[tuple[int, int]] = []  # free pieces (size, address), sorted
        self._large: list[tuple[int, int]] = []
        self._used: dict[int, _Piece] = {}
        self._free: dict[int, _Piece] = {}
        self._allocated = 0
        self._reserved = 0

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Regions got from the driver: (address, bytes), by address."""
        return list(self._segments)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return self._reserved

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks in use."""
        return self._allocated

    @property
    def largest_free(self) -> int:
        """Size of the largest block that an allocation could get without anything being freed."""
        cached = max((pool[-1][0] for pool in (self._small, self._large) if pool), default=0)
        return cached if self.limit is None else max(cached, self.limit - self._reserved)

    def alloc(self, size: int) -> Block:
        """Allocate ``size`` bytes, at least one."""
        block = self.from_cache(size) or self.from_driver(size)
        if block is None:
            raise TraceError(f"{size} bytes do not fit below a limit of {self.limit} bytes")
        return block

    def from_cache(self, size: int) -> Block | None:
        """Allocate from a cached free block; None if there is none that fits."""
        size, pool = self._request(size)
        i = bisect_left(pool, (size, 0))
        if i == len(pool):
            return None
        return self._use(self._free.pop(pool.pop(i)[1]), size)

    def from_driver(self, size: int) -> Block | None:
        """Allocate from a new segment; None if the limit forbids it."""
        size, pool = self._request(size)
        if self.limit is not None and self._reserved + _segment_bytes(size) > self.limit:
            return None
        return self._use(self._grow(size, pool), size)

    def segment_for(self, size: int) -> tuple[int, int]:
        """Return (address, bytes) of the segment that `from_driver` would get for a request."""
        return self._next, _segment_bytes(self._request(size)[0])

    def release_cached(self) -> int:
        """Give the segments in which nothing is allocated back to the driver; return bytes."""
        whole = [p for p in self._free.values() if p.prev is None and p.next is None]
        for piece in whole:
            self._take(piece)
            self._segments.remove((piece.address, piece.size))
            self._reserved -= piece.size
        return sum(piece.size for piece in whole)

    def reach(self, address: int) -> int:
        """Return the size of the free block that freeing the block at an address would leave."""
        piece = self._used[address]
        around = (piece.prev, piece.next)
        return piece.size + sum(near.size for near in around if near is not None and near.free)

    def segment_of(self, address: int) -> int:
        """Return the size of the segment in which the block at an address lies."""
        piece = self._used[address]
        total = piece.size
        before, after = piece.prev, piece.next
        while before is not None:
            total, before = total + before.size, before.prev
        while after is not None:
            total, after = total + after.size, after.next
        return total

    def _request(self, size: int) -> tuple[int, list[tuple[int, int]]]:
        if size <= 0:
            raise TraceError(f"cannot allocate {size} bytes")
        size = -(-size // ROUND) * ROUND
        return size, self._small if size <= SMALL_REQUEST else self._large

    def _use(self, piece: _Piece, size: int) -> Block:
        pool = piece.pool
        rest = piece.size - size
        if rest >= ROUND if pool is self._small else rest > LARGE_REMAINDER:
            self._split(piece, size)
        piece.free = False
        self._used[piece.address] = piece
        self._allocated += piece.size
        return Block(piece.address, piece.size)

    def free(self, address: int) -> None:
        """Free the block at an address."""
        piece = self._used.pop(address, None)
        if piece is None:
            raise TraceError(f"no block is allocated at {address:#x}")
        self._allocated -= piece.size
        before, after = piece.prev, piece.next
        if after is not None and after.free:
            self._take(after)
            self._absorb(piece, after)
        if before is not None and before.free:
            self._take(before)
            self._absorb(before, piece)
            piece = before
        self._give(piece)

    def _grow(self, size: int, pool: list[tuple[int, int]]) -> _Piece:
        segment = _segment_bytes(size)
        address = self._next
        if address + segment > TOP:
            raise TraceError(f"{size} bytes do not fit below address 2^47")
        self._next += segment
        self._segments.append((address, segment))
        self._reserved += segment
        return _Piece(address, segment, pool)

    def _split(self, piece: _Piece, size: int) -> None:
        rest = _Piece(piece.address + size, piece.size - size, piece.pool)
        piece.size = size
        rest.prev, rest.next = piece, piece.next
        if piece.next is not None:
            piece.next.prev = rest
        piece.next = rest
        self._give(rest)

    def _give(self, piece: _Piece) -> None:
        piece.free = True
        self._free[piece.address] = piece
        insort(piece.pool, (piece.size, piece.address))

    def _take(self, piece: _Piece) -> None:
        del self._free[piece.address]
        del piece.pool[bisect_left(piece.pool, (piece.size, piece.address))]

    @staticmethod
    def _absorb(piece: _Piece, after: _Piece) -> None:
        piece.size += after.size
        piece.next = after.next
        if after.next is not None:
            after.next.prev = piece

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The address space of a session: where segments lie, and the chunks that they are divided into.

A segment is divided as `deepum._core.residency` divides it: into the largest powers of two that
fit and that its blocks' numbers are multiples of. What is kept of a chunk is kept with its first
block.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from deepum._core.exec_table cimport NONE
from deepum._core.frame_pool cimport class_of
from deepum._core.residency cimport chunk_blocks


@cython.final
cdef class ChunkMap:
    """Segments and their chunks. Not safe to share without a lock.

    Parameters
    ----------
    first, count : int
        The blocks of 2 MiB that segments may lie in; `first` is a multiple of `largest`.
    largest : int
        The most blocks of one chunk, a power of two.
    """

    def __cinit__(self, uint64_t first, uint64_t count, uint32_t largest):
        self.first = first
        self.count = count
        self.largest = largest
        self.chunks = <Chunk*>calloc(count, sizeof(Chunk))     # pages that nobody uses cost nothing
        if self.chunks == NULL or not self.reserve():
            raise MemoryError()
        self.spans[0].start = first
        self.spans[0].count = count
        self.span_count = 1

    def __dealloc__(self):
        free(self.chunks)
        free(self.spans)

    cdef bint reserve(self) noexcept nogil:
        # Room for two spans more.
        cdef uint32_t capacity
        cdef void* memory
        if self.span_count + 2 <= self.span_capacity:
            return True
        capacity = self.span_capacity * 2 if self.span_capacity else 64
        memory = realloc(self.spans, capacity * sizeof(Span))
        if memory == NULL:
            return False
        self.spans = <Span*>memory
        self.span_capacity = capacity
        return True

    cdef Chunk* find(self, uint64_t block) noexcept nogil:
        # The chunk of a block; NULL where no segment lies.
        cdef Chunk* chunk
        if block - self.first >= self.count:
            return NULL
        chunk = &self.chunks[block - self.first]
        chunk -= chunk.lead
        return NULL if chunk.state == NO_CHUNK else chunk

    cdef uint64_t block_of(self, Chunk* chunk) noexcept nogil:
        return self.first + <uint64_t>(chunk - self.chunks)

    cdef uint64_t place(self, uint64_t blocks) noexcept nogil:
        # Find addresses for a segment and divide it. The smallest hole that will do; 0 if none.
        cdef uint64_t align = 1, start, size, at, i, best_start = 0
        cdef uint32_t best = NONE, k
        cdef Chunk* chunk
        while align * 2 <= blocks and align * 2 <= self.largest:
            align *= 2
        for k in range(self.span_count):
            start = (self.spans[k].start + align - 1) & ~(align - 1)
            if (start + blocks <= self.spans[k].start + self.spans[k].count
                    and (best == NONE or self.spans[k].count < self.spans[best].count)):
                best = k
                best_start = start
        if best == NONE or not self.cut(best, best_start, blocks):
            return 0
        at = 0
        while at < blocks:
            size = chunk_blocks(best_start + at, blocks - at, self.largest)
            chunk = &self.chunks[best_start + at - self.first]
            for i in range(size):
                chunk[i].lead = <uint8_t>i
            chunk.size = <uint8_t>class_of(<uint32_t>size)
            chunk.state = AWAY
            at += size
        return best_start

    cdef bint cut(self, uint32_t at, uint64_t start, uint64_t blocks) noexcept nogil:
        # Take blocks out of a hole.
        cdef Span* span
        cdef uint64_t end
        if not self.reserve():
            return False
        span = &self.spans[at]
        end = span.start + span.count
        if start + blocks < end:
            memmove(span + 1, span, (self.span_count - at) * sizeof(Span))
            self.span_count += 1
            span[1].start = start + blocks
            span[1].count = end - start - blocks
        if start == span.start:
            memmove(span, span + 1, (self.span_count - at - 1) * sizeof(Span))
            self.span_count -= 1
        else:
            span.count = start - span.start
        return True

    cdef void vacate(self, uint64_t block, uint64_t blocks) noexcept nogil:
        # The segment is gone, or some of its chunks are. (If there is no memory for one hole more,
        # the addresses are lost.)
        cdef uint32_t k = 0
        memset(&self.chunks[block - self.first], 0, blocks * sizeof(Chunk))
        if not self.reserve():
            return
        while k < self.span_count and self.spans[k].start < block:
            k += 1
        if k and self.spans[k - 1].start + self.spans[k - 1].count == block:
            k -= 1
            self.spans[k].count += blocks
        else:
            memmove(&self.spans[k + 1], &self.spans[k], (self.span_count - k) * sizeof(Span))
            self.span_count += 1
            self.spans[k].start = block
            self.spans[k].count = blocks
        if (k + 1 < self.span_count
                and self.spans[k].start + self.spans[k].count == self.spans[k + 1].start):
            self.spans[k].count += self.spans[k + 1].count
            memmove(&self.spans[k + 1], &self.spans[k + 2],
                    (self.span_count - k - 2) * sizeof(Span))
            self.span_count -= 1

    # -- for tests ---------------------------------------------------------------------------------

    def add(self, uint64_t blocks):
        """Place a segment; return its first block, None if there is no room."""
        return self.place(blocks) or None

    def remove(self, uint64_t block, uint64_t blocks):
        """Take a segment away."""
        self.vacate(block, blocks)

    def at(self, uint64_t block):
        """Return (first block, blocks) of the chunk around a block, or None."""
        cdef Chunk* chunk = self.find(block)
        return None if chunk == NULL else (self.block_of(chunk), blocks_of(chunk))

    @property
    def holes(self):
        """Where nothing lies: (first block, blocks) of each hole."""
        return [(self.spans[i].start, self.spans[i].count) for i in range(self.span_count)]

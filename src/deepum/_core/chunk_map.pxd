# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int8_t, uint8_t, uint32_t, uint64_t

cdef enum ChunkState:
    NO_CHUNK = 0           # no memory lies there
    AWAY = 1               # not mapped; contents, if any, are on the host
    ENTERING = 2           # on its way to the device, or waiting for that
    MAPPED = 3
    LEAVING = 4            # on its way to the host, or waiting for that
    DOOMED = 5             # to be unmapped, and what is in it need not be kept; not begun
    UNMAPPING = 6          # the same, begun
    IN_HOST = 7            # mapped, to host memory


cdef struct Chunk:
    uint32_t frame         # device memory, where there is any
    uint32_t host          # place of its contents on the host, if they are there
    uint64_t handle        # host memory that is mapped in its place
    uint8_t state
    uint8_t size           # class: 2 ** size blocks
    uint8_t lead           # blocks between the first of the chunk and this one
    uint8_t wanted         # to be brought in as soon as it is unmapped
    uint8_t retired        # its segment is given back
    uint8_t copies         # whether what is on its way carries contents
    uint8_t hashed         # the place on the host holds what has this digest ...
    uint8_t doubtful       # ... and the chunk on the device perhaps something else
    uint8_t listed         # among those that do
    int8_t luck            # below 0: a digest when it leaves is of no use
    uint64_t digest[2]


cdef struct Span:
    uint64_t start, count  # blocks


cdef class ChunkMap:
    cdef readonly uint64_t first, count    # blocks
    cdef readonly uint32_t largest         # blocks
    cdef Chunk* chunks
    cdef Span* spans                       # where nothing lies, by address
    cdef uint32_t span_count, span_capacity

    cdef uint64_t place(self, uint64_t blocks) noexcept nogil
    cdef void vacate(self, uint64_t block, uint64_t blocks) noexcept nogil
    cdef bint cut(self, uint32_t at, uint64_t start, uint64_t blocks) noexcept nogil
    cdef bint reserve(self) noexcept nogil
    cdef Chunk* find(self, uint64_t block) noexcept nogil
    cdef uint64_t block_of(self, Chunk* chunk) noexcept nogil


cdef inline uint64_t blocks_of(Chunk* chunk) noexcept nogil:
    return <uint64_t>1 << chunk.size

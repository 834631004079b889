# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    SLAB_BITS = 7          # a slab has 128 blocks
    SLAB_BLOCKS = 128
    NO_ROOM = 0xFFFFFFFF


cdef struct Slab:
    uint64_t address
    bint registered        # memory of ours, pinned where it lay
    uint8_t longest[2 * SLAB_BLOCKS]       # a heap: class + 1 of the largest free run below, or 0


cdef class HostPool:
    cdef readonly uint64_t limit           # blocks
    cdef readonly uint64_t used            # blocks
    cdef Slab** slabs
    cdef readonly uint32_t count
    cdef uint32_t capacity

    cdef uint32_t take(self, uint32_t size) noexcept nogil
    cdef void give(self, uint32_t place, uint32_t size) noexcept nogil
    cdef bint may_grow(self) noexcept nogil
    cdef bint add(self, uint64_t address, bint registered) noexcept nogil
    cdef uint64_t remove(self, bint* registered) noexcept nogil
    cdef uint64_t address(self, uint32_t place) noexcept nogil

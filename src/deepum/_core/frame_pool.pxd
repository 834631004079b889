# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    CLASSES = 7            # sizes of frames: 1, 2, 4 ... 64 blocks
    NO_FRAME_AT_ALL = 0xFFFFFFFF

# What a frame can be had by.
cdef enum Answer:
    FRAME_TAKEN = 0        # it is there
    FRAME_MAKE = 1         # make one, and `add` it
    FRAME_BREAK = 2        # release this one, `removed` already, and ask again
    FRAME_WAIT = 3         # all are in use


cdef struct Places:
    # The frames of one class, by place.
    uint64_t* handles
    uint32_t* free         # places whose frame nobody uses
    uint32_t* empty        # places without a frame
    uint32_t count, capacity, free_count, empty_count


cdef class FramePool:
    cdef readonly uint64_t budget          # blocks
    cdef readonly uint64_t beyond          # blocks that there may be besides
    cdef readonly uint64_t made            # blocks of the frames that there are
    cdef readonly uint64_t used            # blocks of those that are in use
    cdef readonly uint64_t ever            # frames that were ever made
    cdef Places places[CLASSES]

    cdef Answer take(self, uint32_t size, uint32_t* frame) noexcept nogil
    cdef uint32_t add(self, uint32_t size, uint64_t handle) noexcept nogil
    cdef void give(self, uint32_t frame) noexcept nogil
    cdef uint64_t remove(self, uint32_t frame) noexcept nogil
    cdef uint32_t spare(self, uint32_t but) noexcept nogil
    cdef uint64_t handle(self, uint32_t frame) noexcept nogil
    cdef bint grow(self, uint32_t size) noexcept nogil

cdef uint32_t class_of(uint32_t blocks) noexcept nogil


cdef inline uint32_t frame_class(uint32_t frame) noexcept nogil:
    return frame >> 24


cdef inline uint32_t frame_place(uint32_t frame) noexcept nogil:
    return frame & 0xFFFFFF

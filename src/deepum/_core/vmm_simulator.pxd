# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport LAUNCH_RING
from deepum._core.simulator cimport Simulator

cdef enum:
    SIZES = 7                  # chunks of 1, 2, 4 … 64 blocks


cdef struct Lane:
    # One direction of the bus: a chunk at a time, the others wait in order.
    uint32_t* slots
    uint32_t head, size, capacity
    bint busy
    double done
    uint32_t slot              # NONE while a launch uses host memory over the bus


cdef class VmmSimulator(Simulator):
    cdef Lane inward, outward
    cdef double remap[SIZES]   # seconds, by the binary logarithm of a chunk's blocks
    cdef double zero_copy_s    # seconds a byte
    cdef uint32_t ahead
    cdef uint64_t submitted[LAUNCH_RING]   # kernel row of launch s, at s % LAUNCH_RING
    cdef int64_t first         # the next launch has all its chunks before this one
    cdef bint running
    cdef double run_done

    cdef int push(self, Lane* lane, uint32_t slot) except -1 nogil
    cdef uint32_t pop(self, Lane* lane) noexcept nogil
    cdef double upcoming(self) noexcept nogil
    cdef void tick(self, double t) noexcept nogil
    cdef int wait(self) except -1 nogil
    cdef bint admits(self, uint64_t kernel) noexcept nogil
    cdef void start_kernel(self, double t) noexcept nogil
    cdef void use_host_memory(self) noexcept nogil
    cdef int complete_kernel(self) except -1 nogil

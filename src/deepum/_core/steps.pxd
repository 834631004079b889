# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    KERNELS = 1 << 14      # places for kernels; a few thousand are in use
    PENDING = 64           # steps that have been submitted and not finished
    KEPT = 64              # steps whose times are kept


cdef struct Seen:
    uint64_t kernel
    uint64_t seq           # its latest launch, 0 for an empty place


cdef class Steps:
    cdef Seen seen[KERNELS]
    cdef uint32_t known
    cdef uint64_t anchor           # the kernel that begins a step
    cdef uint64_t lap              # launches between its last two
    cdef uint64_t passed           # its last one
    cdef uint32_t agreed           # laps that were alike
    cdef uint32_t longer           # laps in a row that were longer than those
    cdef bint told                 # the program says where its steps end
    cdef uint64_t pending[PENDING]  # their last launches
    cdef uint64_t head, tail
    cdef uint64_t first            # ns: the first launch
    cdef uint64_t began            # ns: the current step, 0 while that is not known
    cdef uint64_t sort             # counts changes of mind about what a step is
    cdef uint64_t times[KEPT]      # ns
    cdef uint64_t ended

    cdef bint launch(self, uint64_t kernel, uint64_t seq, uint64_t now) noexcept nogil
    cdef bint mark(self, uint64_t seq) noexcept nogil
    cdef bint end(self, uint64_t seq) noexcept nogil
    cdef void start_over(self, uint64_t began) noexcept nogil
    cdef void complete(self, uint64_t seq, uint64_t now) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.conductor cimport Conductor, Mover


cdef class ExactMover(Mover):
    # Moves memory that is nowhere unless it was brought.
    cdef int lend(self, uint64_t block) noexcept nogil
    cdef int take_back(self, uint64_t block) noexcept nogil
    cdef void stale(self, uint64_t block) noexcept nogil
    cdef void retire(self, uint64_t address, uint64_t size) noexcept nogil
    cdef const char* trouble(self) noexcept nogil
    cdef uint64_t refused(self) noexcept nogil


cdef class VmmConductor(Conductor):
    cdef ExactMover exact          # the mover
    cdef uint32_t finishing, quiet
    cdef uint32_t* named           # slots that the next launch names
    cdef uint32_t named_count, named_capacity
    cdef uint64_t* stamps          # by slot: the launch that named it last
    cdef uint32_t stamp_count
    cdef uint64_t gathered         # the launch that `named` is of
    cdef uint32_t* lent            # slots in host memory, for one launch
    cdef uint32_t lent_count, lent_capacity
    cdef uint64_t lent_to
    cdef uint64_t refused_before
    cdef uint64_t lent_blocks_now  # blocks that launches used in host memory
    cdef uint64_t refused_then     # chunks that had stayed when something moved last

    cdef int unblock(self) except -1 nogil
    cdef int gather(self, uint64_t seq) except -1 nogil
    cdef int lend_rest(self) except -1 nogil
    cdef int end_loan(self) except -1 nogil
    cdef int stop_short(self, const char* why) except -1 nogil
    cdef void look_for_rest(self) noexcept nogil

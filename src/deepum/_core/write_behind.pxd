# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine

cdef enum:
    TOUCHES = 64           # of a chunk in a step that are told apart
    WAITING = 8192         # touches that wait to be looked at
    UNSAVED = 255
    LEARNING = 2           # steps before any chunk is saved: the first are unlike the others
    RETRY = 64             # steps after which all is tried again


cdef struct Touch:
    uint64_t seq           # launch
    uint32_t slot
    uint32_t touch


cdef struct Record:
    uint64_t not_worth     # bit k: to save it after touch k of a step was for nothing
    uint8_t touches        # in this step
    uint8_t saved          # the touch after which the host's copy was made; UNSAVED if elsehow
    uint8_t saving         # as soon as it is made


cdef class WriteBehind:
    cdef Record* records   # by slot
    cdef uint32_t count
    cdef Touch ring[WAITING]
    cdef uint64_t head, tail
    cdef uint64_t steps

    cdef int grow(self, uint32_t slots) except -1 nogil
    cdef bint touched(self, uint32_t slot, uint64_t seq) noexcept nogil
    cdef uint32_t choose(self, Engine engine) noexcept nogil
    cdef bint ended(self, uint32_t slot, bint copied) noexcept nogil
    cdef void failed(self, uint32_t slot) noexcept nogil
    cdef void left(self, uint32_t slot, bint in_vain) noexcept nogil
    cdef void end_step(self) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine
from deepum._core.furthest cimport Furthest, Use

cdef enum:
    MAX_LAP = 1 << 14          # launches that are looked ahead at most


cdef struct Node:
    uint64_t launch
    uint32_t after             # the slot's next use, or the next free node


cdef class Foresight:
    cdef uint32_t* expected    # kernel predicted for launch s, at s % MAX_LAP
    cdef uint64_t forgotten    # times that all foreseen was thrown away
    cdef uint64_t reached      # launch up to which there is a prediction
    cdef uint32_t context[4]   # predicted kernels up to there, nearest first
    cdef uint64_t lap          # longest way from a kernel's launch to its next one: a step
    cdef uint64_t* seen        # kernel -> its latest launch
    cdef uint32_t seen_count
    cdef uint64_t settled      # launch whose blocks have been filed under their next use
    cdef uint32_t* first       # slot -> its nearest predicted use
    cdef uint32_t* last        # slot -> its furthest
    cdef uint32_t slots
    cdef Node* nodes
    cdef uint32_t node_count, node_capacity, spare
    cdef uint32_t strangers    # latest launches in a row that were not foreseen
    cdef bint filed            # whether resident blocks are filed, which they are once needed
    cdef Furthest due          # resident blocks by next use; checked when popped
    cdef uint32_t most         # entries in it at which it is made anew
    cdef Furthest aside        # of these, what cannot go before the running launch has ended

    cdef int begin(self, Engine engine) except -1 nogil
    cdef int follow(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil
    cdef int complete(self, Engine engine, uint64_t seq) except -1 nogil
    cdef int arrived(self, Engine engine, uint32_t slot) except -1 nogil
    cdef bint ripe(self, Engine engine) noexcept nogil
    cdef bint short_of(self, Engine engine, uint64_t position) noexcept nogil
    cdef uint64_t next_use(self, Engine engine, uint32_t slot) noexcept nogil
    cdef int64_t victim(self, Engine engine, uint64_t beyond) except? -2 nogil
    cdef uint64_t bytes_used(self) noexcept nogil

    cdef int file(self, Engine engine) except -1 nogil
    cdef int look(self, Engine engine, uint32_t steps) except -1 nogil
    cdef int foresee(self, Engine engine, uint32_t kernel) except -1 nogil
    cdef int grow(self, Engine engine) except -1 nogil
    cdef int note(self, uint32_t kernel, uint64_t seq) except -1 nogil
    cdef int append(self, Engine engine, uint32_t slot, uint64_t launch) except -1 nogil

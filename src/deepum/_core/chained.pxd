# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.block_table cimport Walk
from deepum._core.engine cimport Engine, NativePolicy
from deepum._core.foresight cimport Foresight

cdef enum:
    MAX_DEPTH = 1024


cdef class ChainedPolicy(NativePolicy):
    cdef bint active               # a chain is under way, or paused
    cdef uint64_t position         # launch that the chain has reached
    cdef uint32_t context[4]       # predicted kernels up to there, nearest first
    cdef uint32_t expected[MAX_DEPTH]   # kernel predicted for launch s, at s % MAX_DEPTH
    cdef uint32_t spoken[MAX_DEPTH]     # blocks that the chain wants for launch s
    cdef uint64_t spoken_total
    cdef uint64_t settled          # launch up to which `spoken` has been taken back
    cdef Walk walk                 # inside the table of context[0]
    cdef uint32_t fault_kernel     # kernel whose table holds the blocks after a new fault
    cdef uint64_t fault_position
    cdef Walk fault_walk
    cdef bint fault_active
    cdef bint next_use             # victims are what is needed last
    cdef bint gated                # and nothing is fetched in place of what is needed sooner
    cdef Foresight foresight
    cdef uint64_t* named           # kernel -> hash of what it named last
    cdef uint32_t named_count
    cdef uint32_t held             # block of the walk that waits for a frame; NONE for none

    cdef int learn_ranges(self, Engine engine, uint32_t kernel) except -1 nogil
    cdef bint changed(self, uint32_t kernel, uint64_t names) except -1 nogil
    cdef bint waits(self, Engine engine, uint32_t block) except -1 nogil
    cdef int walk_table(self, Engine engine) except -1 nogil
    cdef int restart(self, Engine engine) except -1 nogil

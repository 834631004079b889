# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum Drop:
    KEPT = 0               # nothing is to be dropped
    DUE = 1                # the engine has asked for it
    GOING = 2              # the driver is at it


cdef struct PtBlock:
    uint64_t start, size   # bytes; size 0 is none


cdef struct Row:
    uint64_t number        # UM block
    int64_t active         # bytes of active PT blocks in it
    uint32_t drop          # a Drop
    uint32_t begins        # whether a segment begins with it: no move goes across
    uint32_t count, capacity
    PtBlock covering       # active PT block that begins before this UM block and reaches into it
    PtBlock* starts        # those that begin in it, in order


cdef class MemoryMap:
    cdef Row** chunks      # rows never move: a thread that drops a block holds on to one
    cdef uint32_t chunk_count, row_count
    cdef uint32_t* index   # open addressing: number -> row + 1
    cdef uint32_t mask
    cdef uint64_t low, high  # nothing managed lies outside

    cdef Row* row(self, uint64_t number) noexcept nogil
    cdef void enter(self, uint64_t number, uint32_t row) noexcept nogil
    cdef Row* add_row(self, uint64_t number) except NULL nogil
    cdef int manage(self, uint64_t address, uint64_t size) except -1 nogil
    cdef int unmanage(self, uint64_t address, uint64_t size) except -1 nogil
    cdef int activate(self, uint64_t start, uint64_t size) except -1 nogil
    cdef uint64_t deactivate(self, uint64_t start) noexcept nogil
    cdef uint32_t past(self, const Row* row, uint64_t address) noexcept nogil
    cdef PtBlock find(self, uint64_t address) noexcept nogil
    cdef void want_drop(self, uint64_t number) noexcept nogil
    cdef Row* begin_drop(self, uint64_t number) noexcept nogil
    cdef void end_drop(self, Row* row) noexcept nogil
    cdef void cancel_drop(self, Row* row) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    MAX_LEVELS = 8


cdef struct Geometry:
    uint32_t rows, ways, successors, levels
    uint32_t stride        # 32-bit words of one way: block, next way of the row, successors


cdef struct Table:
    # One UM-block table. A zeroed struct is an empty table with its marks unset: see table_init.
    uint32_t* ways         # grows; way i at ways[i * stride]
    uint32_t count, capacity
    uint32_t* index        # row -> its most recently used way, open addressing
    uint32_t mask          # size of index - 1
    uint32_t row_count     # rows in use
    uint32_t start, end    # first and last block of the walk, NONE when empty


cdef struct Walk:
    # A walk over one table: a stack of blocks to visit and a bit for each way visited.
    uint32_t* stack
    uint32_t depth, capacity
    uint64_t* seen
    uint32_t seen_words
    uint32_t rest          # next way to look at when the stack is empty; NONE: end there


cdef int geometry_set(
    Geometry* g, uint32_t rows, uint32_t ways, uint32_t successors, uint32_t levels
) except -1
cdef void table_init(Table* t) noexcept nogil
cdef void table_free(Table* t) noexcept nogil
cdef uint32_t* table_find(const Table* t, const Geometry* g, uint32_t block) noexcept nogil
cdef uint32_t* table_touch(Table* t, const Geometry* g, uint32_t block) except NULL nogil
cdef uint32_t table_row(const Table* t, const Geometry* g, uint32_t block) noexcept nogil
cdef void table_link(
    Table* t, const Geometry* g, uint32_t block, uint32_t follower, uint32_t level
) noexcept nogil
cdef int table_record(
    Table* t, const Geometry* g, uint32_t* last, uint32_t block
) except -1 nogil
cdef uint64_t table_bytes(const Table* t, const Geometry* g) noexcept nogil

cdef void walk_free(Walk* w) noexcept nogil
cdef int walk_begin(Walk* w, const Table* t, uint32_t block, bint whole) except -1 nogil
cdef uint32_t walk_next(Walk* w, const Table* t, const Geometry* g) except? 0 nogil


cdef class BlockTable:
    cdef Table table
    cdef Geometry geometry
    cdef uint32_t last[MAX_LEVELS]

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    NONE = 0xFFFFFFFF      # no execution ID, no block
    ANY = 0xFFFFFFFE       # a predecessor that a shorter context leaves open


cdef struct Context:
    # One context and the kernel most recently seen after it. `following` is NONE in a free slot.
    uint32_t current
    uint32_t before[3]     # the predecessors, nearest first; ANY where the context is shorter
    uint32_t following


cdef struct Record:
    uint32_t current
    uint32_t before[3]
    uint32_t following
    uint32_t count
    uint64_t recency
    uint32_t sibling       # next record of the same entry


cdef struct Entry:
    uint64_t exec_id
    uint32_t records       # first record, the latest made
    uint32_t latest        # record updated last
    uint32_t record_count


cdef class ExecTable:
    cdef Entry* entries
    cdef uint32_t entry_count, entry_capacity
    cdef uint32_t* entry_index
    cdef uint32_t entry_mask
    cdef Context* contexts
    cdef uint32_t context_count, context_mask
    cdef Record* records
    cdef uint32_t record_count, record_capacity
    cdef uint32_t* record_index
    cdef uint32_t record_mask
    cdef uint64_t clock

    cdef uint32_t find(self, uint64_t exec_id) noexcept nogil
    cdef uint32_t intern(self, uint64_t exec_id) except? NONE nogil
    cdef int learn(self, const uint32_t* context, uint32_t following) except -1 nogil
    cdef uint32_t guess(self, const uint32_t* context) noexcept nogil
    cdef int grow_entries(self) except -1 nogil
    cdef int grow_contexts(self) except -1 nogil
    cdef int grow_records(self) except -1 nogil
    cdef int put_context(
        self, uint32_t c, uint32_t p1, uint32_t p2, uint32_t p3, uint32_t following
    ) except -1 nogil
    cdef uint32_t get_context(
        self, uint32_t c, uint32_t p1, uint32_t p2, uint32_t p3
    ) noexcept nogil
    cdef uint64_t bytes_used(self) noexcept nogil
    cdef int known(self, object context, uint32_t* out, bint make) except -1

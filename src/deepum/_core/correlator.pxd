# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.block_table cimport MAX_LEVELS, Geometry, Table
from deepum._core.exec_table cimport ExecTable


cdef class Correlator:
    cdef readonly ExecTable execs
    cdef Geometry geometry
    cdef Table* tables             # one for each entry of execs
    cdef uint32_t table_count, table_capacity
    cdef uint64_t block_bytes      # memory of all block tables
    cdef uint32_t context[4]       # the latest launch and its predecessors, nearest first
    cdef uint32_t last[MAX_LEVELS]  # last faults of the running launch
    cdef uint64_t fault_seq        # launch that `last` belongs to

    cdef uint32_t launch(self, uint64_t exec_id) except? 0 nogil
    cdef int allocated(self, uint32_t kernel, uint32_t block) except -1 nogil
    cdef int fault(self, uint32_t kernel, uint64_t seq, uint32_t block) except -1 nogil
    cdef void clear(self, uint32_t kernel) noexcept nogil
    cdef uint64_t bytes_used(self) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Classic pair correlation on faults: one block table for the whole program, no kernels."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from deepum._core.block_table cimport (
    MAX_LEVELS, Geometry, Table, geometry_set, table_bytes, table_find, table_free, table_init,
    table_record,
)
from deepum._core.engine cimport Engine, NativePolicy
from deepum._core.exec_table cimport NONE


@cython.final
cdef class SingleLevelPolicy(NativePolicy):
    """Prefetches what followed the faulted block before.

    Parameters
    ----------
    rows, ways, successors, levels : int
        Geometry of the one table. It holds the blocks of all kernels, so it has more rows than
        the table of one kernel; `levels` is how many faults ahead it looks (Solihin et al.,
        ISCA 2002, call this the replicated table).
    """

    cdef Table table
    cdef Geometry geometry
    cdef uint32_t last[MAX_LEVELS]

    def __cinit__(self, uint32_t rows=65536, uint32_t ways=2, uint32_t successors=4,
                  uint32_t levels=1):
        self.name = "single-level"
        self.pre_evicts = True
        self.invalidates = True
        geometry_set(&self.geometry, rows, ways, successors, levels)
        table_init(&self.table)
        memset(self.last, 0xFF, sizeof(self.last))

    def __dealloc__(self):
        table_free(&self.table)

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        cdef uint32_t* words
        cdef uint32_t i, successor
        table_record(&self.table, &self.geometry, self.last, block)
        words = table_find(&self.table, &self.geometry, block)
        for i in range(2, self.geometry.stride):
            successor = words[i]
            if successor != NONE and engine.room():
                engine.want(successor, 0)
        return 0

    cdef uint64_t bytes_used(self) noexcept nogil:
        return table_bytes(&self.table, &self.geometry)

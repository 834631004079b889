# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The correlator: keeps the execution-ID table and the UM-block tables up to date.

DESIGN: the paper learns a kernel's blocks from faults alone. A kernel's fresh output is often
still resident from the last owner of the memory, so it does not fault and is not learnt, and one
day it is dropped as inactive just before it is written again. The allocator says which memory was
handed out for a launch, so those blocks are entered in its table at once.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.block_table cimport (
    MAX_LEVELS, Walk, geometry_set, table_bytes, table_find, table_free, table_init, table_record,
    table_row, walk_begin, walk_free, walk_next,
)
from deepum._core.exec_table cimport NONE


@cython.final
cdef class Correlator:
    """Both tables of a running program, fed with its launches and faults."""

    def __cinit__(self, uint32_t rows, uint32_t ways, uint32_t successors, uint32_t levels):
        geometry_set(&self.geometry, rows, ways, successors, levels)
        self.execs = ExecTable()
        memset(self.context, 0xFF, sizeof(self.context))
        memset(self.last, 0xFF, sizeof(self.last))

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.table_count):
            table_free(&self.tables[i])
        free(self.tables)

    cdef uint32_t launch(self, uint64_t exec_id) except? 0 nogil:
        # Record the transition to a new launch; returns the kernel's entry.
        cdef uint32_t kernel = self.execs.intern(exec_id)
        cdef uint32_t capacity
        cdef void* memory
        while kernel >= self.table_count:
            if self.table_count == self.table_capacity:
                capacity = self.table_capacity * 2 if self.table_capacity else 16
                memory = realloc(self.tables, capacity * sizeof(Table))
                if not memory:
                    with gil:
                        raise MemoryError()
                self.tables = <Table*>memory
                self.table_capacity = capacity
            table_init(&self.tables[self.table_count])
            self.table_count += 1
            self.block_bytes += sizeof(Table)
        if self.context[0] != NONE:
            self.execs.learn(self.context, kernel)
        self.context[3] = self.context[2]
        self.context[2] = self.context[1]
        self.context[1] = self.context[0]
        self.context[0] = kernel
        return kernel

    cdef int fault(self, uint32_t kernel, uint64_t seq, uint32_t block) except -1 nogil:
        cdef Table* table = &self.tables[kernel]
        if seq != self.fault_seq:
            memset(self.last, 0xFF, sizeof(self.last))
            self.fault_seq = seq
        self.block_bytes -= table_bytes(table, &self.geometry)
        table_record(table, &self.geometry, self.last, block)
        self.block_bytes += table_bytes(table, &self.geometry)
        return 0

    cdef int allocated(self, uint32_t kernel, uint32_t block) except -1 nogil:
        # Memory handed out for a launch: it will write there, whether it faults or not. A full
        # row keeps what faults have put there.
        cdef Table* table = &self.tables[kernel]
        cdef uint32_t none[MAX_LEVELS]
        if (table_find(table, &self.geometry, block) != NULL
                or table_row(table, &self.geometry, block) == self.geometry.ways):
            return 0
        memset(none, 0xFF, sizeof(none))
        self.block_bytes -= table_bytes(table, &self.geometry)
        table_record(table, &self.geometry, none, block)
        self.block_bytes += table_bytes(table, &self.geometry)
        return 0

    cdef void clear(self, uint32_t kernel) noexcept nogil:
        # What the kernel touched before says nothing any more.
        cdef Table* table = &self.tables[kernel]
        self.block_bytes -= table_bytes(table, &self.geometry)
        table_free(table)
        self.block_bytes += table_bytes(table, &self.geometry)

    cdef uint64_t bytes_used(self) noexcept nogil:
        return self.execs.bytes_used() + self.block_bytes

    def blocks_of(self, uint64_t exec_id):
        """Return the blocks learnt for a kernel, in walking order; unknown kernels have none."""
        cdef uint32_t kernel = self.execs.find(exec_id)
        cdef uint32_t block
        cdef Walk w
        blocks = []
        if kernel == NONE or kernel >= self.table_count:
            return blocks
        memset(&w, 0, sizeof(Walk))
        try:
            walk_begin(&w, &self.tables[kernel], self.tables[kernel].start, True)
            while True:
                block = walk_next(&w, &self.tables[kernel], &self.geometry)
                if block == NONE:
                    return blocks
                blocks.append(block)
        finally:
            walk_free(&w)

    def predict(self, uint64_t exec_id, Py_ssize_t depth):
        """Return up to `depth` execution IDs expected after `exec_id`.

        Where it is the latest launch, its real predecessors are the context.
        """
        cdef uint32_t kernel = self.execs.find(exec_id)
        cdef int k
        if kernel == NONE:
            return []
        context = [exec_id]
        if kernel == self.context[0]:
            context = [
                self.execs.entries[self.context[k]].exec_id
                for k in (3, 2, 1, 0) if self.context[k] != NONE
            ]
        return self.execs.predict_chain(context, depth)

    @property
    def nbytes(self):
        """Bytes of memory both tables take."""
        return self.bytes_used()

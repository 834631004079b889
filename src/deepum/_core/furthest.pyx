# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""A heap of blocks by next use, furthest first.

Nothing is taken out when it changes: a block is filed again under its new use, and who takes the
top checks that it is still true.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc


@cython.final
cdef class Furthest:
    def __dealloc__(self):
        free(self.heap)

    cdef int push(self, uint64_t launch, uint32_t slot) except -1 nogil:
        cdef uint32_t capacity, i
        cdef void* memory
        if self.size == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 1024
            memory = realloc(self.heap, capacity * sizeof(Use))
            if not memory:
                with gil:
                    raise MemoryError()
            self.heap = <Use*>memory
            self.capacity = capacity
        i = self.size
        self.size += 1
        while i and self.heap[(i - 1) >> 1].launch < launch:
            self.heap[i] = self.heap[(i - 1) >> 1]
            i = (i - 1) >> 1
        self.heap[i].launch = launch
        self.heap[i].slot = slot
        return 0

    cdef void pop(self) noexcept nogil:
        cdef uint32_t i = 0, child
        cdef Use last
        self.size -= 1
        last = self.heap[self.size]
        while True:
            child = 2 * i + 1
            if child >= self.size:
                break
            if child + 1 < self.size and self.heap[child + 1].launch > self.heap[child].launch:
                child += 1
            if self.heap[child].launch <= last.launch:
                break
            self.heap[i] = self.heap[child]
            i = child
        self.heap[i] = last

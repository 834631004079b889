# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

cdef struct Use:
    uint64_t launch
    uint32_t slot


cdef class Furthest:
    cdef Use* heap
    cdef uint32_t size, capacity

    cdef int push(self, uint64_t launch, uint32_t slot) except -1 nogil
    cdef void pop(self) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.feed cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    READY = 64             # slabs that may lie ready at most


cdef class HostSlabs:
    cdef readonly uint64_t size            # bytes of each
    cdef pthread_mutex_t lock
    cdef pthread_cond_t work, done
    cdef uint64_t ready[READY]             # populated, and taken by nobody
    cdef uint32_t ready_count
    cdef uint32_t busy                     # being populated
    cdef uint64_t given                    # taken and not given back
    cdef uint64_t wanted                   # that there should be, the taken ones included
    cdef uint32_t stopping

    cdef void want(self, uint64_t slabs) noexcept nogil
    cdef uint64_t take(self) noexcept nogil
    cdef void give(self, uint64_t address) noexcept nogil
    cdef uint64_t populate(self) noexcept nogil
    cdef void unmap(self, uint64_t address) noexcept nogil
    cdef void give_up(self) noexcept nogil
    cdef void clear(self) noexcept nogil

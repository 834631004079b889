# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine
from deepum._core.threads cimport pthread_mutex_t


cdef class LiveEngine:
    cdef readonly Engine engine
    cdef pthread_mutex_t mutex
    cdef volatile bint lost        # the engine failed: it is not asked any more

    cdef void lock(self) noexcept nogil
    cdef bint lock_within(self, long milliseconds) noexcept nogil
    cdef void unlock(self) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.feed cimport Feed, pthread_mutex_t


cdef class Completions:
    cdef Feed feed
    cdef pthread_mutex_t lock      # while one thread asks no stream is destroyed or captured
    cdef cydriver.CUcontext context
    cdef uint64_t words            # device address: finished launches by stream
    cdef readonly uint64_t failed  # that could not be asked for

    cdef void follow(self, uint32_t slot, uint64_t marked) noexcept nogil
    cdef void mark(self, uint32_t slot, uint64_t done) noexcept nogil
    cdef void catch_up(self, uint32_t slot) noexcept nogil
    cdef void catch_up_all(self) noexcept nogil
    cdef void ask(self) noexcept nogil
    cdef void begin_capture(self) noexcept nogil
    cdef void end_stream(self, uint64_t handle) noexcept nogil

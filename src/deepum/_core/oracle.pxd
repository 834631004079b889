# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine, NativePolicy
from deepum._core.furthest cimport Furthest


cdef class OraclePolicy(NativePolicy):
    cdef uint64_t horizon          # launches that prefetching may run ahead
    cdef uint64_t base             # launches before the known future
    cdef uint64_t length           # launches in it
    cdef uint32_t known            # slots whose uses are known
    cdef const uint64_t[::1] kernels       # kernel row of each launch to come
    cdef const int64_t[::1] touch_start
    cdef const uint32_t[::1] touch_slot
    cdef const int64_t[::1] use_start      # slot -> its uses, as launch numbers, ascending
    cdef const uint64_t[::1] uses
    cdef int64_t[::1] use_next             # slot -> first use not yet past
    cdef uint64_t ahead_launch, ahead_touch    # how far prefetching has looked
    cdef Furthest due              # blocks by next use, furthest first; checked when popped

    cdef uint64_t next_use(self, uint32_t slot, uint64_t after) noexcept nogil
    cdef int reclaim(self, Engine engine) except -1 nogil
    cdef int64_t furthest(self, Engine engine, uint64_t beyond) except? -2 nogil

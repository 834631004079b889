# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t


cdef struct Digest:
    uint64_t first, second


cdef class Digester:
    cdef bytes image, name
    cdef cydriver.CUmodule module
    cdef cydriver.CUfunction function
    cdef readonly uint32_t groups  # thread blocks of a launch ...
    cdef readonly uint32_t threads  # ... and threads of each
    cdef readonly uint32_t places  # digests under way
    cdef Digest* sums              # `groups` for each
    cdef cydriver.CUdeviceptr on_device
    cdef readonly uint32_t works   # until one did not

    cdef int start(
        self, uint32_t place, uint64_t address, uint64_t size, cydriver.CUstream stream
    ) noexcept nogil
    cdef Digest read(self, uint32_t place) noexcept nogil
    cpdef void give_up(self) noexcept nogil

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Prefetches what the arguments of submitted launches name: nothing to learn, nothing to guess.

How far it sees is how far the program runs ahead of the device.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.engine cimport Engine, NativePolicy
from deepum._core.records cimport DEEPUM_BLOCK_SHIFT


@cython.final
cdef class ArgumentsPolicy(NativePolicy):
    def __cinit__(self):
        self.name = "arguments"
        self.pre_evicts = True
        self.invalidates = True
        self.wants_ranges = True

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        cdef uint32_t i
        cdef uint64_t block, size
        for i in range(engine.range_count):
            size = engine.ranges[2 * i + 1]
            if size == 0:
                continue
            for block in range(
                engine.ranges[2 * i] >> DEEPUM_BLOCK_SHIFT,
                ((engine.ranges[2 * i] + size - 1) >> DEEPUM_BLOCK_SHIFT) + 1,
            ):
                engine.want(<uint32_t>block, seq)
        return 0

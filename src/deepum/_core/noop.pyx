# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Plain demand paging with the driver's own order: what unified memory does by itself."""

cimport cython

from deepum._core.engine cimport NativePolicy


@cython.final
cdef class NoopPolicy(NativePolicy):
    def __cinit__(self):
        self.name = "noop"

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from deepum._core.engine cimport NativePolicy


cdef class NoopPolicy(NativePolicy):
    pass

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    TOUCH_WRITE = 1            # the kernel writes to the block
    TOUCH_RANDOM = 2           # part of a gather: touched in an order that differs every launch
    TOUCH_STRIDED = 4          # by a kernel that does not read contiguous memory


cdef class Program:
    cdef readonly object exec_id       # u64[K]
    cdef readonly object touch_start   # i64[K+1]
    cdef readonly object touch_block   # u32[T], in the order of first touch
    cdef readonly object touch_pages   # u16[T], 4 KiB pages of it that the kernel touches
    cdef readonly object touch_moved   # u16[T], 4 KiB pages that a fault on it brings in
    cdef readonly object touch_flags   # u8[T]
    cdef readonly object gather_share  # f64[K]: share of its random touches a launch makes

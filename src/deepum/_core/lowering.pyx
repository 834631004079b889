# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""From a trace's kernels and operands to execution IDs and block touches."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.math cimport exp

import numpy as np


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t chain(uint64_t seed, uint64_t word) noexcept nogil:
    return mix(seed ^ (word + <uint64_t>0x9E3779B97F4A7C15 + (seed << 6) + (seed >> 2)))


def exec_id(words):
    """Return the execution ID of a launch: a 64-bit hash of a sequence of 64-bit words.

    The words stand for the kernel's name, its launch shape and its argument bytes, pointers
    included, as in the paper.
    """
    cdef uint64_t h = 0
    for word in words:
        h = chain(h, word)
    return h


@cython.final
cdef class Program:
    """The kernels of a trace, lowered: execution ID and block touches of each.

    Parameters
    ----------
    columns : dict of numpy.ndarray
        `Trace.columns()`.
    pointers : bool
        Whether pointers are part of the execution ID (as in the paper).
    scattered : int
        4 KiB pages that come to the device with each scattered page that faults.
    strided : array of bool, optional
        Whether each kernel row reads memory that is not contiguous.
    """

    def __cinit__(self, dict columns, *, bint pointers=True, uint32_t scattered=16, strided=None):
        cdef const uint64_t[:] address = columns["tensor_address"]
        cdef const uint32_t[:] name = columns["kernel_name"]
        cdef const uint64_t[:] key = columns["kernel_key"]
        cdef const uint32_t[:] operand_start = columns["kernel_operand_start"]
        cdef const uint32_t[:] tensor = columns["operand_tensor"]
        cdef const uint8_t[:] mode = columns["operand_mode"]
        cdef const uint8_t[:] pattern = columns["operand_pattern"]
        cdef const uint64_t[:] offset = columns["operand_offset"]
        cdef const uint64_t[:] length = columns["operand_length"]
        cdef const uint64_t[:] rows = columns["operand_touches"]
        cdef Py_ssize_t kernels = name.shape[0]
        cdef Py_ssize_t k, o, total = 0, t
        cdef uint64_t start, end, block, first, last, h, base = 0
        cdef uint64_t low = 0xFFFFFFFFFFFFFFFF, high = 0
        cdef int64_t pages
        cdef uint8_t flags
        cdef double share, hits
        cdef const uint8_t[:] jumps = np.zeros(len(name), np.uint8) if strided is None \
            else np.ascontiguousarray(strided, dtype=np.uint8)
        for o in range(tensor.shape[0]):
            start = address[tensor[o]] + offset[o]
            if length[o]:
                low = min(low, start >> 21)
                high = max(high, (start + length[o] - 1) >> 21)
                total += ((start + length[o] - 1) >> 21) - (start >> 21) + 1
        ids = np.empty(kernels, np.uint64)
        starts = np.zeros(kernels + 1, np.int64)
        blocks = np.empty(total, np.uint32)
        touched = np.empty(total, np.uint16)
        moved = np.empty(total, np.uint16)
        flag = np.empty(total, np.uint8)
        shares = np.ones(kernels, np.float64)
        # For each block, where in the list the current kernel touches it first.
        place_of = np.full(high - low + 1 if total else 0, -1, np.int64)
        cdef uint64_t[::1] ids_v = ids
        cdef int64_t[::1] starts_v = starts
        cdef uint32_t[::1] blocks_v = blocks
        cdef uint16_t[::1] touched_v = touched
        cdef uint16_t[::1] moved_v = moved
        cdef int64_t brought
        cdef uint8_t[::1] flag_v = flag
        cdef double[::1] shares_v = shares
        cdef int64_t[::1] place = place_of
        base = low
        total = 0
        with nogil:
            for k in range(kernels):
                h = chain(chain(0, name[k]), key[k])
                starts_v[k] = total
                for o in range(operand_start[k], operand_start[k + 1]):
                    start = address[tensor[o]] + offset[o]
                    end = start + length[o]
                    if pointers:
                        h = chain(h, start)
                    if end == start:
                        continue
                    first = start >> 21
                    last = (end - 1) >> 21
                    flags = TOUCH_WRITE if mode[o] & 2 else 0
                    if jumps[k]:
                        flags |= TOUCH_STRIDED
                    hits = 0.0
                    if pattern[o] == 1 and last > first:
                        flags |= TOUCH_RANDOM
                        # Rows fall on blocks at random: expected share of blocks hit.
                        hits = <double>rows[o] / <double>(last - first + 1)
                        share = 1.0 - exp(-hits)
                        shares_v[k] = min(shares_v[k], share)
                    for block in range(first, last + 1):
                        pages = ((min(end, (block + 1) << 21) + 4095) >> 12) \
                            - (max(start, block << 21) >> 12)
                        brought = 512
                        if hits > 0.0:
                            # Scattered rows: the pages they fall on fault, and the driver
                            # brings a few around each; they stay below the density at
                            # which it would fetch the whole block.
                            brought = max(<int64_t>scattered, <int64_t>(
                                pages * (1.0 - exp(-hits * scattered / 512.0))))
                            pages = max(1, <int64_t>(pages * (1.0 - exp(-hits / 512.0))))
                        t = place[block - base]
                        if t >= starts_v[k]:
                            flag_v[t] |= flags & TOUCH_WRITE
                            touched_v[t] = <uint16_t>min(512, touched_v[t] + pages)
                            moved_v[t] = <uint16_t>max(moved_v[t], brought)
                            continue
                        place[block - base] = total
                        blocks_v[total] = <uint32_t>block
                        touched_v[total] = <uint16_t>pages
                        moved_v[total] = <uint16_t>brought
                        flag_v[total] = flags
                        total += 1
                ids_v[k] = h
            starts_v[kernels] = total
        self.exec_id = ids
        self.touch_start = starts
        self.touch_block = blocks[:total].copy()
        self.touch_pages = touched[:total].copy()
        self.touch_moved = moved[:total].copy()
        self.touch_flags = flag[:total].copy()
        self.gather_share = shares

    @property
    def working_set(self):
        """Blocks that each kernel touches, an array of int64."""
        return np.diff(self.touch_start)

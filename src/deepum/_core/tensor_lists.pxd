# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    MAX_POINTERS = 4096


cdef struct TensorLists:
    uint32_t lists             # of addresses; 0: the parameter is no such struct
    uint32_t room              # addresses that each has room for
    uint32_t sizes             # offset of the tensors' elements, 8 bytes each
    uint32_t steps             # offset of one more list, of step counts; 0: there is none
    uint32_t blocks            # offset of each thread block's tensor
    uint32_t block_room
    uint32_t width             # bytes of a thread block's tensor, 1 or 2


cdef inline uint32_t scan(
    const char* data, size_t size, uint64_t low, uint64_t span, uint64_t* pointers, uint32_t count
) noexcept nogil:
    # The aligned words that may point into managed memory.
    cdef uint64_t word
    cdef size_t at = 0
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        if word - low < span and count < MAX_POINTERS:
            pointers[count] = word
            count += 1
        at += 8
    return count


cdef TensorLists find_lists(const char* name, uint32_t size) noexcept nogil
cdef uint32_t tensors_used(
    const TensorLists* at, const char* data, const uint32_t* grid) noexcept nogil
cdef uint32_t scan_lists(
    const TensorLists* at, const char* data, uint32_t used, uint64_t low, uint64_t span,
    uint64_t* pointers) noexcept nogil

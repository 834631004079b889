# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Queues of blocks that grow as they are filled. Not safe to share without a lock, but that
`tail` may be read without one."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from deepum._core.feed cimport deepum_store


cdef struct Entry:
    uint64_t block
    uint32_t word


cdef struct Queue:
    Entry* entries         # in a ring of `size`, a power of two
    uint64_t head, tail, size


cdef inline Entry* queue_at(Queue* queue, uint64_t place) noexcept nogil:
    return &queue.entries[place & (queue.size - 1)]


cdef inline bint queue_put(Queue* queue, uint64_t block, uint32_t word) noexcept nogil:
    # False for want of memory.
    cdef uint64_t size, i
    cdef Entry* memory
    if queue.tail - queue.head == queue.size:
        size = queue.size * 2 if queue.size else 256
        memory = <Entry*>malloc(size * sizeof(Entry))
        if memory == NULL:
            return False
        for i in range(queue.head, queue.tail):
            memory[i & (size - 1)] = queue_at(queue, i)[0]
        free(queue.entries)
        queue.entries = memory
        queue.size = size
    queue_at(queue, queue.tail).block = block
    queue_at(queue, queue.tail).word = word
    deepum_store(&queue.tail, queue.tail + 1)
    return True

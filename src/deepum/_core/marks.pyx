# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""What happened in a live session and when, for its record.

The conductor and the movers put marks into a ring of fixed size; a thread of the recorder's takes
them out. Threads that launch never come here. The ring never waits: once a mark does not fit, it
and all after it are counted and left out, so that what was taken is a beginning without a gap.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from deepum._core.feed cimport (
    deepum_add, deepum_load, deepum_load32, deepum_store, deepum_store32, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from deepum._core.records cimport *

import numpy as np

MARK_DTYPE = np.dtype([
    ("time", "u8"), ("until", "u8"), ("what", "u8"), ("amount", "u8"), ("seq", "u8"),
    ("kind", "u4"), ("name", "u4"),
])
"""numpy's view of a mark; times are nanoseconds of ``CLOCK_MONOTONIC``."""

MARKS = {
    "manage": DEEPUM_EVENT_MANAGE, "unmanage": DEEPUM_EVENT_UNMANAGE,
    "alloc": DEEPUM_EVENT_ALLOC, "free": DEEPUM_EVENT_FREE, "launch": DEEPUM_EVENT_LAUNCH,
    "range": DEEPUM_EVENT_RANGE, "step": MARK_STEP, "complete": MARK_COMPLETE, "open": MARK_OPEN,
    "fault": MARK_FAULT, "in": MARK_IN, "out": MARK_OUT, "drop": MARK_DROP,
    "resident": MARK_RESIDENT,
}
"""Kinds of mark: the program's up to "step", then the device's."""


@cython.final
cdef class Marks:
    """A ring of marks.

    Parameters
    ----------
    size : int
        Marks that fit, a power of two; 48 bytes each.
    """

    def __cinit__(self, uint32_t size=1 << 18):
        if size == 0 or size & (size - 1):
            raise ValueError(f"size must be a power of two, not {size}")
        pthread_mutex_init(&self.lock, NULL)
        self.marks = <Mark*>calloc(size, sizeof(Mark))
        if self.marks == NULL:
            raise MemoryError()
        self.mask = size - 1

    def __dealloc__(self):
        free(self.marks)
        pthread_mutex_destroy(&self.lock)

    cdef void put(
        self, uint32_t kind, uint64_t time, uint64_t until, uint64_t what, uint64_t amount,
        uint64_t seq, uint32_t name
    ) noexcept nogil:
        cdef Mark* mark
        if deepum_load32(&self.closed):
            return
        pthread_mutex_lock(&self.lock)
        if self.missing or self.tail - deepum_load(&self.head) > self.mask:
            deepum_add(&self.missing, 1)
        else:
            mark = &self.marks[self.tail & self.mask]
            mark.time = time
            mark.until = until
            mark.what = what
            mark.amount = amount
            mark.seq = seq
            mark.kind = kind
            mark.name = name
            deepum_store(&self.tail, self.tail + 1)
        pthread_mutex_unlock(&self.lock)

    def take(self):
        """Return the marks put since the last call, an array of `MARK_DTYPE`; one thread calls."""
        cdef uint64_t head = self.head, tail = deepum_load(&self.tail), first
        cdef unsigned char[::1] view
        taken = np.empty(tail - head, MARK_DTYPE)
        if head == tail:
            return taken
        view = taken.view(np.uint8)
        with nogil:
            first = min(tail - head, self.mask + 1 - (head & self.mask))
            memcpy(&view[0], &self.marks[head & self.mask], first * sizeof(Mark))
            if head + first != tail:
                memcpy(&view[first * sizeof(Mark)], self.marks,
                       (tail - head - first) * sizeof(Mark))
            deepum_store(&self.head, tail)
        return taken

    def close(self):
        """Take no marks any more."""
        deepum_store32(&self.closed, 1)

    @property
    def lost(self):
        """Marks left out since the ring was full once."""
        return deepum_load(&self.missing)

    def add(self, str kind, *, uint64_t time=0, uint64_t until=0, uint64_t what=0,
            uint64_t amount=0, uint64_t seq=0, uint32_t name=0):
        """Put a mark by name, for tests."""
        self.put(MARKS[kind], time, until, what, amount, seq, name)

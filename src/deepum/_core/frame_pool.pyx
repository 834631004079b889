# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Frames: pieces of device memory in several sizes, within one budget.

A frame is made once and used again and again. All frames together never exceed the budget. Where
one size is short and another has frames that nobody uses, those are broken up: so memory that is
free can always be had, in whatever size.

What a frame is, only the caller knows: here it is a handle, and a place among those of its size.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc


cdef uint32_t class_of(uint32_t blocks) noexcept nogil:
    # The class of a size, a power of two.
    cdef uint32_t number = 0
    while blocks > 1:
        blocks >>= 1
        number += 1
    return number


@cython.final
cdef class FramePool:
    """Counts frames and says how the next one is to be had. Not safe to share without a lock.

    Parameters
    ----------
    budget : int
        Blocks of 2 MiB that all frames may have together.
    """

    def __cinit__(self, uint64_t budget):
        self.budget = budget

    def __dealloc__(self):
        cdef int i
        for i in range(CLASSES):
            free(self.places[i].handles)
            free(self.places[i].free)
            free(self.places[i].empty)

    cdef Answer take(self, uint32_t size, uint32_t* frame) noexcept nogil:
        cdef Places* p = &self.places[size]
        cdef uint64_t blocks = <uint64_t>1 << size
        if p.free_count:
            p.free_count -= 1
            frame[0] = size << 24 | p.free[p.free_count]
            self.used += blocks
            return FRAME_TAKEN
        if self.made + blocks <= self.budget + self.beyond:
            return FRAME_MAKE
        frame[0] = self.spare(size)
        return FRAME_WAIT if frame[0] == NO_FRAME_AT_ALL else FRAME_BREAK

    cdef uint32_t spare(self, uint32_t but) noexcept nogil:
        # A frame that nobody uses, of another class than this; the largest there is.
        cdef int i
        cdef Places* p
        for i in range(CLASSES - 1, -1, -1):
            p = &self.places[i]
            if <uint32_t>i != but and p.free_count:
                p.free_count -= 1
                self.used += <uint64_t>1 << i      # until it is removed
                return <uint32_t>i << 24 | p.free[p.free_count]
        return NO_FRAME_AT_ALL

    cdef bint grow(self, uint32_t size) noexcept nogil:
        cdef Places* p = &self.places[size]
        cdef uint32_t capacity = p.capacity * 2 if p.capacity else 64
        cdef void* memory = realloc(p.handles, capacity * sizeof(uint64_t))
        if memory == NULL:
            return False
        p.handles = <uint64_t*>memory
        memory = realloc(p.free, capacity * sizeof(uint32_t))
        if memory == NULL:
            return False
        p.free = <uint32_t*>memory
        memory = realloc(p.empty, capacity * sizeof(uint32_t))
        if memory == NULL:
            return False
        p.empty = <uint32_t*>memory
        p.capacity = capacity
        return True

    cdef uint32_t add(self, uint32_t size, uint64_t handle) noexcept nogil:
        # A frame was made: it is in use. NO_FRAME_AT_ALL for want of memory.
        cdef Places* p = &self.places[size]
        cdef uint32_t place
        if p.empty_count:
            p.empty_count -= 1
            place = p.empty[p.empty_count]
        else:
            if p.count == p.capacity and not self.grow(size):
                return NO_FRAME_AT_ALL
            place = p.count
            p.count += 1
        p.handles[place] = handle
        self.ever += 1
        self.made += <uint64_t>1 << size
        self.used += <uint64_t>1 << size
        return size << 24 | place

    cdef void give(self, uint32_t frame) noexcept nogil:
        # Nobody uses it any more.
        cdef Places* p = &self.places[frame_class(frame)]
        p.free[p.free_count] = frame_place(frame)
        p.free_count += 1
        self.used -= <uint64_t>1 << frame_class(frame)

    cdef uint64_t remove(self, uint32_t frame) noexcept nogil:
        # A frame in use is to be no more; returns its handle.
        cdef Places* p = &self.places[frame_class(frame)]
        p.empty[p.empty_count] = frame_place(frame)
        p.empty_count += 1
        self.made -= <uint64_t>1 << frame_class(frame)
        self.used -= <uint64_t>1 << frame_class(frame)
        return p.handles[frame_place(frame)]

    cdef uint64_t handle(self, uint32_t frame) noexcept nogil:
        return self.places[frame_class(frame)].handles[frame_place(frame)]

    # -- for tests ---------------------------------------------------------------------------------

    def ask(self, uint32_t size):
        """Return (answer, frame) for a frame of class `size`."""
        cdef uint32_t frame = NO_FRAME_AT_ALL
        cdef Answer answer = self.take(size, &frame)
        names = ("taken", "make", "break", "wait")
        return names[<int>answer], None if frame == NO_FRAME_AT_ALL else frame

    def made_one(self, uint32_t size, uint64_t handle):
        """Add a frame and return it."""
        return self.add(size, handle)

    def gave(self, uint32_t frame):
        """Give a frame back."""
        self.give(frame)

    def removed(self, uint32_t frame):
        """Take a frame out; return its handle."""
        return self.remove(frame)

    def handle_of(self, uint32_t frame):
        """Return a frame's handle."""
        return self.handle(frame)

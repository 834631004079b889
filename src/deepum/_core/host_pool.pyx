# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Places on the host for what has left the device: pinned slabs, divided by halves.

Pinning takes long (about half a second a GiB), so slabs are added as they are needed, up to a
limit, and kept. Within a slab places are runs of 1, 2, 4 ... 128 blocks, each at a multiple of its
size; neighbours that are both free become one again.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc


@cython.final
cdef class HostPool:
    """Says where there is room. Not safe to share without a lock.

    Parameters
    ----------
    limit : int
        Blocks of 2 MiB that all slabs may have together; a slab has 128.
    """

    def __cinit__(self, uint64_t limit):
        self.limit = limit

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):
            free(self.slabs[i])
        free(self.slabs)

    cdef bint may_grow(self) noexcept nogil:
        return (<uint64_t>self.count + 1) * SLAB_BLOCKS <= self.limit

    cdef bint add(self, uint64_t address, bint registered) noexcept nogil:
        # A slab more. False for want of memory.
        cdef uint32_t capacity, level, i
        cdef void* memory
        cdef Slab* slab
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            memory = realloc(self.slabs, capacity * sizeof(Slab*))
            if memory == NULL:
                return False
            self.slabs = <Slab**>memory
            self.capacity = capacity
        slab = <Slab*>malloc(sizeof(Slab))
        if slab == NULL:
            return False
        slab.address = address
        slab.registered = registered
        i = 1
        for level in range(SLAB_BITS + 1):
            while i < <uint32_t>2 << level:
                slab.longest[i] = <uint8_t>(SLAB_BITS - level + 1)
                i += 1
        self.slabs[self.count] = slab
        self.count += 1
        return True

    cdef uint32_t take(self, uint32_t size) noexcept nogil:
        # Room for a run of class `size`, in the fullest slab that has it; NO_ROOM if none has.
        cdef uint32_t best = NO_ROOM, i, level
        cdef Slab* slab
        for i in range(self.count):
            if self.slabs[i].longest[1] > size and (
                    best == NO_ROOM or self.slabs[i].longest[1] < self.slabs[best].longest[1]):
                best = i
        if best == NO_ROOM:
            return NO_ROOM
        slab = self.slabs[best]
        i = 1
        for _ in range(size, SLAB_BITS):
            # Into the half that has less to give, so that large runs stay whole.
            i = 2 * i
            if slab.longest[i] <= size or (
                    slab.longest[i + 1] > size and slab.longest[i + 1] < slab.longest[i]):
                i += 1
        slab.longest[i] = 0
        level = i
        while i > 1:
            i >>= 1
            slab.longest[i] = max(slab.longest[2 * i], slab.longest[2 * i + 1])
        self.used += <uint64_t>1 << size
        return best << SLAB_BITS | (level - (<uint32_t>1 << (SLAB_BITS - size))) << size

    cdef void give(self, uint32_t place, uint32_t size) noexcept nogil:
        # A run of class `size` is free again.
        cdef Slab* slab = self.slabs[place >> SLAB_BITS]
        cdef uint32_t i = (
            (<uint32_t>1 << (SLAB_BITS - size)) + ((place & (SLAB_BLOCKS - 1)) >> size))
        cdef uint8_t whole = <uint8_t>(size + 1)
        slab.longest[i] = whole
        while i > 1:
            i >>= 1
            whole += 1
            if slab.longest[2 * i] == whole - 1 and slab.longest[2 * i + 1] == whole - 1:
                slab.longest[i] = whole
            else:
                slab.longest[i] = max(slab.longest[2 * i], slab.longest[2 * i + 1])
        self.used -= <uint64_t>1 << size

    cdef uint64_t remove(self, bint* registered) noexcept nogil:
        # Let go of a slab, if no place is taken in any; its address, or 0.
        cdef uint64_t address
        if self.used or not self.count:
            return 0
        self.count -= 1
        address = self.slabs[self.count].address
        registered[0] = self.slabs[self.count].registered
        free(self.slabs[self.count])
        return address

    cdef uint64_t address(self, uint32_t place) noexcept nogil:
        return (self.slabs[place >> SLAB_BITS].address
                + (<uint64_t>(place & (SLAB_BLOCKS - 1)) << 21))

    # -- for tests ---------------------------------------------------------------------------------

    def ask(self, uint32_t size):
        """Take room for a run of class `size`; None if there is none."""
        cdef uint32_t place = self.take(size)
        return None if place == NO_ROOM else place

    def gave(self, uint32_t place, uint32_t size):
        """Give a run back."""
        self.give(place, size)

    def add_slab(self, uint64_t address):
        """Add a slab if the limit allows; tell whether it did."""
        return bool(self.may_grow() and self.add(address, False))

    def remove_slab(self):
        """Let go of a slab if no place is taken; return its address, or 0."""
        cdef bint registered = False
        return self.remove(&registered)

    def address_of(self, uint32_t place):
        """Return the address of a run."""
        return self.address(place)

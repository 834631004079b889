# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Which PT blocks are active, by the UM blocks they lie in.

A live backend keeps one beside the engine, under its own lock, because two questions cannot wait
until the engine has caught up with the program: which PT block does a launch argument point into,
and may the contents of a UM block still be dropped. The second is what data depends on: a block
is dropped only while nothing in it is active, and memory that becomes active again waits for a
drop that has begun and calls off one that has not.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove, memset

from deepum._core.records cimport DEEPUM_BLOCK_SHIFT

cdef enum:
    CHUNK_BITS = 10

cdef uint64_t BLOCK = 1 << DEEPUM_BLOCK_SHIFT


cdef extern from "atomics.h" nogil:
    uint32_t deepum_load32(const uint32_t* at)
    void deepum_store(uint64_t* at, uint64_t value)
    void deepum_store32(uint32_t* at, uint32_t value)
    void deepum_sleep(uint64_t nanoseconds)


@cython.final
cdef class MemoryMap:
    """Active PT blocks and drops under way. Not safe to share without a lock."""

    def __cinit__(self):
        self.low = <uint64_t>-1

    def __dealloc__(self):
        cdef uint32_t i
        cdef Row* row
        for i in range(self.row_count):
            row = &self.chunks[i >> CHUNK_BITS][i & ((1 << CHUNK_BITS) - 1)]
            free(row.starts)
        for i in range(self.chunk_count):
            free(self.chunks[i])
        free(self.chunks)
        free(self.index)

    cdef Row* row(self, uint64_t number) noexcept nogil:
        cdef uint32_t at, place
        cdef Row* found
        if self.index == NULL:
            return NULL
        place = <uint32_t>((number * <uint64_t>0x9E3779B97F4A7C15) >> 32) & self.mask
        while self.index[place]:
            at = self.index[place] - 1
            found = &self.chunks[at >> CHUNK_BITS][at & ((1 << CHUNK_BITS) - 1)]
            if found.number == number:
                return found
            place = (place + 1) & self.mask
        return NULL

    cdef Row* add_row(self, uint64_t number) except NULL nogil:
        cdef Row* row = self.row(number)
        cdef uint32_t size, i
        cdef void* memory
        if row != NULL:
            return row
        if (self.row_count + 1) * 2 > self.mask:
            size = (self.mask + 1) * 2 if self.mask else 256
            memory = calloc(size, sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            free(self.index)
            self.index = <uint32_t*>memory
            self.mask = size - 1
            for i in range(self.row_count):
                row = &self.chunks[i >> CHUNK_BITS][i & ((1 << CHUNK_BITS) - 1)]
                self.enter(row.number, i)
        if self.row_count >> CHUNK_BITS == self.chunk_count:
            memory = realloc(self.chunks, (self.chunk_count + 1) * sizeof(Row*))
            if not memory:
                with gil:
                    raise MemoryError()
            self.chunks = <Row**>memory
            memory = calloc(1 << CHUNK_BITS, sizeof(Row))
            if not memory:
                with gil:
                    raise MemoryError()
            self.chunks[self.chunk_count] = <Row*>memory
            self.chunk_count += 1
        i = self.row_count
        row = &self.chunks[i >> CHUNK_BITS][i & ((1 << CHUNK_BITS) - 1)]
        memset(row, 0, sizeof(Row))
        row.number = number
        self.row_count += 1
        self.enter(number, i)
        return row

    cdef void enter(self, uint64_t number, uint32_t row) noexcept nogil:
        cdef uint32_t place
        place = <uint32_t>((number * <uint64_t>0x9E3779B97F4A7C15) >> 32) & self.mask
        while self.index[place]:
            place = (place + 1) & self.mask
        self.index[place] = row + 1

    cdef int manage(self, uint64_t address, uint64_t size) except -1 nogil:
        # Rows stay when memory is given back: the driver hands the same addresses out again.
        cdef uint64_t number
        for number in range(address >> DEEPUM_BLOCK_SHIFT,
                            (address + size + BLOCK - 1) >> DEEPUM_BLOCK_SHIFT):
            self.add_row(number).begins = number == address >> DEEPUM_BLOCK_SHIFT
        deepum_store(&self.low, min(self.low, address))
        deepum_store(&self.high, max(self.high, address + size))
        return 0

    cdef int unmanage(self, uint64_t address, uint64_t size) except -1 nogil:
        # Whatever is still called active there is gone, and nothing of it may be dropped later.
        cdef uint64_t number
        cdef Row* row
        for number in range(address >> DEEPUM_BLOCK_SHIFT,
                            (address + size + BLOCK - 1) >> DEEPUM_BLOCK_SHIFT):
            row = self.row(number)
            if row == NULL:
                continue
            self.cancel_drop(row)
            row.count = 0
            row.covering.size = 0
            row.active = 0
        return 0

    cdef int activate(self, uint64_t start, uint64_t size) except -1 nogil:
        # A PT block comes to life. Returns 1, or 0 if its memory is not managed or is taken.
        cdef uint64_t at = start, end = start + size, stop
        cdef Row* row
        cdef uint32_t place, capacity
        cdef void* memory
        if size == 0:
            return 0
        while at < end:
            stop = min(end, ((at >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            row = self.row(at >> DEEPUM_BLOCK_SHIFT)
            if row == NULL or row.active + <int64_t>(stop - at) > <int64_t>BLOCK:
                return 0
            at = stop
        row = self.row(start >> DEEPUM_BLOCK_SHIFT)
        if row.count == row.capacity:
            capacity = row.capacity * 2 if row.capacity else 4
            memory = realloc(row.starts, capacity * sizeof(PtBlock))
            if not memory:
                with gil:
                    raise MemoryError()
            row.starts = <PtBlock*>memory
            row.capacity = capacity
        place = self.past(row, start)
        memmove(&row.starts[place + 1], &row.starts[place],
                (row.count - place) * sizeof(PtBlock))
        row.starts[place].start = start
        row.starts[place].size = size
        row.count += 1
        at = start
        while at < end:
            stop = min(end, ((at >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            row = self.row(at >> DEEPUM_BLOCK_SHIFT)
            self.cancel_drop(row)
            row.active += <int64_t>(stop - at)
            if at != start:
                row.covering.start = start
                row.covering.size = size
            at = stop
        return 1

    cdef uint64_t deactivate(self, uint64_t start) noexcept nogil:
        # The PT block that begins there is freed. Returns its size, 0 if none is known.
        cdef Row* row = self.row(start >> DEEPUM_BLOCK_SHIFT)
        cdef uint32_t place
        cdef uint64_t size, at, end, stop
        if row == NULL:
            return 0
        place = self.past(row, start)
        if place == 0 or row.starts[place - 1].start != start:
            return 0
        place -= 1
        size = row.starts[place].size
        row.count -= 1
        memmove(&row.starts[place], &row.starts[place + 1],
                (row.count - place) * sizeof(PtBlock))
        at = start
        end = start + size
        while at < end:
            stop = min(end, ((at >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            row = self.row(at >> DEEPUM_BLOCK_SHIFT)
            row.active -= <int64_t>(stop - at)
            if at != start:
                row.covering.size = 0
            at = stop
        return size

    cdef uint32_t past(self, const Row* row, uint64_t address) noexcept nogil:
        # How many of the PT blocks that begin in a row begin at the address or before it.
        cdef uint32_t low = 0, high = row.count, middle
        while low < high:
            middle = (low + high) >> 1
            if row.starts[middle].start <= address:
                low = middle + 1
            else:
                high = middle
        return low

    cdef PtBlock find(self, uint64_t address) noexcept nogil:
        # The active PT block that the address lies in; size 0 if there is none.
        cdef PtBlock none
        cdef Row* row
        cdef uint32_t place
        none.start = none.size = 0
        if address < self.low or address >= self.high:
            return none
        row = self.row(address >> DEEPUM_BLOCK_SHIFT)
        if row == NULL:
            return none
        place = self.past(row, address)
        if place:
            if address - row.starts[place - 1].start < row.starts[place - 1].size:
                return row.starts[place - 1]
            return none
        if row.covering.size and address - row.covering.start < row.covering.size:
            return row.covering
        return none

    # -- drops: DUE by the engine's thread, GOING and KEPT by a mover, called off by allocations --

    cdef void want_drop(self, uint64_t number) noexcept nogil:
        cdef Row* row = self.row(number)
        if row != NULL and row.active == 0:
            row.drop = DUE

    cdef Row* begin_drop(self, uint64_t number) noexcept nogil:
        # The row if the block may be dropped now; end_drop must follow.
        cdef Row* row = self.row(number)
        if row == NULL or row.drop != DUE or row.active:
            return NULL
        row.drop = GOING
        return row

    cdef void end_drop(self, Row* row) noexcept nogil:
        # Needs no lock: whoever waits for it holds the lock.
        deepum_store32(&row.drop, KEPT)

    cdef void cancel_drop(self, Row* row) noexcept nogil:
        while deepum_load32(&row.drop) == GOING:
            deepum_sleep(1000)
        row.drop = KEPT

    # -- for tests ---------------------------------------------------------------------------------

    def add(self, uint64_t address, uint64_t size):
        """Make a range managed."""
        self.manage(address, size)

    def remove(self, uint64_t address, uint64_t size):
        """Give a managed range back."""
        self.unmanage(address, size)

    def alloc(self, uint64_t start, uint64_t size):
        """Make a PT block active; tell whether that could be."""
        return bool(self.activate(start, size))

    def free(self, uint64_t start):
        """Free the PT block that begins at `start`; return its bytes, 0 if there is none."""
        return self.deactivate(start)

    def at(self, uint64_t address):
        """Return (start, bytes) of the active PT block around an address, or None."""
        cdef PtBlock found = self.find(address)
        return (found.start, found.size) if found.size else None

    def active(self, uint64_t number):
        """Return the active bytes of a UM block, None if it is not known."""
        cdef Row* row = self.row(number)
        return None if row == NULL else row.active

    def drop(self, uint64_t number):
        """Ask for a block to be dropped."""
        self.want_drop(number)

    def take_drop(self, uint64_t number):
        """Tell whether a drop that was asked for may be carried out, as a mover would."""
        cdef Row* row = self.begin_drop(number)
        if row != NULL:
            self.end_drop(row)
        return row != NULL

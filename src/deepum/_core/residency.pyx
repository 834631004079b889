# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Where every UM block is, and in which order blocks came to the device.

Blocks are found by number through leaves of 1024 (2 GiB of addresses), so a sparse address space
costs only what is used. A *slot* is a block's place in the leaves: it never changes.

Neighbouring blocks may form a *chunk*, which moves as one: memory of a backend whose frames come
in several sizes. All that is kept of a chunk is kept with its first block, and `slot_of` finds that
one for every block of it; a block by itself is a chunk of one.

The invariants, checked by the property tests:

- frames used = resident + incoming + outgoing, and that never exceeds the budget;
- a block with a frame is in exactly one place: in flight, in the migration list, or in the list
  of inactive blocks.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from deepum._core.exec_table cimport NONE


cdef uint64_t chunk_blocks(uint64_t block, uint64_t left, uint64_t most) noexcept nogil:
    # Blocks of the chunk that begins at a block with so many left in its range: the largest power
    # of two that fits and that the block's number is a multiple of. So no chunk spans two leaves.
    cdef uint64_t size = most
    while size > left or block & (size - 1):
        size >>= 1
    return size


@cython.final
cdef class Residency:
    def __cinit__(self, uint64_t budget):
        self.budget = budget
        self.migrated.head = self.migrated.tail = NONE
        self.dead.head = self.dead.tail = NONE
        self.cached_key = NONE
        self.leaf_mask = 15
        self.leaf_index = <uint32_t*>malloc(16 * sizeof(uint32_t))
        if not self.leaf_index:
            raise MemoryError()
        memset(self.leaf_index, 0xFF, 16 * sizeof(uint32_t))

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.leaf_count):
            free(self.leaves[i])
        free(self.leaves)
        free(self.leaf_key)
        free(self.leaf_index)

    # -- finding blocks -----------------------------------------------------------------------

    cdef uint32_t find_leaf(self, uint32_t key) noexcept nogil:
        cdef uint32_t slot, leaf
        if key == self.cached_key:
            return self.cached_leaf
        slot = (key * <uint32_t>2654435769 >> 8) & self.leaf_mask
        while True:
            leaf = self.leaf_index[slot]
            if leaf == NONE:
                return NONE
            if self.leaf_key[leaf] == key:
                self.cached_key = key
                self.cached_leaf = leaf
                return leaf
            slot = (slot + 1) & self.leaf_mask

    cdef int add_leaf(self, uint32_t key) except -1 nogil:
        cdef uint32_t capacity, size, slot, i
        cdef void* memory
        cdef Block* blocks
        if self.find_leaf(key) != NONE:
            return 0
        if self.leaf_count == self.leaf_capacity:
            capacity = self.leaf_capacity * 2 if self.leaf_capacity else 8
            memory = realloc(self.leaves, capacity * sizeof(Block*))
            if not memory:
                with gil:
                    raise MemoryError()
            self.leaves = <Block**>memory
            memory = realloc(self.leaf_key, capacity * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.leaf_key = <uint32_t*>memory
            self.leaf_capacity = capacity
        if self.leaf_count * 2 > self.leaf_mask:
            size = (self.leaf_mask + 1) * 2
            memory = malloc(size * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            free(self.leaf_index)
            self.leaf_index = <uint32_t*>memory
            self.leaf_mask = size - 1
            memset(self.leaf_index, 0xFF, size * sizeof(uint32_t))
            for i in range(self.leaf_count):
                slot = (self.leaf_key[i] * <uint32_t>2654435769 >> 8) & self.leaf_mask
                while self.leaf_index[slot] != NONE:
                    slot = (slot + 1) & self.leaf_mask
                self.leaf_index[slot] = i
        blocks = <Block*>calloc(LEAF_BLOCKS, sizeof(Block))
        if not blocks:
            with gil:
                raise MemoryError()
        self.leaves[self.leaf_count] = blocks
        self.leaf_key[self.leaf_count] = key
        slot = (key * <uint32_t>2654435769 >> 8) & self.leaf_mask
        while self.leaf_index[slot] != NONE:
            slot = (slot + 1) & self.leaf_mask
        self.leaf_index[slot] = self.leaf_count
        self.leaf_count += 1
        return 0

    cdef uint32_t slot_of(self, uint32_t block) noexcept nogil:
        # NONE where the block lies in no known range.
        cdef uint32_t leaf = self.find_leaf(block >> LEAF_BITS)
        cdef uint32_t slot
        if leaf == NONE:
            return NONE
        slot = leaf << LEAF_BITS | (block & (LEAF_BLOCKS - 1))
        if not self.at(slot).flags & MANAGED:
            return NONE
        return slot - self.at(slot).lead

    cdef uint32_t block_of(self, uint32_t slot) noexcept nogil:
        return self.leaf_key[slot >> LEAF_BITS] << LEAF_BITS | (slot & (LEAF_BLOCKS - 1))

    cdef Block* at(self, uint32_t slot) noexcept nogil:
        return &self.leaves[slot >> LEAF_BITS][slot & (LEAF_BLOCKS - 1)]

    cdef uint32_t frames(self, uint32_t slot) noexcept nogil:
        # Blocks of the chunk that begins there.
        return self.at(slot).more + 1

    cdef uint64_t past(self, uint64_t block, uint32_t slot) noexcept nogil:
        # The first block after the chunk of a block that slot_of has found so.
        return block + 1 if slot == NONE else <uint64_t>self.block_of(slot) + self.frames(slot)

    cdef uint32_t lead_of(self, uint32_t block) noexcept nogil:
        # The block that its chunk is known by.
        cdef uint32_t slot = self.slot_of(block)
        return block if slot == NONE else self.block_of(slot)

    cdef int manage(self, uint64_t address, uint64_t size, uint32_t chunk=1) except -1 nogil:
        # In chunks of up to so many blocks, a power of two.
        cdef uint64_t block, last, begins, end = 0
        cdef uint32_t slot
        if size == 0:
            return 0
        last = (address + size - 1) >> 21
        for block in range(address >> 21, last + 1):
            self.add_leaf(<uint32_t>(block >> LEAF_BITS))
            slot = (self.find_leaf(<uint32_t>(block >> LEAF_BITS)) << LEAF_BITS
                    | <uint32_t>(block & (LEAF_BLOCKS - 1)))
            if not self.at(slot).flags & MANAGED:
                self.at(slot).flags |= MANAGED
                self.managed += 1
            if chunk > 1 or self.chunked:
                self.chunked = True
                if block >= end:
                    begins = block
                    end = block + chunk_blocks(block, last + 1 - block, chunk)
                    self.at(slot).more = <uint8_t>(end - begins - 1)
                self.at(slot).lead = <uint8_t>(block - begins)
        return 0

    # -- lists --------------------------------------------------------------------------------

    cdef void unlink(self, uint32_t slot) noexcept nogil:
        cdef Block* b = self.at(slot)
        cdef List* where = &self.dead if b.flags & ON_DEAD_LIST else &self.migrated
        if b.before == NONE:
            where.head = b.after
        else:
            self.at(b.before).after = b.after
        if b.after == NONE:
            where.tail = b.before
        else:
            self.at(b.after).before = b.before
        b.flags &= ~ON_DEAD_LIST
        where.size -= self.frames(slot)

    cdef void append(self, List* where, uint32_t slot) noexcept nogil:
        cdef Block* b = self.at(slot)
        b.before = where.tail
        b.after = NONE
        if where.tail == NONE:
            where.head = slot
        else:
            self.at(where.tail).after = slot
        where.tail = slot
        where.size += self.frames(slot)
        if where == &self.dead:
            b.flags |= ON_DEAD_LIST

    cdef uint64_t frames_used(self) noexcept nogil:
        return self.migrated.size + self.dead.size + self.incoming + self.outgoing

    cdef int64_t frames_free(self) noexcept nogil:
        return <int64_t>self.budget - <int64_t>self.frames_used()

    # -- transitions --------------------------------------------------------------------------

    cdef void begin_in(self, uint32_t slot) noexcept nogil:
        self.at(slot).state = INCOMING
        self.incoming += self.frames(slot)

    cdef void end_in(self, uint32_t slot) noexcept nogil:
        cdef Block* b = self.at(slot)
        self.incoming -= self.frames(slot)
        self.clock += 1
        b.state = RESIDENT
        b.stamp = self.clock
        b.flags |= CONTENT
        self.append(&self.migrated, slot)

    cdef void begin_out(self, uint32_t slot) noexcept nogil:
        self.unlink(slot)
        self.at(slot).state = OUTGOING
        self.outgoing += self.frames(slot)

    cdef void end_out(self, uint32_t slot) noexcept nogil:
        self.outgoing -= self.frames(slot)
        self.at(slot).state = ABSENT

    cdef void drop(self, uint32_t slot) noexcept nogil:
        # Free a resident block's frame at once; its contents are gone.
        cdef Block* b = self.at(slot)
        self.unlink(slot)
        b.state = ABSENT
        b.flags &= ~CONTENT

    cdef void set_dead(self, uint32_t slot, bint dead) noexcept nogil:
        # Move a resident block between the lists as its PT blocks go inactive or active. One
        # that is active again counts as migrated now: its old place in the order is gone.
        self.unlink(slot)
        if not dead:
            self.clock += 1
            self.at(slot).stamp = self.clock
        self.append(&self.dead if dead else &self.migrated, slot)

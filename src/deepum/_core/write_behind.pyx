# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""What to copy to the host before it has to leave: then it leaves at once.

A training step needs the bus one way for a while, then the other: activations go out in the
forward pass, and what the optimizer needs comes in behind the backward pass. While nothing has to
leave, chunks that a kernel has just written can be copied out and stay where they are. If nothing
writes them again before they have to leave, that copy is the one which eviction would have made.

Whether something will is learnt. Programs touch a chunk in the same way each step, so for each
chunk it is known after which of its touches a copy was for nothing: written over, never read
again, or the same as the one that the host had. All else is tried, when the bus is free.

DESIGN: which touches write is not known from a launch, so the mover compares digests of contents
(deepum/cuda/copier.py). A guess here costs bytes on an idle bus and never contents.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.engine cimport Engine
from deepum._core.exec_table cimport NONE
from deepum._core.residency cimport DIRTY, RESIDENT, Block


@cython.final
cdef class WriteBehind:
    """Chooses chunks to save. Used by the conductor's thread alone."""

    def __dealloc__(self):
        free(self.records)

    cdef int grow(self, uint32_t slots) except -1 nogil:
        cdef void* memory
        cdef uint32_t i
        if slots <= self.count:
            return 0
        memory = realloc(self.records, slots * sizeof(Record))
        if memory == NULL:
            with gil:
                raise MemoryError()
        self.records = <Record*>memory
        memset(&self.records[self.count], 0, (slots - self.count) * sizeof(Record))
        for i in range(self.count, slots):
            self.records[i].saved = self.records[i].saving = UNSAVED
        self.count = slots
        return 0

    cdef bint touched(self, uint32_t slot, uint64_t seq) noexcept nogil:
        # A launch names the chunk. True if a copy that is being made is of no use now.
        cdef Record* r = &self.records[slot]
        cdef Touch* waiting
        cdef bint torn = r.saving != UNSAVED
        r.saving = UNSAVED
        if r.touches == TOUCHES:
            return torn            # too often to tell which one it is
        if not r.not_worth >> r.touches & 1:
            if self.tail - self.head == WAITING:
                self.head += 1
            waiting = &self.ring[self.tail % WAITING]
            waiting.seq = seq
            waiting.slot = slot
            waiting.touch = r.touches
            self.tail += 1
        r.touches += 1
        return torn

    cdef uint32_t choose(self, Engine engine) noexcept nogil:
        # The slot of a chunk to save now, NONE if there is none.
        cdef Touch* waiting
        cdef Record* r
        cdef Block* b
        if self.steps < LEARNING:
            return NONE
        while self.head != self.tail:
            waiting = &self.ring[self.head % WAITING]
            if waiting.seq > engine.completed:
                return NONE
            self.head += 1
            r = &self.records[waiting.slot]
            b = engine.mem.at(waiting.slot)
            if (b.state == RESIDENT and b.flags & DIRTY and b.active
                    and b.pinned <= engine.completed and r.saving == UNSAVED
                    and r.touches == waiting.touch + 1):
                r.saving = <uint8_t>waiting.touch
                return waiting.slot
        return NONE

    cdef bint ended(self, uint32_t slot, bint copied) noexcept nogil:
        # The host has what is in the chunk; or had it before. True unless it was touched meanwhile.
        cdef Record* r = &self.records[slot]
        if r.saving == UNSAVED:
            return False
        if not copied:
            r.not_worth |= <uint64_t>1 << r.saving
        else:
            self.left(slot, True)  # an older copy was written over
            r.saved = r.saving
        r.saving = UNSAVED
        return True

    cdef void failed(self, uint32_t slot) noexcept nogil:
        # No copy was made.
        self.records[slot].saving = UNSAVED

    cdef void left(self, uint32_t slot, bint in_vain) noexcept nogil:
        # A chunk left, and the copy that was made of it was of use or not.
        cdef Record* r = &self.records[slot]
        if in_vain and r.saved != UNSAVED:
            r.not_worth |= <uint64_t>1 << r.saved
        r.saved = UNSAVED

    cdef void end_step(self) noexcept nogil:
        cdef uint32_t i
        self.steps += 1
        for i in range(self.count):
            self.records[i].touches = 0
            if self.steps % RETRY == 0:
                self.records[i].not_worth = 0

    # -- for tests ---------------------------------------------------------------------------------

    def touch(self, uint32_t slot, uint64_t seq):
        """Note that a launch names a chunk; tell whether a copy under way is of no use now."""
        self.grow(slot + 1)
        return bool(self.touched(slot, seq))

    def chosen(self, Engine engine not None):
        """Return the slot of a chunk to save now, or None."""
        cdef uint32_t slot = self.choose(engine)
        return None if slot == NONE else slot

    def end(self, uint32_t slot, bint copied):
        """Note that a copy is made; tell whether it is of use."""
        return bool(self.ended(slot, copied))

    def fail(self, uint32_t slot):
        """Note that no copy was made."""
        self.failed(slot)

    def leave(self, uint32_t slot, bint in_vain):
        """Note that a chunk left."""
        self.left(slot, in_vain)

    def step(self):
        """Note that a step of the program ends."""
        self.end_step()

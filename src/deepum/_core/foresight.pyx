# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Next use of every block, from the predicted sequence of kernels: Belady's eviction, learnt.

The execution-ID table is followed one step of the program ahead, and each kernel met there says
through its block table which blocks it will use. Where the program leaves the prediction, all of
it is forgotten and looked up again, a few kernels at each launch.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from deepum._core.block_table cimport Table
from deepum._core.engine cimport LAUNCH_RING, NOBODY, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport deepum_add
from deepum._core.furthest cimport Furthest, Use
from deepum._core.residency cimport (
    ABSENT, INCOMING, LEAF_BITS, LEAF_BLOCKS, OUTGOING, QUEUED, RESIDENT, Block,
)

cdef uint64_t NEVER = 0xFFFFFFFFFFFFFFFF

cdef enum:
    STRIDE = 64                # kernels looked up at one launch
    LOOKS = 64                 # blocks looked at before giving up
    STRANGERS = 4              # launches in a row that may be others than foreseen: a tensor that
    #                            lies elsewhere in each step makes a kernel another one


@cython.final
cdef class Foresight:
    def __cinit__(self):
        self.expected = <uint32_t*>malloc(MAX_LAP * sizeof(uint32_t))
        if not self.expected:
            raise MemoryError()
        self.due = Furthest()
        self.aside = Furthest()
        self.spare = NONE

    def __dealloc__(self):
        free(self.expected)
        free(self.seen)
        free(self.first)
        free(self.last)
        free(self.nodes)

    cdef int grow(self, Engine engine) except -1 nogil:
        # Memory that the engine came to know since.
        cdef uint32_t slots = engine.mem.leaf_count << LEAF_BITS
        cdef void* memory
        if slots <= self.slots:
            return 0
        memory = realloc(self.first, slots * sizeof(uint32_t))
        if memory:
            self.first = <uint32_t*>memory
            memory = realloc(self.last, slots * sizeof(uint32_t))
        if not memory:
            with gil:
                raise MemoryError()
        self.last = <uint32_t*>memory
        memset(&self.first[self.slots], 0xFF, (slots - self.slots) * sizeof(uint32_t))
        self.slots = slots
        return 0

    cdef int begin(self, Engine engine) except -1 nogil:
        # Forget what was foreseen: the latest launch is all that is known. While a program is
        # learnt this runs at each launch, so resident blocks are filed only once one has to go.
        cdef int k
        deepum_add(&self.forgotten, 1)     # read by any thread
        self.grow(engine)
        memset(self.first, 0xFF, self.slots * sizeof(uint32_t))
        self.node_count = 0
        self.spare = NONE
        self.due.size = 0
        self.aside.size = 0
        self.settled = engine.completed
        self.reached = engine.launched
        for k in range(4):
            self.context[k] = engine.correlator.context[k]
        self.filed = False
        if self.context[0] != NONE and engine.launched > engine.completed:
            self.foresee(engine, self.context[0])
        return 0

    cdef int note(self, uint32_t kernel, uint64_t seq) except -1 nogil:
        cdef uint32_t count
        cdef void* memory
        if kernel >= self.seen_count:
            count = max(kernel + 1, self.seen_count * 2)
            memory = realloc(self.seen, count * sizeof(uint64_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.seen = <uint64_t*>memory
            memset(&self.seen[self.seen_count], 0, (count - self.seen_count) * sizeof(uint64_t))
            self.seen_count = count
        if self.seen[kernel] and seq - self.seen[kernel] > self.lap:
            self.lap = min(<uint64_t>MAX_LAP - STRIDE, seq - self.seen[kernel])
        self.seen[kernel] = seq
        return 0

    cdef int follow(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        # A launch: as foreseen, or in its place, or all has to be looked up again.
        self.grow(engine)
        self.note(kernel, seq)
        if self.reached >= seq and self.expected[seq % MAX_LAP] == kernel:
            self.strangers = 0
        else:
            self.strangers += 1
            if self.reached < seq or self.strangers > STRANGERS:
                self.strangers = 0
                self.begin(engine)
        return self.look(engine, STRIDE)

    cdef int look(self, Engine engine, uint32_t steps) except -1 nogil:
        cdef uint32_t kernel
        while steps and self.lap and self.reached < engine.launched + self.lap:
            kernel = engine.correlator.execs.guess(self.context)
            if kernel == NONE:
                return 0
            self.context[3] = self.context[2]
            self.context[2] = self.context[1]
            self.context[1] = self.context[0]
            self.context[0] = kernel
            self.reached += 1
            self.foresee(engine, kernel)
            steps -= 1
        return 0

    cdef int foresee(self, Engine engine, uint32_t kernel) except -1 nogil:
        # Launch `reached` will be this kernel: its blocks are used then.
        cdef Table* table = &engine.correlator.tables[kernel]
        cdef uint32_t i, slot
        self.expected[self.reached % MAX_LAP] = kernel
        for i in range(table.count):
            slot = engine.mem.slot_of(table.ways[i * engine.correlator.geometry.stride])
            if slot != NONE and slot < self.slots:
                self.append(engine, slot, self.reached)
        return 0

    cdef int append(self, Engine engine, uint32_t slot, uint64_t launch) except -1 nogil:
        cdef uint32_t node = self.spare, capacity
        cdef void* memory
        if node != NONE:
            self.spare = self.nodes[node].after
        else:
            if self.node_count == self.node_capacity:
                capacity = self.node_capacity * 2 if self.node_capacity else 1024
                memory = realloc(self.nodes, capacity * sizeof(Node))
                if not memory:
                    with gil:
                        raise MemoryError()
                self.nodes = <Node*>memory
                self.node_capacity = capacity
            node = self.node_count
            self.node_count += 1
        self.nodes[node].launch = launch
        self.nodes[node].after = NONE
        if self.first[slot] == NONE:
            self.first[slot] = node
            if self.filed and engine.mem.at(slot).state in (RESIDENT, INCOMING):
                self.due.push(launch, slot)
        else:
            self.nodes[self.last[slot]].after = node
        self.last[slot] = node
        return 0

    cdef uint64_t next_use(self, Engine engine, uint32_t slot) noexcept nogil:
        # First launch after the completed ones that is expected to use the block.
        cdef uint32_t node
        if slot >= self.slots:
            return NEVER
        node = self.first[slot]
        while node != NONE and self.nodes[node].launch <= engine.completed:
            self.first[slot] = self.nodes[node].after
            self.nodes[node].after = self.spare
            self.spare = node
            node = self.first[slot]
        return NEVER if node == NONE else self.nodes[node].launch

    cdef int complete(self, Engine engine, uint64_t seq) except -1 nogil:
        # What the launches that ended have used is filed under its next use.
        cdef Table* table
        cdef uint32_t kernel, i, slot
        if not self.filed:
            self.settled = seq
            return 0
        if self.due.size > self.most:
            self.file(engine)          # what is true no more sinks, and nobody takes it out there
        while self.aside.size:
            self.aside.size -= 1
            self.arrived(engine, self.aside.heap[self.aside.size].slot)
        if seq - self.settled > LAUNCH_RING:
            self.settled = seq - LAUNCH_RING
        while self.settled < seq:
            self.settled += 1
            kernel = engine.ring_kernel[self.settled % LAUNCH_RING]
            if kernel == NONE:
                continue
            table = &engine.correlator.tables[kernel]
            for i in range(table.count):
                slot = engine.mem.slot_of(table.ways[i * engine.correlator.geometry.stride])
                if slot != NONE:
                    self.arrived(engine, slot)
        return 0

    cdef int file(self, Engine engine) except -1 nogil:
        # File every block that is on the device, or soon will be, under its next use.
        cdef uint32_t leaf, i, slot
        cdef Block* blocks
        self.filed = True
        self.due.size = self.aside.size = 0
        for leaf in range(self.slots >> LEAF_BITS):
            blocks = engine.mem.leaves[leaf]
            for i in range(LEAF_BLOCKS):
                if blocks[i].state in (RESIDENT, INCOMING) or blocks[i].flags & QUEUED:
                    slot = leaf << LEAF_BITS | i
                    self.due.push(self.next_use(engine, slot), slot)
        self.most = 4 * self.due.size + LEAF_BLOCKS
        return 0

    cdef int arrived(self, Engine engine, uint32_t slot) except -1 nogil:
        # The block is on the device, or soon will be.
        if not self.filed:
            return 0
        return self.due.push(self.next_use(engine, slot), slot)

    cdef bint ripe(self, Engine engine) noexcept nogil:
        # Whether a step has been looked ahead: short of that, "no use known" says nothing.
        return self.lap != 0 and self.reached + STRIDE >= engine.launched + self.lap

    cdef bint short_of(self, Engine engine, uint64_t position) noexcept nogil:
        # Whether launches up to `position` are too much of what is foreseen to choose victims
        # among the blocks that are needed after it: more than half.
        return self.ripe(engine) and (position - engine.completed) * 2 > self.lap

    cdef int64_t victim(self, Engine engine, uint64_t beyond) except? -2 nogil:
        # A block without live contents costs nothing to give up; else the one with the furthest
        # next use goes, if that lies beyond a launch.
        cdef uint32_t slot = engine.mem.dead.head, looked = 0
        cdef Use top
        cdef int64_t chosen = NOBODY
        cdef Block* b
        if not self.filed:
            self.file(engine)
        while slot != NONE and looked < LOOKS:
            if (engine.mem.at(slot).pinned <= engine.completed
                    and self.next_use(engine, slot) > beyond):
                return slot
            slot = engine.mem.at(slot).after
            looked += 1
        while self.due.size:
            top = self.due.heap[0]
            b = engine.mem.at(top.slot)
            if (b.state == ABSENT or b.state == OUTGOING
                    or top.launch != self.next_use(engine, top.slot)):
                self.due.pop()
            elif top.launch <= beyond:
                break
            elif b.state == INCOMING or b.pinned > engine.completed:
                self.aside.push(0, top.slot)       # cannot go before a launch has ended
                self.due.pop()
            else:
                chosen = top.slot
                break
        return chosen

    cdef uint64_t bytes_used(self) noexcept nogil:
        return (sizeof(uint32_t) * (MAX_LAP + 2 * self.slots) + sizeof(Node) * self.node_capacity
                + sizeof(uint64_t) * self.seen_count + sizeof(Use) * self.due.capacity)

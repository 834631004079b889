# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The paper's policy: chained prefetching over the two correlation tables.

A chain walks the block table of the running kernel, then continues in the table of the kernel
predicted to follow, and so on. It pauses when it is N kernels ahead, goes on as kernels complete,
and stops where the next kernel cannot be predicted.

DESIGN: two deviations from the letter of the paper, neither of which prefetches anything else.
A fault inside a kernel that the chain has already passed correctly walks that kernel's table from
the faulted block and then lets the chain go on from where it is, instead of walking all N kernels
again. And a chain that stopped is started again by the next launch, not only by the next fault: a
launch tells as much about what comes next, and tells it earlier.

With `next_use` the policy goes past the paper: victims are the blocks that the predicted sequence
needs last. With `gate` the chain waits where a frame could only come from a block needed sooner.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.block_table cimport Table, walk_begin, walk_free, walk_next
from deepum._core.engine cimport DEFAULT_ORDER, Engine, NativePolicy
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport deepum_load
from deepum._core.foresight cimport Foresight
from deepum._core.residency cimport ABSENT, CONTENT, OUTGOING, QUEUED, Block

cdef enum:
    SOON = 32                  # launches from now: the paper's prefetch distance


@cython.final
cdef class ChainedPolicy(NativePolicy):
    def __cinit__(self, bint next_use=False, bint gate=True):
        self.next_use = next_use
        self.gated = next_use and gate
        self.foresight = Foresight() if next_use else None
        self.held = NONE
        self.name = "chained"
        self.learns = True
        self.pre_evicts = True
        self.invalidates = True
        memset(self.context, 0xFF, sizeof(self.context))
        memset(self.expected, 0xFF, sizeof(self.expected))
        memset(self.spoken, 0, sizeof(self.spoken))

    def __dealloc__(self):
        walk_free(&self.walk)
        walk_free(&self.fault_walk)
        free(self.named)

    cdef int attach(self, Engine engine) except -1:
        if engine.depth > MAX_DEPTH - 1:
            raise ValueError(f"depth must be at most {MAX_DEPTH - 1} kernels, not {engine.depth}")
        self.active = False
        self.fault_active = False
        self.settled = engine.completed
        self.held = NONE
        self.named_count = 0       # the tables may have been another policy's meanwhile
        if self.next_use:
            self.foresight.begin(engine)
        return 0

    cdef int restart(self, Engine engine) except -1 nogil:
        # Begin a chain at the latest launch, with the program's real history as its context.
        cdef uint32_t kernel = engine.correlator.context[0]
        cdef int k
        for k in range(4):
            self.context[k] = engine.correlator.context[k]
        self.position = engine.launched
        memset(self.spoken, 0, sizeof(self.spoken))
        self.spoken_total = 0
        self.expected[self.position % MAX_DEPTH] = kernel
        self.active = kernel != NONE
        if self.active:
            self.walk_table(engine)
        return 0

    cdef int walk_table(self, Engine engine) except -1 nogil:
        # Begin with the table of the kernel that the chain has reached.
        cdef Table* table = &engine.correlator.tables[self.context[0]]
        self.held = NONE
        return walk_begin(&self.walk, table, table.start, True)

    cdef int learn_ranges(self, Engine engine, uint32_t kernel) except -1 nogil:
        # Where the launch names its memory there is nothing to wait for: its table is filled at
        # once, and what it names is brought if the chain has not come by. Gated launches name all
        # that they touch, and the engine brings it: their tables hold what they named last.
        cdef uint32_t i, lead
        cdef uint64_t block, size, names = engine.range_count
        if engine.gated:
            for i in range(2 * engine.range_count):
                names = (names ^ engine.ranges[i]) * <uint64_t>0x9E3779B97F4A7C15
                names ^= names >> 32
            if not self.changed(kernel, names):
                return 0
            engine.correlator.clear(kernel)
            if self.fault_active and self.fault_kernel == kernel:
                self.fault_active = False
        for i in range(engine.range_count):
            size = engine.ranges[2 * i + 1]
            if size == 0:
                continue
            for block in range(engine.ranges[2 * i] >> 21,
                               (engine.ranges[2 * i] + size + (1 << 21) - 1) >> 21):
                lead = engine.mem.lead_of(<uint32_t>block)
                if lead == block or block == engine.ranges[2 * i] >> 21:
                    engine.correlator.allocated(kernel, lead)
        if engine.gated:
            if self.active and self.context[0] == kernel:
                self.walk_table(engine)    # the chain is in this table
            return 0
        self.fault_kernel = kernel
        self.fault_position = engine.launched
        self.fault_active = True
        walk_begin(&self.fault_walk, &engine.correlator.tables[kernel],
                   engine.correlator.tables[kernel].start, True)
        return 0

    cdef bint changed(self, uint32_t kernel, uint64_t names) except -1 nogil:
        # Whether a kernel names something else than last time, which is remembered.
        cdef uint32_t count
        cdef void* memory
        if kernel >= self.named_count:
            count = max(kernel + 64, self.named_count * 2)
            memory = realloc(self.named, count * sizeof(uint64_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.named = <uint64_t*>memory
            memset(&self.named[self.named_count], 0, (count - self.named_count) * sizeof(uint64_t))
            self.named_count = count
        if self.named[kernel] == names:
            return False
        self.named[kernel] = names
        return True

    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil:
        # One event may tell of many launches.
        while self.settled < seq:
            self.settled += 1
            self.spoken_total -= self.spoken[self.settled % MAX_DEPTH]
            self.spoken[self.settled % MAX_DEPTH] = 0
        if self.next_use:
            self.foresight.complete(engine, seq)
        return 0

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        if engine.range_count and kernel != NONE:
            self.learn_ranges(engine, kernel)
        if self.next_use:
            self.foresight.follow(engine, seq, kernel)
        if (not self.active or seq > self.position
                or self.expected[seq % MAX_DEPTH] != kernel):
            self.restart(engine)
        return 0

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        # What follows the faulted block in its kernel is most urgent: it goes before the chain.
        cdef uint32_t kernel = engine.running_kernel()
        if self.next_use:
            self.foresight.arrived(engine, engine.mem.slot_of(block))
        if kernel != NONE:
            self.fault_kernel = kernel
            self.fault_position = engine.completed + 1
            self.fault_active = True
            walk_begin(&self.fault_walk, &engine.correlator.tables[kernel], block, False)
        return 0

    cdef int64_t victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2 nogil:
        if not self.next_use or not self.foresight.ripe(engine):
            return DEFAULT_ORDER
        return self.foresight.victim(engine, 0 if demand else self.position)

    cdef bint waits(self, Engine engine, uint32_t block) except -1 nogil:
        # Whether the block would need a frame that only something needed sooner can give.
        cdef uint32_t slot = engine.mem.slot_of(block)
        cdef Block* b
        if not self.gated or slot == NONE or not self.foresight.ripe(engine):
            return False
        b = engine.mem.at(slot)
        if b.state != ABSENT and b.state != OUTGOING or b.flags & QUEUED:
            return False
        if engine.mem.frames_free() + <int64_t>engine.mem.outgoing <= <int64_t>engine.queue_size:
            # An empty frame costs no transfer, so it is not worth one until it is needed soon.
            if (not b.flags & CONTENT and self.position > engine.completed + SOON
                    or self.foresight.victim(engine, self.position) < 0):
                return True
        self.foresight.due.push(self.position, slot)
        return False

    cdef int advance(self, Engine engine) except -1 nogil:
        cdef uint32_t block, kernel
        cdef uint64_t spoken
        cdef Table* table
        while self.fault_active and engine.room():
            block = walk_next(&self.fault_walk, &engine.correlator.tables[self.fault_kernel],
                              &engine.correlator.geometry)
            if block == NONE:
                self.fault_active = False
            else:
                engine.want(block, self.fault_position)
        while self.active and engine.room():
            table = &engine.correlator.tables[self.context[0]]
            block = self.held
            if block == NONE:
                block = walk_next(&self.walk, table, &engine.correlator.geometry)
            self.held = NONE
            if block != NONE:
                if self.waits(engine, block):
                    self.held = block
                    return 0
                engine.want(block, self.position)
                if self.position > engine.completed:
                    self.spoken[self.position % MAX_DEPTH] += 1
                    self.spoken_total += 1
                continue
            if self.position >= engine.completed + 1 + engine.depth:
                return 0           # N kernels ahead: wait for one to complete
            if self.gated and self.foresight.short_of(engine, self.position):
                return 0           # further on it is not known what is needed still later
            # Three quarters of the frames are spoken for: likewise. What gated launches have
            # named goes first, as it is certain.
            spoken = self.spoken_total + (engine.pinned_now if engine.gated else 0)
            if ((engine.auto_depth and not self.gated or engine.gated)
                    and spoken * 4 > engine.mem.budget * 3):
                return 0
            kernel = engine.correlator.execs.guess(self.context)
            if kernel == NONE:
                self.active = False
                return 0
            self.context[3] = self.context[2]
            self.context[2] = self.context[1]
            self.context[1] = self.context[0]
            self.context[0] = kernel
            self.position += 1
            self.expected[self.position % MAX_DEPTH] = kernel
            self.walk_table(engine)
        return 0

    @property
    def forgotten(self):
        """Times that the prediction of next uses was thrown away and begun anew; 0 without."""
        return deepum_load(&self.foresight.forgotten) if self.next_use else 0

    cdef uint64_t bytes_used(self) noexcept nogil:
        return (sizeof(uint64_t) * self.named_count
                + (self.foresight.bytes_used() if self.next_use else 0))

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The simulator of a memory mode without page faults: chunks remapped under stable addresses.

A launch names its memory, whole PT blocks, and waits at a gate until all of it is resident. The
program does not wait: it submits launches behind the running one, and what they name is brought in
their order, before anything that a policy only expects. As in a live session, launches reach the
engine while what they hold takes up no more than half of the budget.

One chunk at a time moves each way. What comes in pays for a remap: unmapping what had the memory,
mapping, and giving access. That needs no kernel to wait, and the other direction goes on meanwhile.
A launch that alone needs more than the budget reads and writes the excess in host memory.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from deepum._core.engine cimport LAUNCH_RING, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.lowering cimport TOUCH_RANDOM, TOUCH_WRITE, Program
from deepum._core.records cimport (
    DEEPUM_COMMAND_CLEAN, DEEPUM_COMMAND_EVICT, DEEPUM_COMMAND_PREFETCH, deepum_command,
)
from deepum._core.residency cimport CONTENT, DEMANDED, DIRTY, INCOMING, RESIDENT, Block
from deepum._core.simulator cimport Simulator

import numpy as np

cdef double FOREVER = 1e300
cdef uint64_t BLOCK_BYTES = 1 << 21


cdef uint32_t size_class(uint32_t blocks) noexcept nogil:
    cdef uint32_t number = 0
    while blocks > 1:
        blocks >>= 1
        number += 1
    return number


@cython.final
cdef class VmmSimulator(Simulator):
    """Runs steps of a trace without page faults and keeps the time.

    Parameters
    ----------
    engine, program, columns, kernel_time, touch_faults, rates
        As for `Simulator`; the engine is gated, and segments begin at multiples of a chunk.
    chunk : int
        The most blocks that move as one, a power of two.
    ahead : int
        Launches that the program may submit behind the running one.
    remap : sequence of float
        Seconds of a remap, for chunks of 1, 2, 4 … 64 blocks.
    zero_copy_bytes_s : float
        Rate at which kernels use host memory, each way.
    """

    def __cinit__(
        self, Engine engine not None, Program program not None, dict columns, kernel_time,
        touch_faults, dict rates, *, uint32_t chunk, uint32_t ahead, remap,
        double zero_copy_bytes_s,
    ):
        cdef Py_ssize_t i
        if ahead > LAUNCH_RING - 2:
            raise ValueError(f"ahead must be at most {LAUNCH_RING - 2} launches, not {ahead}")
        for i in range(SIZES):
            self.remap[i] = remap[i]
        self.ahead = ahead
        self.zero_copy_s = 1.0 / zero_copy_bytes_s
        self.name_chunks(columns, np.where(
            program.touch_flags & TOUCH_RANDOM, self.touch_bytes, BLOCK_BYTES).astype(np.uint32))

    def __dealloc__(self):
        free(self.inward.slots)
        free(self.outward.slots)

    def name_chunks(self, dict columns, crossing):
        """Take as touched what a launch can name: every chunk of its operands' PT blocks.

        Parameters
        ----------
        columns : dict of numpy.ndarray
        crossing : numpy.ndarray
            Bytes that each touch of the program moves where its block stays in host memory.
        """
        cdef const uint8_t[::1] mode = columns["operand_mode"]
        cdef const uint32_t[::1] part = crossing
        cdef Py_ssize_t kernels = self.operand_start.shape[0] - 1, k, o
        cdef int64_t total = 0, t
        cdef int pass_
        cdef uint64_t block, last
        cdef uint32_t slot, tensor
        cdef int64_t[::1] start = np.zeros(kernels + 1, np.int64)
        cdef int64_t[::1] place
        cdef uint32_t[::1] slots = np.empty(0, np.uint32)
        cdef uint8_t[::1] flags = np.empty(0, np.uint8)
        cdef uint32_t[::1] moved = np.empty(0, np.uint32)
        for pass_ in range(2):     # how many, then which
            place = np.full(self.engine.mem.leaf_count << 10, -1, np.int64)
            total = 0
            for k in range(kernels):
                start[k] = total
                for o in range(self.operand_start[k], self.operand_start[k + 1]):
                    tensor = self.operand_tensor[o]
                    block = self.tensor_address[tensor] >> 21
                    last = (self.tensor_address[tensor] + self.tensor_bytes[tensor] - 1) >> 21
                    while block <= last:
                        slot = self.engine.mem.slot_of(<uint32_t>block)
                        block = self.engine.mem.past(block, slot)
                        if place[slot] < start[k]:
                            place[slot] = total
                            total += 1
                            if pass_:
                                slots[place[slot]] = slot
                        if pass_ and mode[o] & 2:
                            flags[place[slot]] = TOUCH_WRITE
                if pass_:
                    for t in range(self.touch_start[k], self.touch_start[k + 1]):
                        moved[place[self.touch_slot[t]]] += part[t]
            start[kernels] = total
            if not pass_:
                slots = np.empty(total, np.uint32)
                flags = np.zeros(total, np.uint8)
                moved = np.zeros(total, np.uint32)
        self.touch_start = start
        self.touch_slot = slots
        self.touch_flags = flags
        self.touch_bytes = moved

    # -- the movers ---------------------------------------------------------------------------

    cdef int push(self, Lane* lane, uint32_t slot) except -1 nogil:
        cdef uint32_t capacity
        cdef void* memory
        if lane.head + lane.size == lane.capacity:
            if lane.head > lane.capacity // 2:
                memmove(lane.slots, &lane.slots[lane.head], lane.size * sizeof(uint32_t))
                lane.head = 0
            else:
                capacity = lane.capacity * 2 if lane.capacity else 256
                memory = realloc(lane.slots, capacity * sizeof(uint32_t))
                if not memory:
                    with gil:
                        raise MemoryError()
                lane.slots = <uint32_t*>memory
                lane.capacity = capacity
        lane.slots[lane.head + lane.size] = slot
        lane.size += 1
        return 0

    cdef uint32_t pop(self, Lane* lane) noexcept nogil:
        cdef uint32_t slot = lane.slots[lane.head]
        lane.head += 1
        lane.size -= 1
        return slot

    cdef int route(self, double t) except -1 nogil:
        cdef deepum_command* c
        cdef uint32_t i, slot
        cdef uint64_t block
        for i in range(self.engine.command_count):
            c = &self.engine.commands[i]
            block = c.block
            while block < c.block + c.count:
                slot = self.engine.mem.slot_of(<uint32_t>block)
                block = self.engine.mem.past(block, slot)
                if c.type == DEEPUM_COMMAND_PREFETCH:
                    self.push(&self.inward, slot)
                elif c.type == DEEPUM_COMMAND_EVICT and not c.flags & DEEPUM_COMMAND_CLEAN:
                    self.push(&self.outward, slot)
                else:
                    self.tally.bytes_dropped += self.engine.mem.frames(slot) * BLOCK_BYTES
        self.engine.command_count = 0
        self.start_out(t)
        self.start_in(t)
        return 0

    cdef void start_out(self, double t) noexcept nogil:
        cdef uint32_t blocks
        if self.outward.busy or not self.outward.size:
            return
        self.outward.slot = self.pop(&self.outward)
        self.outward.busy = True
        blocks = self.engine.mem.frames(self.outward.slot)
        self.outward.done = t + blocks * (
            self.rates.block_out_both if self.inward.busy else self.rates.block_out)
        self.tally.bytes_out += blocks * BLOCK_BYTES

    cdef void start_in(self, double t) noexcept nogil:
        cdef uint32_t blocks
        if self.inward.busy or not self.inward.size:
            return
        self.inward.slot = self.pop(&self.inward)
        self.inward.busy = True
        blocks = self.engine.mem.frames(self.inward.slot)
        self.inward.done = t + self.remap[size_class(blocks)]
        self.in_copy = (self.engine.mem.at(self.inward.slot).flags & CONTENT) != 0
        if self.in_copy:
            self.inward.done += blocks * (
                self.rates.block_in_both if self.outward.busy else self.rates.block_in)
            self.tally.bytes_in += blocks * BLOCK_BYTES

    # -- time ---------------------------------------------------------------------------------

    cdef int settle(self, double t) except -1 nogil:
        self.engine.pump()
        self.route(t)
        self.start_kernel(t)
        return 0

    cdef double upcoming(self) noexcept nogil:
        return min(self.inward.done if self.inward.busy else FOREVER,
                   self.outward.done if self.outward.busy else FOREVER,
                   self.run_done if self.running else FOREVER)

    cdef void tick(self, double t) noexcept nogil:
        # A launch that waits does so for a move, or for a frame that something has to leave.
        if not self.running and self.engine.launched > self.engine.completed:
            if self.engine.mem.at(self.touch_slot[self.first]).state == INCOMING:
                self.tally.stall_late += t - self.now
            else:
                self.tally.stall_evict += t - self.now
        self.now = t

    cdef int advance(self, double t) except -1 nogil:
        cdef double done = self.upcoming()
        cdef Block* b
        while done <= t:
            self.tick(done)
            if self.inward.busy and self.inward.done == done:
                self.inward.busy = False
                if self.inward.slot != NONE:
                    self.engine.arrived(self.inward.slot)
                    b = self.engine.mem.at(self.inward.slot)
                    if self.in_copy and b.written <= self.engine.completed:
                        b.flags &= ~DIRTY
            elif self.outward.busy and self.outward.done == done:
                self.outward.busy = False
                if self.outward.slot != NONE:
                    self.engine.departed(self.outward.slot)
            else:
                self.complete_kernel()
            self.settle(done)
            done = self.upcoming()
        if t < FOREVER:
            self.tick(t)
        return 0

    cdef int wait(self) except -1 nogil:
        # Until the next thing happens; while a launch waits something always can.
        cdef double next = self.upcoming()
        if next == FOREVER:
            self.use_host_memory()
            return 0
        return self.advance(next)

    # -- launches -----------------------------------------------------------------------------

    cdef bint admits(self, uint64_t kernel) noexcept nogil:
        # Whether the engine may be told of one launch more.
        cdef uint64_t more = 0
        cdef int64_t t
        cdef Block* b
        if self.engine.launched == self.engine.completed:
            return True
        if self.engine.launched - self.engine.completed > self.ahead:
            return False
        if self.engine.mem.managed <= self.engine.mem.budget:
            return True
        for t in range(self.touch_start[kernel], self.touch_start[kernel + 1]):
            b = self.engine.mem.at(self.touch_slot[t])
            if b.pinned <= self.engine.completed:
                more += self.engine.mem.frames(self.touch_slot[t])
        return self.engine.pinned_now + more <= self.engine.mem.budget // 2

    cdef int run_kernel(self, uint64_t kernel) except -1 nogil:
        cdef uint64_t seq
        cdef int64_t t
        cdef Block* b
        while not self.admits(kernel):
            self.wait()
        seq = self.engine.launched + 1
        for t in range(self.touch_start[kernel], self.touch_start[kernel + 1]):
            if self.touch_flags[t] & TOUCH_WRITE:
                b = self.engine.mem.at(self.touch_slot[t])
                b.written = seq        # the host's copy is an old one from then on
                b.flags |= DIRTY
        self.submitted[seq % LAUNCH_RING] = kernel
        if seq == self.engine.completed + 1:
            self.first = self.touch_start[kernel]
        self.name_tensors(kernel)
        self.engine.launch(self.exec_id[kernel])
        return self.settle(self.now)

    cdef void start_kernel(self, double t) noexcept nogil:
        # The next launch's gate opens once all that it names is resident; it stays so till its end.
        cdef uint64_t kernel
        if self.running or self.engine.launched == self.engine.completed:
            return
        kernel = self.submitted[(self.engine.completed + 1) % LAUNCH_RING]
        while self.first < self.touch_start[kernel + 1]:
            if self.engine.mem.at(self.touch_slot[self.first]).state != RESIDENT:
                return
            self.first += 1
        self.running = True
        self.run_done = t + self.kernel_time[kernel]
        self.tally.compute += self.kernel_time[kernel]

    cdef void use_host_memory(self) noexcept nogil:
        # Nothing moves and the next launch still lacks memory: there is no frame for it. It runs
        # all the same, and what it lacks crosses the bus as it is used.
        cdef uint64_t kernel = self.submitted[(self.engine.completed + 1) % LAUNCH_RING]
        cdef double inward = 0.0, outward = 0.0, longest
        cdef Block* b
        while self.first < self.touch_start[kernel + 1]:
            b = self.engine.mem.at(self.touch_slot[self.first])
            if b.state != RESIDENT:
                b.flags &= ~DEMANDED
                if b.flags & CONTENT:
                    inward += self.touch_bytes[self.first]
                if self.touch_flags[self.first] & TOUCH_WRITE:
                    outward += self.touch_bytes[self.first]
                    b.flags |= CONTENT
            self.first += 1
        self.tally.bytes_in += <uint64_t>inward
        self.tally.bytes_out += <uint64_t>outward
        self.inward.busy = self.outward.busy = True
        self.inward.slot = self.outward.slot = NONE
        self.inward.done = self.now + inward * self.zero_copy_s
        self.outward.done = self.now + outward * self.zero_copy_s
        longest = max(self.kernel_time[kernel], max(inward, outward) * self.zero_copy_s)
        self.running = True
        self.run_done = self.now + longest
        self.tally.compute += self.kernel_time[kernel]
        self.tally.stall_late += longest - self.kernel_time[kernel]

    cdef int complete_kernel(self) except -1 nogil:
        self.running = False
        self.engine.complete(self.engine.completed + 1)
        if self.engine.launched > self.engine.completed:
            self.first = self.touch_start[
                self.submitted[(self.engine.completed + 1) % LAUNCH_RING]]
        if self.sampling:
            with gil:
                self.sample()
        return 0

    cdef int pause(self, double seconds) except -1 nogil:
        self.finish()
        self.tally.host += seconds
        return self.advance(self.now + seconds)

    cdef int finish(self) except -1 nogil:
        while self.engine.launched > self.engine.completed:
            self.wait()
        return 0

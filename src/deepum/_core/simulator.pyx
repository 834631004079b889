# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The simulator: an engine driven by a trace under a modelled clock.

One compute stream runs a kernel at a time; its time is spread evenly over the blocks it touches,
in the order in which it touches them. One mover works each way on the bus. A touch of

- a resident block costs nothing;
- a block on its way waits for it, and for a replay of the fault;
- any other block is a demand fault: the faults that the kernel has pending are served together,
  one block after the other, and while they are served no prefetch starts.

docs/simulator.md says what is modelled and what is not.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.engine cimport NO_FRAME, TAKEN, WAIT_IN, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.lowering cimport TOUCH_RANDOM, TOUCH_WRITE, Program
from deepum._core.records cimport (
    DEEPUM_COMMAND_CLEAN, DEEPUM_COMMAND_DEMAND, DEEPUM_COMMAND_EVICT, DEEPUM_COMMAND_PREFETCH,
    deepum_command,
)
from deepum._core.residency cimport (
    ABSENT, AHEAD, CONTENT, DIRTY, IN_PLACE, INCOMING, LEAF_BLOCKS, OUTGOING, QUEUED, RESIDENT,
    Block,
)

import numpy as np

cdef double FOREVER = 1e300
cdef uint64_t BLOCK_BYTES = 1 << 21


cdef class Simulator:
    """Runs steps of a trace and keeps the time.

    Parameters
    ----------
    engine : Engine
    program : Program
        The trace's kernels, lowered.
    columns : dict of numpy.ndarray
        `Trace.columns()`.
    kernel_time : numpy.ndarray
        Seconds of each kernel row when everything it touches is resident.
    touch_faults : numpy.ndarray
        4 KiB pages that fault if the block of a touch is not resident.
    rates : dict
        The machine; keys as the struct `Rates`.
    names_ranges : bool
        Whether each launch tells the engine what it will touch.
    chunk : int
        The most blocks that move as one, a power of two.
    **options
        A subclass's own.
    """

    def __cinit__(
        self, Engine engine not None, Program program not None, dict columns, kernel_time,
        touch_faults, dict rates, *, bint names_ranges=False, uint32_t chunk=1, **options,
    ):
        cdef Py_ssize_t i
        cdef const uint64_t[:] address = columns["segment_address"]
        cdef const uint64_t[:] size = columns["segment_bytes"]
        cdef const uint32_t[::1] initial = columns["initial"]
        cdef const uint32_t[::1] blocks = program.touch_block
        self.engine = engine
        self.program = program
        self.exec_id = program.exec_id
        self.touch_start = program.touch_start
        self.touch_faults = np.ascontiguousarray(touch_faults, dtype=np.uint16)
        self.touch_moved = program.touch_moved
        self.touch_flags = program.touch_flags
        self.gather_share = program.gather_share
        # Rows of a gather are far apart: of a page only the row crosses the bus.
        pages = program.touch_pages.astype(np.float64) * 4096
        each = columns["kernel_bytes"] / np.maximum(program.working_set, 1)
        self.touch_bytes = np.where(
            program.touch_flags & TOUCH_RANDOM,
            np.minimum(pages, np.repeat(each, program.working_set)), pages,
        ).astype(np.uint32)
        self.kernel_time = np.ascontiguousarray(kernel_time, dtype=np.float64)
        self.event_op = columns["event_op"]
        self.event_arg = columns["event_arg"]
        self.tensor_address = columns["tensor_address"]
        self.tensor_bytes = columns["tensor_block_bytes"]
        self.tensor_kind = columns["tensor_kind"]
        self.operand_start = columns["kernel_operand_start"]
        self.operand_tensor = columns["operand_tensor"]
        self.rates = rates
        self.names_ranges = names_ranges
        self.random_state = 1
        self.samples = []
        self.next_done = self.in_done = self.out_done = FOREVER
        if engine.window > FIFO - 1:
            raise ValueError(f"window must be at most {FIFO - 1} blocks")
        for i in range(address.shape[0]):
            engine.mem.manage(address[i], size[i], chunk)
        slots = np.empty(blocks.shape[0], np.uint32)
        self.touch_slot = slots
        for i in range(blocks.shape[0]):
            self.touch_slot[i] = engine.mem.slot_of(blocks[i])
            if self.touch_slot[i] == NONE:
                raise ValueError(f"block {blocks[i]} lies in no segment of the trace")
        largest = int(program.working_set.max()) if len(program.exec_id) else 0
        self.shuffled = np.empty(max(1, largest), np.uint32)
        self.shuffled_faults = np.empty(max(1, largest), np.uint16)
        self.shuffled_moved = np.empty(max(1, largest), np.uint16)
        self.shuffled_touch = np.empty(max(1, largest), np.int64)
        for i in range(initial.shape[0]):
            engine.alloc(
                self.tensor_address[initial[i]], self.tensor_bytes[initial[i]],
                self.tensor_kind[initial[i]],
            )
            engine.host_content(self.tensor_address[initial[i]], self.tensor_bytes[initial[i]])

    def __dealloc__(self):
        free(self.out_fifo)

    # -- the movers ---------------------------------------------------------------------------

    cdef void set_next(self) noexcept nogil:
        self.next_done = min(self.in_done if self.in_busy else FOREVER,
                             self.out_done if self.out_busy else FOREVER)

    cdef double share(self, uint32_t slot) noexcept nogil:
        # Share of the block that is on the device: scattered faults bring pages, not blocks.
        cdef uint16_t filled = self.engine.mem.at(slot).filled
        return filled / 512.0 if filled else 1.0

    cdef void start_in(self, double t) noexcept nogil:
        # Begin the next move to the device, unless faults are being served or one is under way.
        cdef Move move
        cdef double cost
        if self.in_busy or self.servicing or not self.in_size:
            return
        move = self.in_fifo[self.in_head]
        self.in_head = (self.in_head + 1) % FIFO
        self.in_size -= 1
        cost = self.rates.move_in if move.opens else 0.0
        if self.engine.mem.at(move.slot).flags & CONTENT:
            cost += self.rates.block_in_both if self.out_busy else self.rates.block_in
            self.tally.bytes_in += BLOCK_BYTES
        elif self.engine.policy.plain_memory:
            cost = 0.0
        else:
            cost += self.rates.populate
        self.engine.mem.at(move.slot).filled = 0
        self.in_copy = (self.engine.mem.at(move.slot).flags & CONTENT) != 0
        self.in_slot = move.slot
        self.in_busy = True
        self.in_done = t + cost
        self.set_next()

    cdef void start_out(self, double t) noexcept nogil:
        cdef Move move
        if self.out_busy or not self.out_size:
            return
        move = self.out_fifo[self.out_head]
        self.out_head += 1
        self.out_size -= 1
        if self.out_urgent:
            self.out_urgent -= 1
        if not self.out_size:
            self.out_head = 0
        self.out_slot = move.slot
        self.out_busy = True
        self.out_done = max(t, move.ready)
        self.out_done += (self.rates.move_out if move.opens else 0.0) + self.share(
            move.slot) * (self.rates.block_out_both if self.in_busy else self.rates.block_out)
        self.tally.bytes_out += <uint64_t>(self.share(move.slot) * BLOCK_BYTES)
        self.set_next()

    cdef int push_out(self, uint32_t slot, bint opens, bint urgent) except -1 nogil:
        # Evictions that a fault waits for go before the others, behind each other.
        cdef uint32_t i, capacity, place
        cdef void* memory
        if self.out_head + self.out_size == self.out_capacity:
            capacity = self.out_capacity * 2 if self.out_capacity else 256
            memory = realloc(self.out_fifo, capacity * sizeof(Move))
            if not memory:
                with gil:
                    raise MemoryError()
            self.out_fifo = <Move*>memory
            self.out_capacity = capacity
        place = self.out_head + (self.out_urgent if urgent else self.out_size)
        i = self.out_head + self.out_size
        while i > place:
            self.out_fifo[i] = self.out_fifo[i - 1]
            i -= 1
        self.out_fifo[place].slot = slot
        self.out_fifo[place].opens = opens
        self.out_fifo[place].ready = self.kernels_done
        self.out_size += 1
        if urgent:
            self.out_urgent += 1
        return 0

    cdef int route(self, double t) except -1 nogil:
        # Hand the engine's commands to the movers.
        cdef deepum_command* c
        cdef uint32_t i, k, slot, place
        for i in range(self.engine.command_count):
            c = &self.engine.commands[i]
            for k in range(c.count):
                slot = self.engine.mem.slot_of(<uint32_t>(c.block + k))
                if c.type == DEEPUM_COMMAND_PREFETCH:
                    place = (self.in_head + self.in_size) % FIFO
                    self.in_fifo[place].slot = slot
                    self.in_fifo[place].opens = k == 0
                    self.in_size += 1
                elif c.type == DEEPUM_COMMAND_EVICT and not c.flags & DEEPUM_COMMAND_CLEAN:
                    self.push_out(slot, k == 0, c.flags & DEEPUM_COMMAND_DEMAND)
                else:
                    self.tally.bytes_dropped += BLOCK_BYTES
        self.engine.command_count = 0
        self.start_out(t)
        self.start_in(t)
        return 0

    cdef int settle(self, double t) except -1 nogil:
        # Let the engine decide and the movers take up what it decided. While faults are served
        # only what is on their path is decided.
        if not self.servicing:
            self.engine.pump()
        return self.route(t)

    cdef int advance(self, double t) except -1 nogil:
        # Let the movers work until t.
        cdef double done
        cdef bint inward
        while self.next_done <= t:
            done = self.next_done
            inward = self.in_busy and self.in_done <= (self.out_done if self.out_busy else FOREVER)
            if inward:
                self.in_busy = False
                self.engine.arrived(self.in_slot)
                if self.in_copy:
                    self.engine.mem.at(self.in_slot).flags &= ~DIRTY
            else:
                self.out_busy = False
                self.engine.departed(self.out_slot)
            self.set_next()
            self.settle(done)
        return 0

    # -- misses -------------------------------------------------------------------------------

    cdef int wait_late(self, uint32_t slot) except -1 nogil:
        # The block is on its way: its move goes to the front, the kernel waits and is replayed.
        cdef Block* b = self.engine.mem.at(slot)
        cdef double start = self.now
        cdef uint32_t i, here, there
        cdef Move moved
        if b.flags & AHEAD:
            b.flags &= ~AHEAD
            self.engine.n.late += 1
            self.engine.n.prefetch_used += 1
        for i in range(self.in_size):
            here = (self.in_head + i) % FIFO
            if self.in_fifo[here].slot == slot:
                moved = self.in_fifo[here]
                moved.opens = moved.opens or i > 0
                while i:
                    there = (self.in_head + i - 1) % FIFO
                    self.in_fifo[(self.in_head + i) % FIFO] = self.in_fifo[there]
                    i -= 1
                self.in_fifo[self.in_head] = moved
                break
        while b.state == INCOMING:
            self.now = max(self.now, self.next_done)
            self.advance(self.now)
        self.now += self.rates.fault_batch
        self.tally.stall_late += self.now - start
        return 0

    cdef int hurry(self, uint32_t slot) except -1 nogil:
        # The block's prefetch still waits for a frame: it gets one now and moves first.
        cdef double start = self.now
        cdef uint32_t place
        if self.take_frame(slot, True):
            place = (self.in_head + FIFO - 1) % FIFO
            self.in_head = place
            self.in_fifo[place].slot = slot
            self.in_fifo[place].opens = True
            self.in_size += 1
            self.settle(self.now)
        self.tally.stall_evict += self.now - start
        return self.wait_late(slot)

    cdef int take_frame(self, uint32_t slot, bint queued) except -1 nogil:
        # Wait until the block has a frame, which may take an eviction. False if meanwhile a
        # prefetch has given it one.
        cdef int answer
        cdef bint waits
        while self.engine.mem.at(slot).state == OUTGOING:
            self.now = max(self.now, self.next_done)
            self.advance(self.now)
        while self.engine.mem.at(slot).state == ABSENT:
            if queued:
                answer = self.engine.hurry(slot)
            else:
                answer = self.engine.take_frame(slot)
            self.route(self.now)
            if answer == TAKEN:
                return 1
            if answer == WAIT_IN and not self.in_busy and self.in_size:
                # Prefetches hold the frames, and wait for this fault to be served: one goes first.
                waits = self.servicing
                self.servicing = False
                self.start_in(self.now)
                self.servicing = waits
            if answer == NO_FRAME or self.next_done == FOREVER:
                with gil:
                    raise RuntimeError("no frame can be freed for a faulted block")
            self.now = max(self.now, self.next_done)
            self.advance(self.now)
        return 0

    cdef int clear_ahead(self, uint32_t frames) except -1 nogil:
        # Begin the evictions that so many faults will wait for, all at once.
        cdef int64_t victim
        while self.engine.mem.frames_free() + <int64_t>self.engine.mem.outgoing < frames:
            victim = self.engine.choose_victim(True, 1)
            if victim < 0:
                break
            self.engine.evict(<uint32_t>victim, True)
        return self.route(self.now)

    cdef int serve(self, uint32_t slot, uint16_t faults, uint16_t moved) except -1 nogil:
        # Give one faulted block a frame and its contents. The driver's work is in proportion to
        # the pages that fault, the transfer to the share of the block that moves.
        cdef Block* b = self.engine.mem.at(slot)
        cdef double start = self.now
        cdef bint copied
        self.take_frame(slot, False)
        copied = (b.flags & CONTENT) != 0
        self.tally.stall_evict += self.now - start
        start = self.now
        self.now += self.rates.fault_page * faults
        if copied:
            if self.in_busy:
                self.now = max(self.now, self.in_done)
            self.advance(self.now)
            b.filled = moved if moved < 512 else 0
            self.now += self.share(slot) * (
                self.rates.block_in_both if self.out_busy else self.rates.block_in)
            self.tally.bytes_in += <uint64_t>(self.share(slot) * BLOCK_BYTES)
        else:
            b.filled = 0
            self.now += self.rates.populate
        self.advance(self.now)
        self.engine.arrived(slot)
        if copied:
            b.flags &= ~DIRTY
        self.tally.stall_fault += self.now - start
        return 0

    cdef int miss(
        self, const uint32_t* slots, const uint16_t* faults, const uint16_t* moved, int64_t j,
        int64_t count
    ) except -1 nogil:
        # Touch j of the kernel is not resident.
        cdef Block* b = self.engine.mem.at(slots[j])
        cdef int64_t batch[64]
        cdef uint32_t size = 0, i
        cdef int64_t k
        if b.state == INCOMING:
            return self.wait_late(slots[j])
        if b.flags & QUEUED:
            return self.hurry(slots[j])
        # Thread blocks further on fault as well before the kernel stands still.
        self.servicing = True
        for k in range(j, min(count, j + 2 * self.rates.fault_window)):
            b = self.engine.mem.at(slots[k])
            if (b.state == ABSENT or b.state == OUTGOING) and not b.flags & QUEUED:
                batch[size] = k
                size += 1
                self.tally.page_faults += faults[k]
                if size == self.rates.fault_window:
                    break
        self.now += self.rates.fault_batch
        self.tally.stall_fault += self.rates.fault_batch
        self.advance(self.now)
        for i in range(size):
            self.engine.fault(slots[batch[i]])
        if self.rates.evict_ahead:
            self.clear_ahead(min(size, self.rates.evict_ahead))
        for i in range(size):
            k = batch[i]
            self.serve(slots[k], faults[k], moved[k])
        self.servicing = False
        self.settle(self.now)
        return 0

    cdef void use_in_place(
        self, uint32_t slot, uint32_t size, bint writes, double each
    ) noexcept nogil:
        # The kernel reads and writes the block on the host. Its threads hide the latency, so it
        # is as fast as the bus, and what moves beside it is that much later.
        cdef Block* b = self.engine.mem.at(slot)
        cdef double blocks = size / <double>BLOCK_BYTES
        cdef double inward = 0.0, outward = 0.0, stall
        if b.flags & CONTENT:
            inward = blocks * (
                self.rates.block_in_both if writes or self.out_busy else self.rates.block_in)
            self.tally.bytes_in += size
        if writes:
            outward = blocks * (
                self.rates.block_out_both if inward > 0.0 or self.in_busy else self.rates.block_out)
            self.tally.bytes_out += size
            b.flags |= CONTENT
        if self.in_busy:
            self.in_done += inward
        if self.out_busy:
            self.out_done += outward
        self.set_next()
        stall = max(0.0, max(inward, outward) - each)
        self.tally.stall_late += stall
        self.now += stall

    # -- the compute stream -------------------------------------------------------------------

    cdef int64_t shuffle(self, uint64_t kernel) noexcept nogil:
        # Touches of a launch with gathers: its random blocks in a new order, some left out.
        cdef int64_t start = self.touch_start[kernel], count = self.touch_start[kernel + 1] - start
        cdef int64_t i, j, touch, kept = 0
        cdef double share = self.gather_share[kernel]
        cdef uint32_t slot
        cdef uint16_t faults, moved
        for i in range(count):
            if self.touch_flags[start + i] & TOUCH_RANDOM and share < 1.0:
                self.random_state = self.random_state * <uint64_t>6364136223846793005 + 1
                if (self.random_state >> 11) * (1.0 / (<uint64_t>1 << 53)) >= share:
                    continue
            self.shuffled[kept] = self.touch_slot[start + i]
            self.shuffled_faults[kept] = self.touch_faults[start + i]
            self.shuffled_moved[kept] = self.touch_moved[start + i]
            self.shuffled_touch[kept] = start + i
            kept += 1
        for i in range(kept - 1, 0, -1):
            self.random_state = self.random_state * <uint64_t>6364136223846793005 + 1
            j = <int64_t>((self.random_state >> 33) % <uint64_t>(i + 1))
            slot = self.shuffled[i]
            self.shuffled[i] = self.shuffled[j]
            self.shuffled[j] = slot
            faults = self.shuffled_faults[i]
            self.shuffled_faults[i] = self.shuffled_faults[j]
            self.shuffled_faults[j] = faults
            moved = self.shuffled_moved[i]
            self.shuffled_moved[i] = self.shuffled_moved[j]
            self.shuffled_moved[j] = moved
            touch = self.shuffled_touch[i]
            self.shuffled_touch[i] = self.shuffled_touch[j]
            self.shuffled_touch[j] = touch
        return kept

    cdef int name_tensors(self, uint64_t kernel) except -1 nogil:
        # Tell the engine which tensors the next launch has as operands, each of them once.
        cdef uint32_t start = self.operand_start[kernel], i, j
        for i in range(start, self.operand_start[kernel + 1]):
            for j in range(start, i):
                if self.operand_tensor[j] == self.operand_tensor[i]:
                    break
            else:
                self.engine.name_range(self.tensor_address[self.operand_tensor[i]],
                                       self.tensor_bytes[self.operand_tensor[i]])
        return 0

    cdef int gate(self, uint64_t kernel) except -1 nogil:
        # Without page faults a launch waits for what was asked to leave, and for those of its
        # tensors that are on their way.
        cdef double start = self.now
        cdef uint64_t block, last
        cdef uint32_t i, tensor, slot
        cdef Block* b
        while self.engine.fence() and self.next_done < FOREVER:
            self.now = max(self.now, self.next_done)
            self.advance(self.now)
        self.tally.stall_evict += self.now - start
        start = self.now
        for i in range(self.operand_start[kernel], self.operand_start[kernel + 1]):
            tensor = self.operand_tensor[i]
            last = (self.tensor_address[tensor] + self.tensor_bytes[tensor] - 1) >> 21
            for block in range(self.tensor_address[tensor] >> 21, last + 1):
                slot = self.engine.mem.slot_of(<uint32_t>block)
                b = self.engine.mem.at(slot)
                while ((b.state == INCOMING or b.flags & QUEUED and b.state != RESIDENT)
                        and self.next_done < FOREVER):
                    self.now = max(self.now, self.next_done)
                    self.advance(self.now)
        self.tally.stall_late += self.now - start
        return 0

    cdef int submit(
        self, uint64_t kernel, const uint32_t* slots, int64_t count
    ) except -1 nogil:
        # Without page faults the program submits a kernel once its memory is there and goes on;
        # kernels run behind it, in order. `now` is the program's time. 0 if the memory is not
        # there in spite of waiting: then the kernel has to fault as on unified memory.
        cdef double evict = self.tally.stall_evict, late = self.tally.stall_late, idle
        cdef int64_t j
        cdef Block* b
        if self.engine.behind:
            self.engine.behind = False
            self.now = max(self.now, self.kernels_done)
            self.advance(self.now)
        self.settle(self.now)
        self.gate(kernel)
        # The program's waiting counts as far as kernels waited with it.
        idle = max(0.0, self.now - self.kernels_done)
        self.tally.stall_late = late + min(idle, self.tally.stall_late - late)
        self.tally.stall_evict = evict + idle - (self.tally.stall_late - late)
        self.kernels_done = max(self.now, self.kernels_done)
        for j in range(count):
            if self.engine.mem.at(slots[j]).state != RESIDENT:
                self.now = self.kernels_done
                self.advance(self.now)
                return 0
        for j in range(count):
            b = self.engine.mem.at(slots[j])
            if b.flags & AHEAD:
                b.flags &= ~AHEAD
                self.engine.n.prefetch_used += 1
        self.kernels_done += self.kernel_time[kernel]
        return 1

    cdef int run_kernel(self, uint64_t kernel) except -1 nogil:
        cdef int64_t start = self.touch_start[kernel], count = self.touch_start[kernel + 1] - start
        cdef const uint32_t* slots = &self.touch_slot[start] if count else NULL
        cdef const uint16_t* faults = &self.touch_faults[start] if count else NULL
        cdef const uint16_t* moved = &self.touch_moved[start] if count else NULL
        cdef double each
        cdef int64_t j, first, touch
        cdef bint writes = False   # in an order that the flags do not tell
        cdef bint plain = self.engine.policy.plain_memory
        cdef Block* b
        if count and self.touch_flags[start] & TOUCH_RANDOM or self.gather_share[kernel] < 1.0:
            count = self.shuffle(kernel)
            slots = &self.shuffled[0]
            faults = &self.shuffled_faults[0]
            moved = &self.shuffled_moved[0]
            writes = True
        if self.names_ranges:
            first = 0
            for j in range(1, count + 1):
                if j == count or slots[j] != slots[j - 1] + 1 or not slots[j] & (LEAF_BLOCKS - 1):
                    self.engine.name_range(
                        <uint64_t>self.engine.mem.block_of(slots[first]) << 21,
                        <uint64_t>(j - first) << 21)
                    first = j
        elif self.engine.policy.wants_ranges:
            self.name_tensors(kernel)
        self.engine.launch(self.exec_id[kernel])
        self.tally.compute += self.kernel_time[kernel]
        if not plain:
            self.now = max(self.now, self.kernels_done)
        if not plain or not self.submit(kernel, slots, count):
            self.settle(self.now)
            each = self.kernel_time[kernel] / count if count else self.kernel_time[kernel]
            for j in range(count):
                if self.next_done <= self.now:
                    self.advance(self.now)
                b = self.engine.mem.at(slots[j])
                while b.state != RESIDENT:
                    if b.flags & IN_PLACE and b.state == ABSENT and not b.flags & QUEUED:
                        touch = self.shuffled_touch[j] if writes else start + j
                        self.use_in_place(
                            slots[j], self.touch_bytes[touch],
                            self.touch_flags[touch] & TOUCH_WRITE, each)
                        break
                    self.miss(slots, faults, moved, j, count)
                if b.flags & AHEAD:
                    b.flags &= ~AHEAD
                    self.engine.n.prefetch_used += 1
                self.now += each
            if not count:
                self.now += each
            if plain:
                self.kernels_done = self.now
        if self.engine.drops_clean:
            for j in range(count):
                if writes or self.touch_flags[start + j] & TOUCH_WRITE:
                    self.engine.mem.at(slots[j]).flags |= DIRTY
        self.engine.complete(self.engine.launched)
        if self.sampling:
            with gil:
                self.sample()
        return 0

    cdef int pause(self, double seconds) except -1 nogil:
        # The program gives the device nothing to do.
        self.now = max(self.now, self.kernels_done)
        self.tally.host += seconds
        self.settle(self.now)      # what the last kernel's end allows begins now
        self.now += seconds
        self.advance(self.now)
        if self.engine.policy.plain_memory:
            self.kernels_done = self.now
        return 0

    cdef int finish(self) except -1 nogil:
        # The program waits for the device.
        return 0

    cdef int sample(self) except -1:
        self.samples.append((
            max(self.now, self.kernels_done),
            self.engine.mem.frames_used() - self.engine.mem.incoming,
            self.engine.mem.active_bytes, self.tally.bytes_in, self.tally.bytes_out,
        ))
        return 0

    # -- from Python --------------------------------------------------------------------------

    def run(
        self, Py_ssize_t start, Py_ssize_t stop, *, bint sampling=False, bint through=True
    ):
        """Run the events from index `start` up to `stop` and return what they took, a dict.

        Where launches wait behind the running one, `through` says whether all of them are to end.
        """
        cdef Py_ssize_t i
        cdef uint64_t arg
        cdef uint8_t op
        cdef double began = max(self.now, self.kernels_done)
        if not 0 <= start <= stop <= self.event_op.shape[0]:
            raise ValueError("events out of range")
        before = dict(self.engine.n)
        memset(&self.tally, 0, sizeof(Tally))
        self.samples = []
        self.sampling = sampling
        with nogil:
            for i in range(start, stop):
                op = self.event_op[i]
                arg = self.event_arg[i]
                if op == 0:
                    self.run_kernel(arg)
                elif op == 1:
                    self.engine.alloc(
                        self.tensor_address[arg], self.tensor_bytes[arg], self.tensor_kind[arg]
                    )
                elif op == 2:
                    self.engine.free(self.tensor_address[arg], self.tensor_bytes[arg])
                else:
                    self.pause(arg * 1e-9)
            if through:
                self.finish()
        self.tally.time = max(self.now, self.kernels_done) - began
        result = dict(self.tally)
        after = dict(self.engine.n)
        result.update({name: after[name] - before[name] for name in after})
        return result

    def take_samples(self):
        """Return the samples of the last sampled run: time, frames, active bytes, in, out."""
        return np.array(self.samples, dtype=np.float64).reshape(-1, 5)

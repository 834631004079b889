# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The conductor of memory that is nowhere unless it was brought.

A kernel that runs before its memory is there does not fault, it ends the program. So every launch
has a gate, and no gate opens for any other reason than that all which its launch names is there.
What cannot be is found out, not waited out:

- A launch that alone needs more than the budget gets the rest in host memory, under the same
  addresses, when nothing else can move any more and nothing runs.
- If nothing can ever move again, the conductor stops with a text that says why, and lets the
  program run into the driver's own error.

Memory is given back in order with launches: that waits until those before it have completed.
While all there is fits and is on the device, gates are open as they are made, and nothing leaves.

DESIGN: that contents are dead is decided once, by the engine. In managed memory a mover has to ask
again, since a kernel may have written the memory since; here one that the engine has not heard of
has not run.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.conductor cimport Gate
from deepum._core.engine cimport LAUNCH_RING
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport (
    Ring, deepum_add, deepum_load, deepum_load32, deepum_now, deepum_sleep, deepum_store,
    deepum_store32, pthread_mutex_lock, pthread_mutex_unlock,
)
from deepum._core.marks cimport MARK_OPEN
from deepum._core.records cimport *
from deepum._core.residency cimport CONTENT, DEMANDED, DIRTY, LEAF_BITS, RESIDENT, Block

cdef uint64_t PATIENCE = 5_000_000_000     # ns in which nothing moved and nothing ran


cdef class ExactMover(Mover):
    """Carries commands out. This one has nothing to carry."""

    cdef int lend(self, uint64_t block) noexcept nogil:
        # Put a chunk that is away into host memory, mapped. 0, or the driver's error.
        return 0

    cdef int take_back(self, uint64_t block) noexcept nogil:
        return 0

    cdef void stale(self, uint64_t block) noexcept nogil:
        # The host's copy of a chunk on the device is an old one from now on.
        pass

    cdef void retire(self, uint64_t address, uint64_t size) noexcept nogil:
        # A segment has been given back, and the engine knows.
        pass

    cdef const char* trouble(self) noexcept nogil:
        # What went wrong for good; NULL if nothing did.
        return NULL

    cdef uint64_t refused(self) noexcept nogil:
        # Chunks that stayed, for lack of host memory.
        return 0


cdef class VmmConductor(Conductor):
    """A conductor that opens no gate before all is there; see `Conductor`.

    `run` leaves the gates as they are when it is told to stop: `release` opens them.
    """

    def __init__(self, engine, feed, ExactMover mover not None, **options):
        self.exact = mover
        self.holds = True

    def __dealloc__(self):
        free(self.named)
        free(self.stamps)
        free(self.lent)

    def finish(self, double seconds):
        """Let what the engine was told of complete and all moves end, and begin nothing new.

        Returns whether that came to an end in time. Launches that come later wait at their gates.
        """
        cdef uint64_t until = deepum_now() + <uint64_t>(seconds * 1e9)
        deepum_store32(&self.finishing, 1)
        with nogil:
            while (not deepum_load32(&self.quiet) and deepum_now() < until
                   and deepum_load32(&self.feed.gating)):
                deepum_sleep(100000)
        return bool(deepum_load32(&self.quiet))

    cdef int stop_short(self, const char* why) except -1 nogil:
        # Threads that wait may hold the GIL: they are let go first.
        deepum_store32(&self.feed.gating, 0)
        self.open(deepum_load(&self.feed.submitted))
        with gil:
            raise RuntimeError(why.decode())

    cdef int round(self) except -1 nogil:
        cdef bint busy = False
        cdef uint64_t done = self.feed.finished()  # before it is asked whether that is known
        cdef const char* why = self.exact.trouble()
        if why != NULL:
            return self.stop_short(why)
        if deepum_load32(&self.feed.blind):
            return self.stop_short(b"completions cannot be followed any more")
        self.hear_of_completions(done, &busy)
        self.see_to_marks(deepum_load32(&self.feed.free_run))
        if self.mover.report(self.engine):
            busy = True
            if self.exact.refused() == self.refused_before:
                self.progress = self.now
            self.refused_before = self.exact.refused()
        if self.lent_count:
            if self.engine.completed < self.lent_to:
                self.looked = self.now
                return busy
            self.end_loan()
        # Launches made while all was there have no gate: they are heard of before anything leaves.
        self.engine.keeps = (deepum_load32(&self.feed.free_run)
                             or self.engine.launched < deepum_load(&self.feed.held_from))
        self.listen(&busy)
        if not deepum_load32(&self.finishing) or self.engine.launched > self.engine.completed:
            self.engine.pump()
            if self.engine.command_count:
                self.dispatch()
                busy = True
        elif self.still():
            deepum_store32(&self.quiet, 1)
        self.open_gates()
        self.unblock()
        self.look_for_rest()
        self.looked = self.now
        return busy

    cdef int listen(self, bint* busy) except -1 nogil:
        cdef Ring* ring = &self.feed.ring
        cdef const deepum_event* event
        cdef uint64_t tail = deepum_load(&ring.tail)
        if self.marks is not None:
            self.note_look(0, 0)
        while ring.head != tail:
            event = &ring.events[ring.head & ring.mask]
            if self.end_step(event):
                deepum_store(&ring.head, ring.head + 1)
                continue
            if event.type == DEEPUM_EVENT_LAUNCH:
                self.gather(event.seq)
                if not self.may_go():
                    break
                self.note_needs(event.seq)
                if (self.steps.launch(event.id, event.seq, event.time_ns)
                        and self.marks is not None):
                    self.note_step(event.seq - 1)
            elif (event.type == DEEPUM_EVENT_UNMANAGE
                    and self.engine.launched > self.engine.completed):
                break              # what runs may use it
            if self.marks is not None:
                self.note(event)
            self.engine.feed_one(event)
            if event.type == DEEPUM_EVENT_UNMANAGE:
                self.exact.retire(event.address, event.bytes)
            deepum_store(&ring.head, ring.head + 1)
            busy[0] = True
        return 0

    cdef int gather(self, uint64_t seq) except -1 nogil:
        # The chunks that a launch names, each once.
        cdef uint64_t block, last, size
        cdef uint32_t slots = self.engine.mem.leaf_count << LEAF_BITS
        cdef uint32_t i, slot
        cdef void* memory
        if seq == self.gathered:
            return 0
        if slots > self.stamp_count:
            memory = realloc(self.stamps, slots * sizeof(uint64_t))
            if memory == NULL:
                with gil:
                    raise MemoryError()
            self.stamps = <uint64_t*>memory
            memset(&self.stamps[self.stamp_count], 0,
                   (slots - self.stamp_count) * sizeof(uint64_t))
            self.stamp_count = slots
        self.named_count = 0
        for i in range(self.engine.range_count):
            size = self.engine.ranges[2 * i + 1]
            if size == 0:
                continue
            block = self.engine.ranges[2 * i] >> DEEPUM_BLOCK_SHIFT
            last = (self.engine.ranges[2 * i] + size - 1) >> DEEPUM_BLOCK_SHIFT
            while block <= last:
                slot = self.engine.mem.slot_of(<uint32_t>block)
                block = self.engine.mem.past(block, slot)
                if slot == NONE or self.stamps[slot] == seq:
                    continue
                self.stamps[slot] = seq
                if self.named_count == self.named_capacity:
                    self.named_capacity = max(<uint32_t>64, 2 * self.named_capacity)
                    memory = realloc(self.named, self.named_capacity * sizeof(uint32_t))
                    if memory == NULL:
                        with gil:
                            raise MemoryError()
                    self.named = <uint32_t*>memory
                self.named[self.named_count] = slot
                self.named_count += 1
        self.gathered = seq
        return 0

    cdef bint may_go(self) noexcept nogil:
        cdef uint64_t more = 0
        cdef uint32_t i
        if deepum_load32(&self.finishing) and not self.engine.keeps:
            return False
        if self.engine.launched == self.engine.completed:
            return True
        if self.engine.launched - self.engine.completed >= LAUNCH_RING - 1:
            return False
        if self.engine.keeps:
            return True
        for i in range(self.named_count):
            if self.engine.mem.at(self.named[i]).pinned <= self.engine.completed:
                more += self.engine.mem.frames(self.named[i])
        return self.engine.pinned_now + more <= self.engine.mem.budget // 2

    cdef int note_needs(self, uint64_t seq) except -1 nogil:
        cdef uint32_t i
        cdef Block* b
        cdef Gate* gate
        if self.gate_tail - self.gate_head == (self.gate_mask + 1 if self.gate_mask else 0):
            self.grow_gates()
        gate = &self.gates[self.gate_tail & self.gate_mask]
        gate.seq = seq
        gate.first = self.slot_tail
        gate.count = 0
        for i in range(self.named_count):
            b = self.engine.mem.at(self.named[i])
            b.written = seq        # nothing says that it is only read
            if b.state == RESIDENT:
                if not b.flags & DIRTY:
                    b.flags |= DIRTY
                    self.exact.stale(self.engine.mem.block_of(self.named[i]))
                continue           # and pinned from now on
            if self.slot_tail - self.slot_head == (self.slot_mask + 1 if self.slot_mask else 0):
                self.grow_slots()
            self.slots[self.slot_tail & self.slot_mask] = self.named[i]
            self.slot_tail += 1
            gate.count += 1
        self.gate_tail += 1
        return 0

    cdef uint64_t last_ready(self) noexcept nogil:
        # The last launch up to which all that launches wait for is there.
        cdef Gate* gate
        cdef uint64_t last = 0
        while self.gate_head != self.gate_tail:
            gate = &self.gates[self.gate_head & self.gate_mask]
            while gate.count:
                if (self.engine.mem.at(self.slots[gate.first & self.slot_mask]).state != RESIDENT
                        and self.lent_to != gate.seq):
                    return last
                gate.first += 1
                gate.count -= 1
            self.slot_head = gate.first
            last = gate.seq
            self.gate_head += 1
            if self.lent_count and last == self.lent_to:
                return last
        return last

    cdef void open(self, uint64_t seq) noexcept nogil:
        # Launching threads open gates too, while all is there.
        pthread_mutex_lock(&self.feed.lock)
        if seq > self.feed.opened:
            if self.marks is not None:
                self.marks.put(MARK_OPEN, deepum_now(), 0, 0, 0, seq, 0)
            if self.flag != NULL:
                deepum_store32(self.flag, <uint32_t>seq)
            deepum_store(&self.feed.opened, seq)
        pthread_mutex_unlock(&self.feed.lock)

    cdef void open_gates(self) noexcept nogil:
        cdef uint64_t last = self.last_ready()
        if last > deepum_load(&self.feed.opened):
            self.open(last)
            self.progress = deepum_now()

    cdef int unblock(self) except -1 nogil:
        # Where the first launch whose gate is closed is next, and waits for what cannot come.
        cdef uint64_t waited = self.now - self.progress if self.now > self.progress else 0
        if self.gate_head == self.gate_tail:
            self.progress = self.now
            return 0
        if (self.gates[self.gate_head & self.gate_mask].seq != self.engine.completed + 1
                or self.engine.keeps):
            return 0
        if self.still():
            return self.lend_rest()
        if waited > PATIENCE and self.exact.refused() != self.refused_then:
            return self.stop_short(
                b"there is no host memory left for what has to leave the device: raise host_limit")
        if waited > 12 * PATIENCE:
            return self.stop_short(b"a move of memory does not end")
        if not waited:
            self.refused_then = self.exact.refused()
        return 0

    cdef int lend_rest(self) except -1 nogil:
        # Nothing runs and nothing can move, so the launch alone needs more than there is.
        cdef Gate* gate = &self.gates[self.gate_head & self.gate_mask]
        cdef uint32_t i, slot
        cdef Block* b
        cdef void* memory
        self.lent_to = gate.seq
        for i in range(gate.count):
            slot = self.slots[(gate.first + i) & self.slot_mask]
            b = self.engine.mem.at(slot)
            if b.state == RESIDENT:
                continue
            if self.exact.lend(self.engine.mem.block_of(slot)):
                return self.stop_short(
                    b"a kernel needs more memory at once than the budget, and the rest cannot be "
                    b"had in host memory: raise memory_limit")
            if self.lent_count == self.lent_capacity:
                self.lent_capacity = max(<uint32_t>64, 2 * self.lent_capacity)
                memory = realloc(self.lent, self.lent_capacity * sizeof(uint32_t))
                if memory == NULL:
                    with gil:
                        raise MemoryError()
                self.lent = <uint32_t*>memory
            self.lent[self.lent_count] = slot
            self.lent_count += 1
            deepum_add(&self.lent_blocks_now, self.engine.mem.frames(slot))
            b.flags &= ~DEMANDED
        if self.lent_count:
            self.squeezed += 1
        self.open_gates()
        return 0

    cdef int end_loan(self) except -1 nogil:
        cdef uint32_t i
        for i in range(self.lent_count):
            if self.exact.take_back(self.engine.mem.block_of(self.lent[i])):
                return self.stop_short(
                    b"there is no host memory left for what a kernel wrote: raise host_limit")
            self.engine.mem.at(self.lent[i]).flags |= CONTENT
        self.lent_count = 0
        self.lent_to = 0
        return 0

    cdef void look_for_rest(self) noexcept nogil:
        # Whether all there is is on the device, so that nothing needs to wait.
        if (deepum_load32(&self.feed.free_run) or self.engine.mem.managed > self.engine.mem.budget
                or self.gate_head != self.gate_tail or not self.still()
                or self.engine.mem.migrated.size + self.engine.mem.dead.size
                != self.engine.mem.managed or deepum_load32(&self.finishing)):
            return
        self.feed.let_run()

    cdef int dispatch(self) except -1 nogil:
        cdef uint32_t i
        for i in range(self.engine.command_count):
            self.mover.submit(self.feed, &self.engine.commands[i])
        self.engine.command_count = 0
        return 0

    @property
    def lent_blocks(self):
        """Blocks that launches used in host memory."""
        return deepum_load(&self.lent_blocks_now)

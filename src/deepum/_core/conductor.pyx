# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The conductor: the one thread of a live session that talks to the engine.

It takes the program's events in order, tells the engine what has finished, hands the engine's
commands to a mover and its reports back. Where launches are gated, it also decides when the device
may go on: a gate opens when all that its launch names is resident.

Launches reach the engine not when the program submits them but when their turn comes: while what
the launches before them hold leaves half of the budget free. The program may be a thousand kernels
ahead of the device; if all of that were pinned at once, nothing could be evicted.

A gate must never hold up the program for good. Whatever the reason, one that has made no progress
for `PATIENCE` is opened, and the kernel finds its memory by faulting.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from deepum._core.engine cimport LAUNCH_RING, Counters, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport (
    STEP_EVENT, Feed, Ring, deepum_load, deepum_load32, deepum_now, deepum_sleep, deepum_store,
    deepum_store32, deepum_wake_sharply, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock,
)
from deepum._core.marks cimport (
    MARK_COMPLETE, MARK_FAULT, MARK_OPEN, MARK_RESIDENT, MARK_STEP, Marks,
)
from deepum._core.records cimport *
from deepum._core.residency cimport MANAGED, RESIDENT, Block
from deepum._core.steps cimport Steps

cdef uint64_t PATIENCE = 2_000_000_000     # ns in which nothing moved, ended or was let go
cdef uint64_t FREE_RUN = 8                 # launches that may run between two looks at the budget
cdef uint64_t NAP = 5_000                  # ns, while the device has work
cdef uint64_t SLEEP = 200_000              # ns, while it has none
cdef uint64_t PAUSE = 200_000              # ns without a launch, after which the last ones matter


cdef class Mover:
    """Carries commands out. This one only says that it did."""

    cdef int submit(self, Feed feed, const deepum_command* command) except -1 nogil:
        return 0

    cdef int report(self, Engine engine) except -1 nogil:
        # Tell the engine what has arrived and departed since; returns how much.
        return 0

    cdef bint idle(self) noexcept nogil:
        return True


cdef class Conductor:
    """Ties a feed, an engine and a mover together.

    Parameters
    ----------
    engine, feed, mover
        What it ties together.
    gated : bool
        Whether launches wait until what they name is resident.
    names : bool
        Whether the engine is told what launches name.
    strict : bool
        Whether launches that are not gated wait while blocks that faults brought in have no
        frame in the budget yet. A driver that really has no more memory makes the faults wait.
    """

    def __cinit__(
        self, Engine engine not None, Feed feed not None, Mover mover not None, *,
        bint gated, bint names, bint strict=True
    ):
        self.engine = engine
        self.feed = feed
        self.mover = mover
        self.gated = gated
        self.strict = strict
        self.names = names
        self.failure = ""
        self.steps = Steps()
        pthread_mutex_init(&self.lock, NULL)

    def __dealloc__(self):
        free(self.gates)
        free(self.slots)
        pthread_mutex_destroy(&self.lock)

    def set_flag(self, uint64_t address):
        """Say where the device looks for the last open launch, a word of host memory."""
        self.flag = <uint32_t*>address

    def record(self, Marks marks not None):
        """Note all that happens, and when; call it before `run`."""
        self.marks = marks

    def run(self):
        """Conduct until `stop`; call it in a thread of its own.

        An error ends the engine's part: launches are no longer gated, and the program goes on
        with the memory as the driver manages it. `failure` says why.
        """
        cdef bint busy
        cdef uint64_t quiet = 0
        self.progress = deepum_now()
        if self.marks is not None or self.holds:
            deepum_wake_sharply()  # completions are seen as late as it wakes
        try:
            with nogil:
                while not deepum_load32(&self.stopping):
                    pthread_mutex_lock(&self.lock)
                    try:
                        busy = self.round()
                    finally:
                        pthread_mutex_unlock(&self.lock)
                    self.rounds += 1
                    if busy:
                        quiet = 0
                        self.busy_rounds += 1
                    else:
                        quiet += 1
                        deepum_sleep(SLEEP if quiet > 2000 else NAP)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            if self.failure or not self.holds:
                self.release()

    def release(self):
        """Open every gate, those to come included."""
        with nogil:
            deepum_store32(&self.feed.gating, 0)
            self.open(deepum_load(&self.feed.submitted))
            # What was submitted meanwhile saw the gates closed still.
            deepum_sleep(1_000_000)
            self.open(deepum_load(&self.feed.submitted))

    def stop(self):
        """Ask `run` to return."""
        deepum_store32(&self.stopping, 1)

    def locked(self, function, *arguments):
        """Call a function while the engine stands still."""
        with nogil:
            pthread_mutex_lock(&self.lock)
        try:
            return function(*arguments)
        finally:
            pthread_mutex_unlock(&self.lock)

    cdef int round(self) except -1 nogil:
        # One look at everything. Tells whether there was anything to do.
        cdef bint busy = False, fits
        self.hear_of_completions(self.feed.finished(), &busy)
        if self.engine.allow_invalidate and deepum_load32(&self.feed.blind):
            # What still runs is not known any more, so nothing may be dropped.
            self.engine.keep_contents()
        if self.mover.report(self.engine):
            self.progress = deepum_now()
            busy = True
        self.listen(&busy)
        fits = not self.alone and self.engine.mem.managed <= self.engine.mem.budget
        self.see_to_marks(fits)
        if self.gated or self.strict:
            deepum_store32(&self.feed.gating, not fits)
        self.engine.pump()
        if self.engine.command_count:
            self.dispatch()
            busy = True
        self.open_gates()
        self.looked = self.now
        return busy

    cdef int hear_of_completions(self, uint64_t done, bint* busy) except -1 nogil:
        # A look begins: tell the engine that launches up to `done` have finished.
        done = min(done, self.engine.launched)
        self.now = deepum_now()
        if done > self.engine.completed:
            self.engine.complete(done)
            self.progress = self.now
            self.steps.complete(done, self.now)
            if self.marks is not None:
                self.marks.put(MARK_COMPLETE, self.now, 0, 0, self.now - self.looked, done, 0)
            busy[0] = True
        return 0

    cdef void see_to_marks(self, bint rarely) noexcept nogil:
        # While all memory is on the device, most launches go without a mark; in a record all count.
        cdef uint64_t submitted = deepum_load(&self.feed.submitted)
        rarely = rarely and self.marks is None
        self.feed.let_mark_rarely(rarely)
        if submitted != self.submitted:
            self.submitted = submitted
            self.paused = self.now
        if self.feed.owing and not (rarely and self.now - self.paused < PAUSE):
            self.feed.ask()

    cdef bint end_step(self, const deepum_event* event) noexcept nogil:
        # Whether the event says that a step ends: the engine does not hear of that.
        if event.type != STEP_EVENT:
            return False
        self.paused = 0            # its last launch is worth a mark
        if self.steps.mark(self.engine.launched) and self.marks is not None:
            self.note_step(self.engine.launched)
        return True

    cdef int listen(self, bint* busy) except -1 nogil:
        cdef Ring* ring = &self.feed.faults
        cdef const deepum_event* event
        cdef uint64_t tail = deepum_load(&ring.tail)
        cdef uint64_t faults = tail - ring.head, first = 0
        cdef uint32_t slot
        if faults:
            first = ring.events[ring.head & ring.mask].address
        while ring.head != tail:
            event = &ring.events[ring.head & ring.mask]
            slot = self.engine.mem.slot_of(<uint32_t>(event.address >> DEEPUM_BLOCK_SHIFT))
            if slot != NONE:       # else memory that has been given back, or is not ours
                self.engine.feed_one(event)
            deepum_store(&ring.head, ring.head + 1)
            busy[0] = True
        if self.marks is not None:
            self.note_look(faults, first)
        ring = &self.feed.ring
        tail = deepum_load(&ring.tail)
        while ring.head != tail:
            event = &ring.events[ring.head & ring.mask]
            if self.end_step(event):
                deepum_store(&ring.head, ring.head + 1)
                continue
            if event.type == DEEPUM_EVENT_LAUNCH:
                if not self.may_go():
                    break
                if self.gated:
                    self.note_needs(event.seq)
                if not self.names:
                    self.engine.range_count = 0
                if (self.steps.launch(event.id, event.seq, event.time_ns)
                        and self.marks is not None):
                    self.note_step(event.seq - 1)
            if self.marks is not None:
                self.note(event)
            self.engine.feed_one(event)
            deepum_store(&ring.head, ring.head + 1)
            busy[0] = True
        return 0

    cdef void note_step(self, uint64_t seq) noexcept nogil:
        self.marks.put(MARK_STEP, self.now, 0, self.steps.sort, self.steps.told, seq, 0)

    cdef void note(self, const deepum_event* event) noexcept nogil:
        # Something the program did.
        cdef bint launch = event.type == DEEPUM_EVENT_LAUNCH
        self.marks.put(
            event.type, event.time_ns if launch else self.now, 0,
            event.exec_id if launch else event.address, event.bytes, event.seq,
            <uint32_t>(event.id >> 32))

    cdef void note_look(self, uint64_t faults, uint64_t address) noexcept nogil:
        cdef uint64_t resident = self.engine.mem.frames_used()
        if faults:
            self.marks.put(
                MARK_FAULT, self.now, 0, address, faults, self.engine.completed + 1, 0)
        if resident != self.resident:
            self.resident = resident
            self.marks.put(MARK_RESIDENT, self.now, 0, 0, resident, 0, 0)

    cdef bint may_go(self) noexcept nogil:
        # Whether the engine may be told of the launch whose ranges it has.
        cdef uint64_t block, end, more = 0
        cdef uint32_t i, slot
        if self.engine.launched == self.engine.completed:
            return True
        if self.alone:
            return False
        if self.engine.launched - self.engine.completed >= LAUNCH_RING - 1:
            return False
        if not self.gated or self.engine.mem.managed <= self.engine.mem.budget:
            return True
        for i in range(self.engine.range_count):
            end = self.engine.ranges[2 * i] + self.engine.ranges[2 * i + 1]
            for block in range(self.engine.ranges[2 * i] >> DEEPUM_BLOCK_SHIFT,
                               ((end - 1) >> DEEPUM_BLOCK_SHIFT) + 1):
                slot = self.engine.mem.slot_of(<uint32_t>block)
                if slot != NONE and self.engine.mem.at(slot).pinned <= self.engine.completed:
                    more += 1
        return self.engine.pinned_now + more <= self.engine.mem.budget // 2

    cdef int note_needs(self, uint64_t seq) except -1 nogil:
        # Remember what a launch waits for, before the engine hears of it.
        cdef uint64_t block, size
        cdef uint32_t i, slot
        cdef Block* b
        cdef Gate* gate
        if self.gate_tail - self.gate_head == (self.gate_mask + 1 if self.gate_mask else 0):
            self.grow_gates()
        gate = &self.gates[self.gate_tail & self.gate_mask]
        gate.seq = seq
        gate.first = self.slot_tail
        gate.count = 0
        for i in range(self.engine.range_count):
            size = self.engine.ranges[2 * i + 1]
            if size == 0:
                continue
            for block in range(self.engine.ranges[2 * i] >> DEEPUM_BLOCK_SHIFT,
                               ((self.engine.ranges[2 * i] + size - 1) >> DEEPUM_BLOCK_SHIFT) + 1):
                slot = self.engine.mem.slot_of(<uint32_t>block)
                if slot == NONE:
                    continue
                b = self.engine.mem.at(slot)
                if b.state == RESIDENT:
                    continue       # and pinned from now on
                if self.slot_tail - self.slot_head == (self.slot_mask + 1 if self.slot_mask else 0):
                    self.grow_slots()
                self.slots[self.slot_tail & self.slot_mask] = slot
                self.slot_tail += 1
                gate.count += 1
        self.gate_tail += 1
        return 0

    cdef int grow_gates(self) except -1 nogil:
        cdef uint64_t size = (self.gate_mask + 1) * 2 if self.gate_mask else 1024
        cdef uint64_t i
        cdef Gate* memory = <Gate*>realloc(NULL, size * sizeof(Gate))
        if memory == NULL:
            with gil:
                raise MemoryError()
        for i in range(self.gate_head, self.gate_tail):
            memory[i & (size - 1)] = self.gates[i & self.gate_mask]
        free(self.gates)
        self.gates = memory
        self.gate_mask = size - 1
        return 0

    cdef int grow_slots(self) except -1 nogil:
        cdef uint64_t size = (self.slot_mask + 1) * 2 if self.slot_mask else 4096
        cdef uint64_t i
        cdef uint32_t* memory = <uint32_t*>realloc(NULL, size * sizeof(uint32_t))
        if memory == NULL:
            with gil:
                raise MemoryError()
        for i in range(self.slot_head, self.slot_tail):
            memory[i & (size - 1)] = self.slots[i & self.slot_mask]
        free(self.slots)
        self.slots = memory
        self.slot_mask = size - 1
        return 0

    cdef void open_gates(self) noexcept nogil:
        cdef uint64_t last = self.engine.launched
        if self.gated:
            last = self.last_ready()
        elif self.strict and self.engine.mem.managed > self.engine.mem.budget:
            last = min(last, self.engine.completed + FREE_RUN)
            if self.engine.demand_size and not self.still():
                last = 0
        if last > self.feed.opened:
            self.open(last)
            self.progress = deepum_now()
        elif self.feed.opened >= deepum_load(&self.feed.submitted):
            self.progress = deepum_now()
        elif deepum_now() - self.progress > PATIENCE:
            # Whatever it is that holds things up, the program comes first.
            self.overdue += 1
            self.note_stuck()
            self.gate_head = self.gate_tail
            self.slot_head = self.slot_tail
            self.open(deepum_load(&self.feed.submitted))
            self.progress = deepum_now()

    cdef void note_stuck(self) noexcept nogil:
        cdef Block* b
        self.stuck[0] = <int64_t>deepum_load(&self.feed.submitted)
        self.stuck[1] = <int64_t>self.feed.opened
        self.stuck[2] = <int64_t>self.engine.launched
        self.stuck[3] = <int64_t>self.engine.completed
        self.stuck[4] = <int64_t>self.engine.mem.incoming
        self.stuck[5] = <int64_t>self.engine.mem.outgoing
        self.stuck[6] = self.engine.mem.frames_free()
        self.stuck[7] = self.engine.demand_size
        self.stuck[8] = <int64_t>self.engine.pinned_now
        self.stuck[9] = self.mover.idle()
        self.stuck[10] = self.stuck[11] = -1
        if self.gate_head != self.gate_tail and self.gates[self.gate_head & self.gate_mask].count:
            b = self.engine.mem.at(
                self.slots[self.gates[self.gate_head & self.gate_mask].first & self.slot_mask])
            self.stuck[10] = b.state
            self.stuck[11] = b.flags

    cdef bint still(self) noexcept nogil:
        # Nothing moves, so nothing will change by waiting.
        return (self.engine.mem.incoming == 0 and self.engine.mem.outgoing == 0
                and self.mover.idle())

    cdef uint64_t last_ready(self) noexcept nogil:
        # The last launch up to which all that launches wait for is resident.
        cdef Gate* gate
        cdef Block* b
        cdef uint64_t last = 0
        while self.gate_head != self.gate_tail:
            gate = &self.gates[self.gate_head & self.gate_mask]
            if gate.seq <= self.engine.completed:
                # It ran, submitted before there were gates: what it used may have left again.
                gate.first += gate.count
                gate.count = 0
            while gate.count:
                b = self.engine.mem.at(self.slots[gate.first & self.slot_mask])
                if b.state != RESIDENT and b.flags & MANAGED:
                    # A launch that alone needs more than there is goes on with what it could get.
                    if self.engine.completed + 1 != gate.seq or not self.still():
                        return last
                    self.squeezed += 1
                    gate.first += gate.count
                    gate.count = 0
                    break
                gate.first += 1
                gate.count -= 1
            self.slot_head = gate.first
            last = gate.seq
            self.gate_head += 1
        return last

    cdef void open(self, uint64_t seq) noexcept nogil:
        if seq <= self.feed.opened:
            return
        if self.marks is not None and deepum_load32(&self.feed.gating):
            self.marks.put(MARK_OPEN, deepum_now(), 0, 0, 0, seq, 0)
        if self.flag != NULL:
            deepum_store32(self.flag, <uint32_t>seq)
        deepum_store(&self.feed.opened, seq)

    cdef int dispatch(self) except -1 nogil:
        # All of them are owed: what cannot be handed over would be missed for ever.
        cdef uint32_t i
        for i in range(self.engine.command_count):
            self.mover.submit(self.feed, &self.engine.commands[i])
        self.engine.command_count = 0
        return 0

    @property
    def counts(self):
        """What the engine counts and has, a dict."""
        cdef Counters n
        cdef uint64_t resident, tables, squeezed, overdue
        cdef dict counts
        # Not with the GIL: a launching thread may hold it and wait for a gate.
        with nogil:
            pthread_mutex_lock(&self.lock)
            n = self.engine.n
            resident = self.engine.mem.migrated.size + self.engine.mem.dead.size
            tables = self.engine.bytes_of_tables()
            squeezed, overdue = self.squeezed, self.overdue
            pthread_mutex_unlock(&self.lock)
        counts = n
        counts.update(
            resident_blocks=resident, budget_blocks=self.engine.budget,
            table_bytes=tables, gates_squeezed=squeezed, gates_overdue=overdue,
            last_overdue=self.last_overdue)
        return counts

    @property
    def last_overdue(self):
        """How things stood when a gate was overdue last, a dict; None if none ever was."""
        names = ("submitted", "opened", "launched", "completed", "incoming", "outgoing", "free",
                 "demanded", "pinned", "idle", "state", "flags")
        return dict(zip(names, self.stuck, strict=True)) if self.overdue else None

    @property
    def waiting(self):
        """Launches whose gate is closed."""
        return self.gate_tail - self.gate_head

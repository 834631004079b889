# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""What a live program does, as events in one order.

Any thread of the program may allocate, free and launch; one thread, the conductor's, listens. The
program's side takes a lock for a fraction of a microsecond, never waits for the listener and never
needs the GIL. If the listener falls far behind, launches go untold (prefetching suffers, nothing
else) long before allocations would.

DESIGN: an execution ID is the hash of the kernel's name, its launch shape and those of its argument
words that point into PT blocks, not of all argument bytes as in the paper. Seeds of dropout, step
counts and bias corrections of optimizers change in every step and would make a new ID of the same
kernel each time; and padding inside argument structs is not even initialized. Where a launch uses
a block of 64 KiB or more, those below do not count either: the allocator puts the smallest ones
elsewhere in each step, and they say little of which UM blocks the kernel needs.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from deepum._core.memory_map cimport MemoryMap, PtBlock, Row
from deepum._core.records cimport *

from deepum.errors import DeepUMError

cdef extern from "atomics.h" nogil:
    int deepum_enter()
    void deepum_leave()

cdef uint32_t RING_EVENTS = 1 << 17
cdef uint32_t FAULT_EVENTS = 1 << 16
cdef uint64_t PATIENCE = 5_000_000_000     # ns without a gate opening: the conductor's is less
cdef uint64_t EXACT_PATIENCE = 90_000_000_000
cdef uint64_t LARGE = 1 << 16              # bytes


cdef int enter_driver() noexcept nogil:
    # Nonzero if the thread was in already.
    return deepum_enter()


cdef void leave_driver() noexcept nogil:
    deepum_leave()


cdef int make_ring(Ring* ring, uint32_t size) except -1:
    ring.events = <deepum_event*>calloc(size, sizeof(deepum_event))
    if ring.events == NULL:
        raise MemoryError()
    ring.mask = size - 1
    return 0


@cython.final
cdef class Feed:
    """Events of one device, and who is active in its memory."""

    def __cinit__(self):
        pthread_mutex_init(&self.lock, NULL)
        make_ring(&self.ring, RING_EVENTS)
        make_ring(&self.faults, FAULT_EVENTS)
        self.map = MemoryMap()
        self.nothing = <uint32_t*>calloc(STREAMS, sizeof(uint32_t))
        if self.nothing == NULL:
            raise MemoryError()
        self.done = self.nothing

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(STREAMS):
            free(self.streams[i].launches)
        free(self.ring.events)
        free(self.faults.events)
        free(self.segments)
        free(self.captured)
        free(self.nothing)
        pthread_mutex_destroy(&self.lock)

    cdef bint put(self, Ring* ring, const deepum_event* event, uint64_t spare) noexcept nogil:
        # One producer at a time. `spare` places are kept for what matters more.
        cdef uint64_t tail = ring.tail
        if tail - deepum_load(&ring.head) + spare > ring.mask:
            return False
        ring.events[tail & ring.mask] = event[0]
        deepum_store(&ring.tail, tail + 1)
        return True

    cdef uint64_t launch(
        self, uint64_t stream, uint64_t exec_id, uint64_t kernel, const uint64_t* pointers,
        uint32_t count, uint32_t* slot, bint graph=False
    ) noexcept nogil:
        # A kernel is about to be submitted; its arguments point to these addresses. Returns its
        # number, 0 if nobody is told of it, and the place that its completion is reported in.
        # `kernel` stands for its name and launch shape: the name's number is the upper half. The
        # execution ID becomes that of a launch with these arguments.
        cdef deepum_event event
        cdef PtBlock block, last
        cdef uint64_t seq = 0, whole = exec_id, large = exec_id
        cdef uint32_t i, told = 0
        cdef uint32_t more = 0
        cdef Stream* s
        pthread_mutex_lock(&self.lock)
        if graph and self.exact:
            more = self.captured_count
        i = self.find_stream(stream)
        if (i == STREAMS or self.blocking and self.exact or self.streams[i].inside_count == INSIDE
                or self.ring.tail - deepum_load(&self.ring.head) + count + more + 1
                > self.ring.mask - (self.ring.mask >> 2)
                or self.streams[i].tail - deepum_load(&self.streams[i].head) == OUTSTANDING):
            self.unseen += not self.exact or not self.attached
            pthread_mutex_unlock(&self.lock)
            return 0
        slot[0] = i
        s = &self.streams[i]
        memset(&event, 0, sizeof(event))
        event.type = DEEPUM_EVENT_RANGE
        last.start = last.size = 0
        for i in range(count):
            block = self.map.find(pointers[i])
            if block.size == 0:
                continue
            whole = mix(whole, pointers[i])
            if block.size >= LARGE:
                large = mix(large, pointers[i])
            if block.start == last.start and block.size == last.size:
                continue
            last = block
            event.address = block.start
            event.bytes = block.size
            self.put(&self.ring, &event, 0)
            told += 1
        for i in range(more):      # what a graph uses is not in its arguments
            event.address = self.captured[i].start
            event.bytes = self.captured[i].size
            self.put(&self.ring, &event, 0)
        seq = self.submitted + 1
        s.newest = seq
        s.inside[s.inside_count] = seq
        s.inside_count += 1
        if self.free_run:
            deepum_store(&self.opened, seq)
        # Entered before it counts, so that the listener never takes it for finished.
        s.launches[s.tail % OUTSTANDING] = seq
        deepum_store(&s.tail, s.tail + 1)
        deepum_store(&self.submitted, seq)
        event.type = DEEPUM_EVENT_LAUNCH
        event.address = event.bytes = 0
        event.seq = seq
        event.exec_id = whole if large == exec_id else large
        event.id = kernel
        event.time_ns = deepum_now()
        self.put(&self.ring, &event, 0)
        pthread_mutex_unlock(&self.lock)
        return seq

    cdef uint64_t submit(self, uint32_t slot, uint64_t seq, bint surely) noexcept nogil:
        # A launch has been submitted. Returns up to which launch its stream has finished once it
        # has come here: other threads may be submitting to the stream launches with lower numbers.
        # If `marked` has grown when the stream has been told to write that, it has to write again.
        # 0: it need not write now.
        cdef Stream* s = &self.streams[slot]
        cdef uint64_t done
        cdef uint32_t i = 0
        pthread_mutex_lock(&self.lock)
        done = s.newest
        while i < s.inside_count:
            if s.inside[i] == seq:
                s.inside_count -= 1
                s.inside[i] = s.inside[s.inside_count]
                continue
            done = min(done, s.inside[i] - 1)
            i += 1
        if (deepum_load32(&self.rarely) and not surely and not self.capturing
                and done - s.marked < MARK_EVERY):
            deepum_store(&s.skipped, done)
            done = 0
        else:
            deepum_store(&s.marked, done)
        pthread_mutex_unlock(&self.lock)
        return done

    cdef uint64_t owe(self, uint32_t slot) noexcept nogil:
        # Returns what a stream is to write now since it was not told to; 0: nothing.
        cdef Stream* s = &self.streams[slot]
        cdef uint64_t done = 0
        if deepum_load(&s.skipped) <= deepum_load(&s.marked):
            return 0
        pthread_mutex_lock(&self.lock)
        if s.skipped > s.marked:
            done = s.skipped
            deepum_store(&s.marked, done)
        pthread_mutex_unlock(&self.lock)
        return done

    cdef void let_mark_rarely(self, bint on) noexcept nogil:
        # Whether most launches go without a mark; never where they have gates that may be closed.
        if on == deepum_load32(&self.rarely):
            return
        pthread_mutex_lock(&self.lock)
        deepum_store32(&self.rarely, on and (self.free_run or not self.exact))
        pthread_mutex_unlock(&self.lock)

    cdef void ask(self) noexcept nogil:
        # For the listener: let streams write how far they have come.
        if self.asker != NULL:
            self.asker(self.asked)

    cdef uint32_t find_stream(self, uint64_t handle) noexcept nogil:
        cdef uint32_t i
        for i in range(self.stream_count):
            if self.streams[i].handle == handle:
                return i
        i = self.stream_count
        if i == STREAMS:
            return STREAMS
        if self.streams[i].launches == NULL:
            self.streams[i].launches = <uint64_t*>calloc(OUTSTANDING, sizeof(uint64_t))
            if self.streams[i].launches == NULL:
                return STREAMS
        self.streams[i].handle = handle
        self.streams[i].head = self.streams[i].tail = self.streams[i].inside_count = 0
        self.streams[i].marked = self.streams[i].skipped = 0
        deepum_store32(&self.done[i], <uint32_t>self.submitted)
        deepum_store32(&self.stream_count, i + 1)
        return i

    cdef void capture(self, const uint64_t* pointers, uint32_t count) noexcept nogil:
        # A launch is captured into a graph. What it names is taken as named by every graph.
        cdef PtBlock block
        cdef uint32_t i, k, capacity
        cdef void* memory
        pthread_mutex_lock(&self.lock)
        for i in range(count):
            block = self.map.find(pointers[i])
            k = 0
            while k < self.captured_count and self.captured[k].start != block.start:
                k += 1
            if block.size == 0 or k < self.captured_count:
                if block.size and self.captured[k].size < block.size:
                    self.captured[k].size = block.size
                continue
            if self.captured_count == self.captured_capacity:
                capacity = self.captured_capacity * 2 if self.captured_capacity else 64
                memory = realloc(self.captured, capacity * sizeof(PtBlock))
                if memory == NULL:
                    self.lost += 1
                    break
                self.captured = <PtBlock*>memory
                self.captured_capacity = capacity
            self.captured[self.captured_count] = block
            self.captured_count += 1
        pthread_mutex_unlock(&self.lock)

    cdef void block(self, int more) noexcept nogil:
        # A call that waits for the device, maybe holding what moves need, begins (1) or ends (-1).
        # A launch that came after it, and waited for its memory, would never run.
        pthread_mutex_lock(&self.lock)
        self.blocking += more
        pthread_mutex_unlock(&self.lock)

    cdef bint let_run(self) noexcept nogil:
        # All memory is on the device, as far as the listener knows. Whether it knows everything.
        cdef bint knows
        pthread_mutex_lock(&self.lock)
        knows = self.ring.head == self.ring.tail and self.opened == self.submitted
        if knows:
            deepum_store32(&self.free_run, 1)
        pthread_mutex_unlock(&self.lock)
        return knows

    cdef uint64_t finished(self) noexcept nogil:
        # The last launch before which every launch has finished. For the listener alone.
        cdef uint64_t least, head, tail
        cdef uint32_t i, low
        cdef Stream* s
        self.owing = False
        if deepum_load32(&self.blind):
            return deepum_load(&self.submitted)
        # Later launches than these may be entered while we look; that does no harm.
        least = deepum_load(&self.submitted)
        for i in range(deepum_load32(&self.stream_count)):
            s = &self.streams[i]
            low = deepum_load32(&self.done[i])
            head = s.head
            tail = deepum_load(&s.tail)
            while head != tail and <int32_t>(
                    low - <uint32_t>s.launches[head % OUTSTANDING]) >= 0:
                head += 1
            deepum_store(&s.head, head)
            if head == tail:
                continue
            least = min(least, s.launches[head % OUTSTANDING] - 1)
            if (deepum_load(&s.marked) < s.launches[head % OUTSTANDING]
                    <= deepum_load(&s.skipped)):
                self.owing = True
        return least

    cdef void say(
        self, uint32_t kind, uint64_t address, uint64_t size, uint8_t flags=0
    ) noexcept nogil:
        # What must not go untold. Called with the lock held.
        cdef deepum_event event
        if not self.attached:
            return
        memset(&event, 0, sizeof(event))
        event.type = kind
        event.address = address
        event.bytes = size
        event.flags = flags
        if kind == DEEPUM_EVENT_MANAGE:
            event.id = self.chunk
        if not self.put(&self.ring, &event, 0):
            self.lost += 1

    cdef int manage(self, uint64_t address, uint64_t size, bint resident) except -1 nogil:
        # Memory has become managed.
        cdef void* memory
        cdef uint32_t capacity
        pthread_mutex_lock(&self.lock)
        if self.segment_count == self.segment_capacity:
            capacity = self.segment_capacity * 2 if self.segment_capacity else 64
            memory = realloc(self.segments, capacity * sizeof(Segment))
            if not memory:
                pthread_mutex_unlock(&self.lock)
                with gil:
                    raise MemoryError()
            self.segments = <Segment*>memory
            self.segment_capacity = capacity
        self.map.manage(address, size)
        self.segments[self.segment_count].address = address
        self.segments[self.segment_count].size = size
        self.segment_count += 1
        deepum_store(&self.managed, self.managed + size)
        if self.free_run and not resident:
            # From now on there is memory that is not on the device: launches wait for theirs.
            deepum_store(&self.held_from, self.submitted)
            deepum_store32(&self.free_run, 0)
            deepum_store32(&self.rarely, 0)
        self.say(DEEPUM_EVENT_MANAGE, address, size, DEEPUM_MANAGE_RESIDENT if resident else 0)
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef uint64_t unmanage(self, uint64_t address) noexcept nogil:
        # Memory is about to be given back. Returns its size, 0 if it was not managed.
        cdef uint32_t i
        cdef uint64_t size = 0
        pthread_mutex_lock(&self.lock)
        for i in range(self.segment_count):
            if self.segments[i].address == address:
                size = self.segments[i].size
                self.segment_count -= 1
                self.segments[i] = self.segments[self.segment_count]
                break
        if size:
            self.end_all(address, size)
            self.map.unmanage(address, size)
            deepum_store(&self.managed, self.managed - size)
            self.say(DEEPUM_EVENT_UNMANAGE, address, size)
        pthread_mutex_unlock(&self.lock)
        return size

    cdef void end_all(self, uint64_t address, uint64_t size) noexcept nogil:
        # What a graph kept active ends with its memory.
        cdef uint64_t number
        cdef uint32_t i
        cdef Row* row
        for number in range(address >> DEEPUM_BLOCK_SHIFT,
                            (address + size + (1 << DEEPUM_BLOCK_SHIFT) - 1) >> DEEPUM_BLOCK_SHIFT):
            row = self.map.row(number)
            if row != NULL:
                for i in range(row.count):
                    self.say(DEEPUM_EVENT_FREE, row.starts[i].start, row.starts[i].size)

    cdef int activate(self, uint64_t start, uint64_t size) except -1 nogil:
        # A PT block comes to life; what lies outside managed memory is nobody's business.
        cdef int known
        pthread_mutex_lock(&self.lock)
        known = self.map.activate(start, size)
        if known:
            self.say(DEEPUM_EVENT_ALLOC, start, size)
        pthread_mutex_unlock(&self.lock)
        return known

    cdef int deactivate(self, uint64_t start) except -1 nogil:
        cdef uint64_t size = 0
        pthread_mutex_lock(&self.lock)
        # What a graph under capture frees, its replays still write: it stays active for good.
        if not self.capturing:
            size = self.map.deactivate(start)
            if size:
                self.say(DEEPUM_EVENT_FREE, start, size)
        pthread_mutex_unlock(&self.lock)
        return size != 0

    cdef void fault(self, uint64_t address, uint8_t flags, uint64_t records=1) noexcept nogil:
        # From the one thread that reads faults.
        cdef deepum_event event
        deepum_add(&self.fault_records, records)
        if not self.attached:
            return
        memset(&event, 0, sizeof(event))
        event.type = DEEPUM_EVENT_FAULT
        event.address = address
        event.flags = flags
        if not self.put(&self.faults, &event, 0):
            deepum_add(&self.faults_lost, 1)

    cdef bint settle(self) noexcept nogil:
        # Before a call that waits for the device: see the gates through. False if that failed.
        return (not deepum_load32(&self.gating)
                or self.wait_open(deepum_load(&self.submitted)))

    cdef bint wait_open(self, uint64_t seq) noexcept nogil:
        # Wait until the gates up to a launch are open. False if none opened for so long.
        # Where memory is exact, the call that waited is told by the driver what is missing.
        cdef uint64_t patience = EXACT_PATIENCE if self.exact else PATIENCE
        cdef uint64_t until = deepum_now() + patience
        cdef uint64_t opened = deepum_load(&self.opened), last = opened
        while opened < seq:
            if not deepum_load32(&self.gating) or not deepum_load32(&self.attached):
                return True
            if opened != last:
                last = opened
                until = deepum_now() + patience
            elif deepum_now() > until:
                return False
            deepum_sleep(5000)
            opened = deepum_load(&self.opened)
        return True

    def attach(self, uint32_t chunk=0):
        """Begin to tell: first of the memory there is, then of all that happens.

        Parameters
        ----------
        chunk : int
            Where memory is there only once it was brought: the most blocks that move as one. Then
            every launch has a gate from the start. 0: memory is found by faulting too.

        Raises
        ------
        DeepUMError
            Somebody listens already.
        """
        cdef uint32_t i, k
        cdef uint64_t number, first, end
        cdef Row* row
        if self.attached:
            raise DeepUMError("a session is open in this process already; close it first")
        pthread_mutex_lock(&self.lock)
        self.ring.head = self.ring.tail = self.faults.head = self.faults.tail = 0
        self.submitted = self.opened = 0
        self.unseen = self.lost = self.faults_lost = 0
        self.blind = self.rarely = 0
        self.chunk = chunk
        self.exact = self.gating = chunk != 0
        self.free_run = self.exact and self.segment_count == 0
        self.held_from = 0
        self.blocking = 0
        self.stream_count = 0
        self.attached = 1
        for i in range(self.segment_count):
            self.say(DEEPUM_EVENT_MANAGE, self.segments[i].address, self.segments[i].size)
            first = self.segments[i].address >> DEEPUM_BLOCK_SHIFT
            end = (self.segments[i].address + self.segments[i].size - 1) >> DEEPUM_BLOCK_SHIFT
            for number in range(first, end + 1):
                row = self.map.row(number)
                for k in range(row.count):
                    self.say(DEEPUM_EVENT_ALLOC, row.starts[k].start, row.starts[k].size)
        pthread_mutex_unlock(&self.lock)

    def detach(self):
        """Stop telling."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.attached = 0
            self.gating = 0
            pthread_mutex_unlock(&self.lock)

    def step(self):
        """Say that a step of the program ends here."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.say(STEP_EVENT, 0, 0)
            pthread_mutex_unlock(&self.lock)

    # -- launches by hand, for tests ---------------------------------------------------------------

    def enter(self, uint64_t stream):
        """Begin to submit a launch to a stream; return its number and the stream's place."""
        cdef uint32_t slot = 0
        cdef uint64_t seq = self.launch(stream, 0, 0, NULL, 0, &slot)
        return seq, slot

    def leave(self, uint32_t slot, uint64_t seq):
        """End that; return what the stream is to write once it has come here."""
        return self.submit(slot, seq, False)

    def marked(self, uint32_t slot):
        """Return what the stream is to write last."""
        return deepum_load(&self.streams[slot].marked)

    def mark_rarely(self, bint on):
        """Let most launches go without a mark, or none."""
        self.let_mark_rarely(on)

    def owed(self, uint32_t slot):
        """Return what a stream is to write now since it was not told to; 0: nothing."""
        return self.owe(slot)

    @property
    def owes(self):
        """Whether the next launch to finish went without a mark, as `finished_to` found."""
        return bool(self.owing)

    def write(self, uint32_t slot, uint32_t value):
        """Write as the stream does."""
        deepum_store32(&self.done[slot], value)

    def finished_to(self):
        """Return the launch up to which all are known to have finished."""
        return self.finished()

    def before_fork(self):
        """Let no thread be in the midst of anything: the child has only the one that forks."""
        with nogil:
            pthread_mutex_lock(&self.lock)

    def after_fork(self, bint child):
        """Go on; in the child nobody listens and no launch waits."""
        if child:
            self.attached = 0
            self.gating = 0
            self.orphaned = 1
        pthread_mutex_unlock(&self.lock)

    @property
    def counts(self):
        """Launches, fault records and what went untold, a dict."""
        cdef uint64_t unseen, lost, managed
        with nogil:
            pthread_mutex_lock(&self.lock)
            unseen, lost, managed = self.unseen, self.lost, self.managed
            pthread_mutex_unlock(&self.lock)
        return {
            "launches": deepum_load(&self.submitted),
            "fault_records": deepum_load(&self.fault_records),
            "unseen_launches": unseen, "lost_events": lost,
            "lost_faults": deepum_load(&self.faults_lost), "managed_bytes": managed,
            "streams": deepum_load32(&self.stream_count),
        }

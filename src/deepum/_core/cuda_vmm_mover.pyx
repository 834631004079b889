# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Moves chunks: out to pinned host memory, in from there, or out of the way.

Out: the chunk is unmapped from the program's address first, then copied from its frame's alias.
In: a frame is filled by its alias, then mapped. So the program's address is mapped only while what
it names is whole. Each direction has a thread and a stream; a third thread unmaps what need not be
copied, since that frees frames at once.

DESIGN: what copies to the host is, on an H200, also what makes a mapping accessible
(cuMemSetAccess): that waits for its turn. For each frame it takes 38 us alone and 1 ms while copies
are queued, whatever its size (bench/results/h200-remaps.json), and meanwhile no other thread can
begin a copy. Where there is a pause behind a copy it waits for that one alone. So copies out go in
bursts of `BURST`, each begun when the one before has ended. Copies in are queued: they disturb
nobody.

DESIGN: two things were tried on an H200 and are not here: a kernel that copies to the host in the
place of the copy engine (a step of GPT-2 XL took 1.10 times as long), and copying out what will
have to leave while nothing has to (both together: 0.99 to 1.01). Larger chunks (`chunk_mib`) make
fewer calls and move more bytes: bench/results/h200-vmm-chunks.json.

The conductor's side changes a chunk's state when it hands a command over, so that the commands of
one chunk take effect in order, whichever threads carry them out.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from deepum._core.block_queue cimport Entry, Queue, queue_at, queue_put
from deepum._core.chunk_map cimport (
    AWAY, DOOMED, ENTERING, LEAVING, MAPPED, UNMAPPING, Chunk, blocks_of,
)
from deepum._core.cuda_digest cimport Digest, Digester
from deepum._core.cuda_thread cimport join_context
from deepum._core.cuda_vmm cimport LATER, VmmMemory
from deepum._core.engine cimport HURRY_COMMAND, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport (
    Feed, deepum_add, deepum_load, deepum_load32, deepum_now, deepum_sleep, deepum_store,
    deepum_store32, deepum_wake_sharply, enter_driver, leave_driver, pthread_cond_broadcast,
    pthread_cond_destroy, pthread_cond_init, pthread_cond_t, pthread_cond_wait,
    pthread_mutex_lock, pthread_mutex_unlock,
)
from deepum._core.host_pool cimport NO_ROOM
from deepum._core.marks cimport MARK_DROP, MARK_IN, MARK_OUT, Marks
from deepum._core.records cimport *
from deepum._core.residency cimport DIRTY, INCOMING, LEAF_BITS, LEAF_BLOCKS, OUTGOING, Block
from deepum._core.vmm_conductor cimport ExactMover

cdef enum:
    DEEP = 8               # chunks of one direction under way, at most MOST_STUCK
    LANES = 4              # queues
    IN_DEMAND = 0
    IN_AHEAD = 1
    OUT = 2
    DROP = 3

# What the driver is asked for, whose time is counted.
cdef enum Asked:
    FRAMES = 0             # made and broken up; no time to speak of where there is a free one
    MAPS = 1
    UNMAPS = 2             # before copies out
    COPIES = 3             # to begin them
    ASKED = 4

# How far a digest is.
cdef enum Stage:
    NO_DIGEST = 0
    UNDER_WAY = 1
    KNOWN = 2

# What is reported of a chunk.
cdef enum Word:
    ARRIVED = 0
    ARRIVED_CLEAN = 1      # the host has the same
    DEPARTED = 2
    STAYED = 3
    GONE = 4               # with its segment

cdef uint64_t BLOCK = 1 << DEEPUM_BLOCK_SHIFT
cdef int TRIES = 4         # of a copy
cdef uint64_t BURST = 8 << 20    # bytes
cdef uint64_t AGAIN = 5_000      # ns between two looks at copies under way
cdef uint64_t PATIENCE = 1_000_000_000    # ns that a digest may take
cdef int UNLUCKY = -8      # times that a chunk leaves without a digest after one was of no use

DIGESTS = DEEP
"""Digests that may be under way at once."""


cdef struct Copy:
    Chunk* chunk
    uint64_t block, blocks, began
    uint64_t sent          # bytes of it, to the host
    uint32_t frame
    uint32_t host          # place
    cydriver.CUevent event
    # On the way out:
    uint8_t landed         # all of it is on the host
    uint8_t compared       # it need not be copied if the digest says so
    uint8_t same           # it did
    Stage stage
    Digest digest
    uint64_t digest_began
    cydriver.CUevent digested


@cython.final
cdef class VmmMover(ExactMover):
    """Carries commands out in a `VmmMemory`.

    Parameters
    ----------
    memory : VmmMemory
        Whose chunks are moved.
    delay_us : int
        Up to so many microseconds are lost before each move, at random; for tests.
    """

    cdef VmmMemory memory
    cdef Digester digester         # None: all that leaves is copied
    cdef cydriver.CUstream digests
    cdef readonly uint64_t bytes_same      # not copied out, since the host had the same
    cdef Marks marks               # None: nothing is recorded
    cdef uint64_t delay, random
    cdef pthread_cond_t work       # with the memory's lock
    cdef Queue lanes[LANES]
    cdef Queue done
    cdef uint64_t working          # chunks that a thread has taken and not finished
    cdef uint64_t stays
    cdef uint32_t stopping
    cdef readonly uint64_t bytes_in, bytes_out, bytes_dropped, moves_in, moves_out
    cdef readonly uint64_t bytes_empty     # given frames without a copy
    cdef readonly uint64_t drops_refused, busy_in_ns, busy_out_ns, errors
    cdef uint64_t asked_ns[ASKED]
    cdef readonly int last_error

    def __cinit__(self, VmmMemory memory not None, *, uint64_t delay_us=0):
        self.memory = memory
        self.delay = delay_us * 1000
        pthread_cond_init(&self.work, NULL)

    def __dealloc__(self):
        cdef int i
        for i in range(LANES):
            free(self.lanes[i].entries)
        free(self.done.entries)
        pthread_cond_destroy(&self.work)

    def compare(self, Digester digester not None):
        """Copy out only what has changed; call it before the threads start."""
        self.digester = digester

    def record(self, Marks marks not None):
        """Note each move, and when; call it before the threads start."""
        self.marks = marks

    @property
    def counts(self):
        """Bytes, moves, busy seconds each way and what failed, a dict."""
        return {
            "bytes_in": deepum_load(&self.bytes_in), "bytes_out": deepum_load(&self.bytes_out),
            "bytes_dropped": deepum_load(&self.bytes_dropped),
            "bytes_empty": deepum_load(&self.bytes_empty),
            "bytes_same": deepum_load(&self.bytes_same),
            "moves_in": deepum_load(&self.moves_in), "moves_out": deepum_load(&self.moves_out),
            "busy_in_s": deepum_load(&self.busy_in_ns) * 1e-9,
            "busy_out_s": deepum_load(&self.busy_out_ns) * 1e-9,
            "frames_s": deepum_load(&self.asked_ns[<int>FRAMES]) * 1e-9,
            "maps_s": deepum_load(&self.asked_ns[<int>MAPS]) * 1e-9,
            "unmaps_s": deepum_load(&self.asked_ns[<int>UNMAPS]) * 1e-9,
            "copies_s": deepum_load(&self.asked_ns[<int>COPIES]) * 1e-9,
            "move_errors": deepum_load(&self.errors), "last_move_error": self.last_error,
            "drops_refused": deepum_load(&self.drops_refused),
            "moves_refused": deepum_load(&self.stays),
        }

    # -- the conductor's side ----------------------------------------------------------------------

    cdef int submit(self, Feed feed, const deepum_command* command) except -1 nogil:
        cdef uint64_t block = command.block, end = command.block + command.count
        cdef Chunk* chunk
        pthread_mutex_lock(&self.memory.lock)
        if command.type == HURRY_COMMAND:
            self.hurry(block, end)
            block = end
        while block < end:
            chunk = self.memory.map.find(block)
            if chunk == NULL:
                block += 1
                continue
            if command.type == DEEPUM_COMMAND_PREFETCH:
                self.fetch(chunk, block, command.flags & DEEPUM_COMMAND_DEMAND)
            elif command.type == DEEPUM_COMMAND_DISCARD:
                self.doom(chunk, block, False)
            elif command.flags & DEEPUM_COMMAND_CLEAN:
                self.doom(chunk, block, True)
            elif chunk.state == MAPPED:
                chunk.state = LEAVING
                self.hand(OUT, block)
            else:
                self.say(block, DEPARTED)
            block += blocks_of(chunk)
        pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.memory.lock)
        return 0

    cdef void fetch(self, Chunk* chunk, uint64_t block, bint demand) noexcept nogil:
        if chunk.state == AWAY:
            chunk.state = ENTERING
            self.hand(IN_DEMAND if demand else IN_AHEAD, block)
        elif chunk.state == DOOMED:
            chunk.state = MAPPED       # it was not begun: called off
            self.say(block, ARRIVED if chunk.host == NO_ROOM else ARRIVED_CLEAN)
        elif chunk.state == UNMAPPING:
            chunk.wanted = True
        elif chunk.state == MAPPED:
            self.say(block, ARRIVED)

    cdef void hurry(self, uint64_t block, uint64_t end) noexcept nogil:
        # Chunks on their way ahead of their launch, which waits now: they go before those of later
        # launches.
        cdef Queue* lane = &self.lanes[IN_AHEAD]
        cdef uint64_t i, kept = lane.head
        cdef Entry entry
        for i in range(lane.head, lane.tail):
            entry = queue_at(lane, i)[0]
            if block <= entry.block < end:
                self.hand(IN_DEMAND, entry.block)
            else:
                queue_at(lane, kept)[0] = entry
                kept += 1
        deepum_store(&lane.tail, kept)

    cdef void doom(self, Chunk* chunk, uint64_t block, bint clean) noexcept nogil:
        if not clean:
            if chunk.hashed:
                chunk.luck = UNLUCKY
            self.memory.forget_host(chunk)
        if chunk.state == MAPPED:
            chunk.state = DOOMED
            self.hand(DROP, block)

    cdef void stale(self, uint64_t block) noexcept nogil:
        cdef Chunk* chunk
        pthread_mutex_lock(&self.memory.lock)
        chunk = self.memory.map.find(block)
        if chunk != NULL and chunk.state == MAPPED:
            self.memory.doubt(chunk)
        pthread_mutex_unlock(&self.memory.lock)

    cdef void retire(self, uint64_t address, uint64_t size) noexcept nogil:
        cdef uint64_t block = address // BLOCK, end = (address + size) // BLOCK
        cdef Chunk* chunk
        pthread_mutex_lock(&self.memory.lock)
        while block < end:
            chunk = self.memory.map.find(block)
            if chunk == NULL:
                block += 1
                continue
            chunk.retired = True
            if chunk.state == AWAY:
                self.say(block, GONE)
            elif chunk.state == MAPPED:
                chunk.state = DOOMED
                self.hand(DROP, block)
            block += blocks_of(chunk)
        pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.memory.lock)

    cdef void say(self, uint64_t block, uint32_t word) noexcept nogil:
        # With the lock held.
        if not queue_put(&self.done, block, word):
            self.memory.fail(b"there is no memory for what has moved", 0)

    cdef void hand(self, int lane, uint64_t block) noexcept nogil:
        if not queue_put(&self.lanes[lane], block, 0):
            self.memory.fail(b"there is no memory for what is to move", 0)

    cdef int lend(self, uint64_t block) noexcept nogil:
        cdef int status
        enter_driver()
        status = cydriver.cuCtxSetCurrent(self.memory.context)
        if not status:
            status = self.memory.lend(self.memory.map.find(block), False)
        leave_driver()
        return status

    cdef int take_back(self, uint64_t block) noexcept nogil:
        cdef int status
        enter_driver()
        status = self.memory.take_back(self.memory.map.find(block))
        leave_driver()
        return status

    cdef const char* trouble(self) noexcept nogil:
        return self.memory.failed()

    cdef uint64_t refused(self) noexcept nogil:
        return deepum_load(&self.stays)

    cdef int report(self, Engine engine) except -1 nogil:
        cdef Entry entry
        cdef uint32_t slot
        cdef int told = 0
        cdef Block* b
        cdef Chunk* chunk
        if deepum_load(&self.done.tail) == self.done.head:
            return 0
        while True:
            pthread_mutex_lock(&self.memory.lock)
            if self.done.head == self.done.tail:
                pthread_mutex_unlock(&self.memory.lock)
                return told
            entry = queue_at(&self.done, self.done.head)[0]
            self.done.head += 1
            if entry.word == GONE:
                chunk = self.memory.map.find(entry.block)
                self.memory.forget_host(chunk)
                self.memory.map.vacate(entry.block, blocks_of(chunk))
            pthread_mutex_unlock(&self.memory.lock)
            told += 1
            # Its range may have been given back meanwhile; the frame has to come free yet.
            slot = engine.mem.find_leaf(<uint32_t>(entry.block >> LEAF_BITS))
            if slot == NONE or entry.word == GONE:
                continue
            slot = (slot << LEAF_BITS) | (<uint32_t>entry.block & (LEAF_BLOCKS - 1))
            b = engine.mem.at(slot)
            if entry.word <= ARRIVED_CLEAN and b.state == INCOMING:
                engine.arrived(slot)
                if entry.word == ARRIVED_CLEAN and b.written <= engine.completed:
                    b.flags &= ~DIRTY
                else:
                    self.stale(entry.block)
            elif entry.word == DEPARTED and b.state == OUTGOING:
                engine.departed(slot)
            elif entry.word == STAYED and b.state == OUTGOING:
                engine.stayed(slot)

    cdef bint idle(self) noexcept nogil:
        cdef int i
        cdef bint idle
        pthread_mutex_lock(&self.memory.lock)
        idle = self.working == 0 and self.done.head == self.done.tail
        for i in range(LANES):
            if self.lanes[i].head != self.lanes[i].tail:
                idle = False
        pthread_mutex_unlock(&self.memory.lock)
        return idle

    def put(self, int lane, uint64_t block):
        """Queue a chunk, for tests."""
        self.hand(lane, block)

    def hurry_up(self, uint64_t block, uint64_t count):
        """Let blocks on their way go first, for tests."""
        self.hurry(block, block + count)

    @property
    def waiting(self):
        """Chunks in each queue: in on demand, in ahead, out, drops."""
        cdef uint64_t i
        cdef int lane
        return [
            [queue_at(&self.lanes[lane], i).block
             for i in range(self.lanes[lane].head, self.lanes[lane].tail)]
            for lane in range(LANES)
        ]

    # -- the moving threads ------------------------------------------------------------------------

    cdef Chunk* take(self, int first, int second, bint waits) noexcept nogil:
        # The next chunk of either lane, the first one's before the second's; NULL if there is none
        # or it is time to end.
        cdef Queue* lane
        cdef Chunk* chunk = NULL
        pthread_mutex_lock(&self.memory.lock)
        while True:
            lane = &self.lanes[first]
            if lane.head == lane.tail:
                lane = &self.lanes[second]
            if lane.head != lane.tail:
                chunk = self.memory.map.find(queue_at(lane, lane.head).block)
                lane.head += 1
                self.working += 1
                break
            if not waits or self.stopping:
                break
            pthread_cond_wait(&self.work, &self.memory.lock)
        pthread_mutex_unlock(&self.memory.lock)
        return chunk

    cdef bint is_retired(self, Chunk* chunk) noexcept nogil:
        # The conductor may be saying so right now.
        cdef bint retired
        pthread_mutex_lock(&self.memory.lock)
        retired = chunk.retired
        pthread_mutex_unlock(&self.memory.lock)
        return retired

    cdef void dawdle(self) noexcept nogil:
        cdef uint64_t random
        if self.delay:
            random = deepum_add(&self.random, <uint64_t>0x9E3779B97F4A7C15)
            random = (random ^ random >> 30) * <uint64_t>0xBF58476D1CE4E5B9
            deepum_sleep((random ^ random >> 27) % self.delay)

    cdef void give_up(self, const char* what, int status) noexcept nogil:
        self.last_error = status
        deepum_add(&self.errors, 1)
        self.memory.fail(what, status)

    cdef bint over(self) noexcept nogil:
        return self.memory.failed() != NULL

    cdef int begin_thread(self, cydriver.CUstream* stream, Copy* copies) noexcept nogil:
        cdef int status = 1, tries = 0, i
        memset(copies, 0, DEEP * sizeof(Copy))
        while status and tries < TRIES:
            if tries:
                deepum_sleep(1000000)
            tries += 1
            status = join_context(self.memory.context)
            if not status:
                status = cydriver.cuStreamCreate(stream, cydriver.CU_STREAM_NON_BLOCKING)
            for i in range(DEEP):
                if not status and copies[i].event == NULL:
                    status = cydriver.cuEventCreate(
                        &copies[i].event, cydriver.CU_EVENT_DISABLE_TIMING)
        if status:
            self.give_up(b"a thread that moves memory cannot begin", status)
        return status

    cdef void end_thread(self, cydriver.CUstream stream, Copy* copies) noexcept nogil:
        cdef int i
        for i in range(DEEP):
            if copies[i].event != NULL:
                cydriver.cuEventDestroy(copies[i].event)
            if copies[i].digested != NULL:
                cydriver.cuEventDestroy(copies[i].digested)
        if stream != NULL:
            cydriver.cuStreamDestroy(stream)

    cdef void asked(self, Asked what, uint64_t since) noexcept nogil:
        deepum_add(&self.asked_ns[<int>what], deepum_now() - since)

    cdef int start_copy(
        self, Copy* copy, bint out, uint64_t at, uint64_t size, cydriver.CUstream stream
    ) noexcept nogil:
        cdef uint64_t host = self.memory.host_address(copy.host) + at
        cdef uint64_t alias = self.memory.alias_of(copy.frame) + at
        cdef int status = 1, tries = 0
        while status and tries < TRIES:
            if tries:
                deepum_sleep(1000000)
            tries += 1
            if out:
                status = cydriver.cuMemcpyDtoHAsync(<void*>host, alias, size, stream)
            else:
                status = cydriver.cuMemcpyHtoDAsync(alias, <void*>host, size, stream)
        return status

    cdef int mark(self, Copy* copy, cydriver.CUstream stream) noexcept nogil:
        cdef int status = 1, tries = 0
        while status and tries < TRIES:
            if tries:
                deepum_sleep(1000000)
            tries += 1
            status = cydriver.cuEventRecord(copy.event, stream)
        return status

    cdef int ended(self, Copy* copy) noexcept nogil:
        # 1 if a copy has ended, 0 if not, -1 if it never will.
        cdef int status = cydriver.cuEventQuery(copy.event), tries = 0
        if status == cydriver.CUDA_ERROR_NOT_READY:
            return 0
        while status and status != cydriver.CUDA_ERROR_NOT_READY and tries < TRIES:
            tries += 1
            deepum_sleep(1000000)
            status = cydriver.cuEventQuery(copy.event)
        if status == cydriver.CUDA_ERROR_NOT_READY:
            return 0
        if status:
            self.give_up(b"a copy between device and host failed", status)
            return -1
        return 1

    def run(self, bint out):
        """Move in one direction until `stop`; call it in a thread of its own."""
        with nogil:
            if out:
                self.run_out()
            else:
                self.run_in()

    cdef void run_in(self) noexcept nogil:
        cdef cydriver.CUstream stream = NULL
        cdef Copy copies[DEEP]
        cdef Chunk* chunk = NULL
        cdef Copy* copy
        cdef uint64_t head = 0, tail = 0, busy_since = 0
        cdef int state
        cdef bint moved
        enter_driver()
        deepum_wake_sharply()
        state = self.begin_thread(&stream, copies)
        while not state and not self.over():
            moved = False
            while head != tail:
                state = self.ended(&copies[head % DEEP])
                if state <= 0:
                    break
                state = self.finish(&copies[head % DEEP], False)
                if state:
                    break
                head += 1
                moved = True
            if state < 0:
                break
            state = 0
            if busy_since and head == tail:
                deepum_add(&self.busy_in_ns, deepum_now() - busy_since)
                busy_since = 0
            if chunk == NULL and tail - head < DEEP:
                chunk = self.take(IN_DEMAND, IN_AHEAD, head == tail)
                if chunk == NULL and head == tail:
                    break              # it is time to end
                if chunk != NULL:
                    self.dawdle()
            if chunk != NULL:
                copy = &copies[tail % DEEP]
                self.describe(copy, chunk)
                state = self.go_in(copy, stream)
                if state < 0:
                    break
                if state == 1:         # it is under way
                    if not busy_since:
                        busy_since = copy.began
                    tail += 1
                if state != 2:         # or could be done at once
                    chunk = NULL
                    moved = True
                state = 0
            if not moved:
                deepum_sleep(AGAIN)
        self.finish_thread(stream, copies)

    cdef void run_out(self) noexcept nogil:
        cdef cydriver.CUstream stream = NULL
        cdef Copy copies[DEEP]
        cdef Chunk* chunk
        cdef Copy* copy
        cdef uint64_t head = 0, tail = 0, busy_since = 0, unsent
        cdef int state
        cdef bint flying = False, moved    # a burst
        enter_driver()
        deepum_wake_sharply()
        state = self.begin_thread(&stream, copies)
        if not state and self.digester is not None:
            self.begin_digests(copies)
        while not state and not self.over():
            moved = self.look_at_digests(copies, head, tail)
            if flying:
                state = self.ended(&copies[0])     # its event is the burst's
                if state == 1:
                    flying = False
                    moved = True
                    state = 0
                    self.land(copies, head, tail)
                if state:
                    break
            while head != tail and not state and self.is_done(&copies[head % DEEP]):
                state = self.finish(&copies[head % DEEP], True)
                head += 1
                moved = True
            if state:
                break
            if busy_since and head == tail:
                deepum_add(&self.busy_out_ns, deepum_now() - busy_since)
                busy_since = 0
            # What the next burst has to send is unmapped while one is under way.
            unsent = self.unsent(copies, head, tail)
            if tail - head < DEEP and unsent < BURST:
                chunk = self.take(OUT, OUT, head == tail)
                if chunk == NULL and head == tail:
                    break                  # it is time to end
                if chunk != NULL:
                    self.dawdle()
                    moved = True
                    copy = &copies[tail % DEEP]
                    self.describe(copy, chunk)
                    state = self.go_out(copy)
                    if state < 0:
                        break
                    if state:
                        self.begin_digest(copy, <uint32_t>(tail % DEEP))
                        tail += 1
                        if not busy_since:
                            busy_since = copy.began
            state = 0
            if not flying and head != tail:
                state = self.burst(copies, head, tail, stream)
                if state < 0:
                    break
                if state:
                    flying = moved = True
                state = 0
            if not moved:
                deepum_sleep(AGAIN)
        self.finish_thread(stream, copies)

    cdef void finish_thread(self, cydriver.CUstream stream, Copy* copies) noexcept nogil:
        if self.over() and stream != NULL:
            cydriver.cuStreamSynchronize(stream)
        self.end_thread(stream, copies)
        leave_driver()

    cdef void describe(self, Copy* copy, Chunk* chunk) noexcept nogil:
        copy.chunk = chunk
        copy.block = self.memory.map.block_of(chunk)
        copy.blocks = blocks_of(chunk)
        copy.sent = 0
        copy.landed = copy.compared = copy.same = False
        copy.stage = NO_DIGEST

    cdef uint64_t to_send(self, Copy* copy) noexcept nogil:
        # Bytes that can be copied now.
        if copy.landed or copy.compared:
            return 0
        return copy.blocks * BLOCK - copy.sent

    cdef uint64_t unsent(self, Copy* copies, uint64_t head, uint64_t tail) noexcept nogil:
        cdef uint64_t left = 0
        while head != tail:
            left += self.to_send(&copies[head % DEEP])
            head += 1
        return left

    cdef void land(self, Copy* copies, uint64_t head, uint64_t tail) noexcept nogil:
        # A burst has ended: what has been sent is there.
        while head != tail:
            if copies[head % DEEP].sent == copies[head % DEEP].blocks * BLOCK:
                copies[head % DEEP].landed = True
            head += 1

    cdef bint is_done(self, Copy* copy) noexcept nogil:
        return copy.landed and copy.stage != UNDER_WAY

    cdef int burst(
        self, Copy* copies, uint64_t head, uint64_t tail, cydriver.CUstream stream
    ) noexcept nogil:
        # Begin to copy what is next of the chunks from `head` on. 1, 0 if that is nothing, or -1 if
        # it failed.
        cdef uint64_t left = BURST, size, began = deepum_now()
        cdef Copy* copy
        cdef int status = 0
        while head != tail and left and not status:
            copy = &copies[head % DEEP]
            head += 1
            size = min(left, self.to_send(copy))
            if size:
                status = self.start_copy(copy, True, copy.sent, size, stream)
                copy.sent += size
                left -= size
        if left == BURST:
            return 0
        if not status:
            status = self.mark(&copies[0], stream)
        self.asked(COPIES, began)
        if status:
            self.give_up(b"a copy to the host failed", status)
            return -1
        return 1

    cdef int go_in(self, Copy* copy, cydriver.CUstream stream) noexcept nogil:
        # 0: it is there, 1: it is on its way, 2: there is no frame yet, -1: it failed.
        cdef Chunk* chunk = copy.chunk
        cdef uint64_t began = deepum_now()
        cdef int status
        if deepum_load32(&self.stopping) and self.over():
            return -1
        status = self.memory.make_frame(chunk.size, &copy.frame)
        self.asked(FRAMES, began)
        if status == LATER:
            return 2
        if status:
            deepum_sleep(1000000)
            status = self.memory.make_frame(chunk.size, &copy.frame)
            if status == LATER:
                return 2
        if status:
            self.give_up(b"the card has less memory free than the budget: lower memory_limit",
                         status)
            return -1
        copy.began = deepum_now()
        if chunk.host == NO_ROOM or self.is_retired(chunk):
            deepum_add(&self.bytes_empty, copy.blocks * BLOCK)
            return self.finish(copy, False)
        copy.host = chunk.host
        began = deepum_now()
        status = self.start_copy(copy, False, 0, copy.blocks * BLOCK, stream)
        if not status:
            status = self.mark(copy, stream)
        self.asked(COPIES, began)
        if status:
            self.give_up(b"a copy to the device failed", status)
            return -1
        return 1

    cdef int go_out(self, Copy* copy) noexcept nogil:
        # 0: there is nothing more to do, 1: it can be copied, -1: it failed.
        cdef Chunk* chunk = copy.chunk
        cdef int status
        cdef uint64_t began
        copy.frame = chunk.frame
        if chunk.host == NO_ROOM and not self.is_retired(chunk):
            chunk.host = self.memory.host_place(chunk.size)
            if chunk.host == NO_ROOM:
                pthread_mutex_lock(&self.memory.lock)
                chunk.state = MAPPED
                self.say(copy.block, STAYED)
                if chunk.retired:
                    chunk.state = DOOMED
                    self.hand(DROP, copy.block)
                self.working -= 1
                deepum_add(&self.stays, 1)
                pthread_mutex_unlock(&self.memory.lock)
                deepum_sleep(1000000)      # the engine will ask again
                return 0
        began = deepum_now()
        status = self.memory.unmap_chunk(chunk)
        self.asked(UNMAPS, began)
        if status:
            self.give_up(b"memory could not be unmapped", status)
            return -1
        copy.began = deepum_now()
        if self.is_retired(chunk):
            return self.finish(copy, True)
        copy.host = chunk.host
        return 1

    cdef int finish(self, Copy* copy, bint out) noexcept nogil:
        # The contents are where they should be. 0, or -1 if it failed.
        cdef Chunk* chunk = copy.chunk
        cdef uint64_t size = copy.blocks * BLOCK
        cdef uint64_t began
        cdef bint copied = chunk.host != NO_ROOM
        cdef int status = 0
        if not out:
            began = deepum_now()
            status = self.memory.map_chunk(chunk, self.memory.handle_of(copy.frame))
            self.asked(MAPS, began)
            if status:
                self.give_up(b"memory could not be mapped", status)
                return -1
        pthread_mutex_lock(&self.memory.lock)
        if out:
            if not copy.same and chunk.hashed:     # it was compared for nothing
                chunk.luck = UNLUCKY
                chunk.hashed = False
            elif not copy.same:
                chunk.hashed = copy.stage == KNOWN
                chunk.digest[0] = copy.digest.first
                chunk.digest[1] = copy.digest.second
            chunk.doubtful = False
            self.memory.frames.give(copy.frame)
            chunk.state = AWAY
            self.say(copy.block, DEPARTED)
            if chunk.retired:
                self.say(copy.block, GONE)
        else:
            chunk.frame = copy.frame
            chunk.state = MAPPED
            chunk.doubtful = False
            self.say(copy.block, ARRIVED_CLEAN if copied else ARRIVED)
            if chunk.retired:
                chunk.state = DOOMED
                self.hand(DROP, copy.block)
                pthread_cond_broadcast(&self.work)
        self.working -= 1
        pthread_mutex_unlock(&self.memory.lock)
        if copied and out and copy.same:
            deepum_add(&self.bytes_same, size)
        elif copied:
            deepum_add(&self.bytes_out if out else &self.bytes_in, size)
            deepum_add(&self.moves_out if out else &self.moves_in, 1)
            if self.marks is not None:
                self.marks.put(MARK_OUT if out else MARK_IN, copy.began, deepum_now(), copy.block,
                               copy.blocks, 0, 0)
        return 0

    # -- digests: is what the host has still right? ------------------------------------------------

    cdef void begin_digests(self, Copy* copies) noexcept nogil:
        # Thread blocks of the program make way for those of this stream as they end.
        cdef int status, i, least = 0, greatest = 0
        status = cydriver.cuCtxGetStreamPriorityRange(&least, &greatest)
        if not status:
            status = cydriver.cuStreamCreateWithPriority(
                &self.digests, cydriver.CU_STREAM_NON_BLOCKING, greatest)
        for i in range(DEEP):
            if not status:
                status = cydriver.cuEventCreate(
                    &copies[i].digested, cydriver.CU_EVENT_DISABLE_TIMING)
        if status:
            self.digester.give_up()

    cdef void begin_digest(self, Copy* copy, uint32_t place) noexcept nogil:
        # Before it is copied, if the host may have the same; beside that, if it may have some day.
        cdef int status
        if self.digester is None or not deepum_load32(&self.digester.works):
            return
        if not copy.chunk.hashed and copy.chunk.luck < 0:
            copy.chunk.luck += 1
            return
        status = self.digester.start(
            place, self.memory.alias_of(copy.frame), copy.blocks * BLOCK, self.digests)
        if not status:
            status = cydriver.cuEventRecord(copy.digested, self.digests)
        if status:
            self.digester.give_up()
            return
        copy.stage = UNDER_WAY
        copy.compared = copy.chunk.hashed
        copy.digest_began = deepum_now()

    cdef bint look_at_digests(self, Copy* copies, uint64_t head, uint64_t tail) noexcept nogil:
        # Whether there is one more.
        cdef uint64_t at
        cdef Copy* copy
        cdef bint found = False
        cdef int status
        if self.memory.stuck_count and not cydriver.cuStreamQuery(self.digests):
            self.memory.come_loose()
        for at in range(head, tail):
            copy = &copies[at % DEEP]
            if copy.stage != UNDER_WAY:
                continue
            status = cydriver.cuEventQuery(copy.digested)
            if (status == cydriver.CUDA_ERROR_NOT_READY
                    and deepum_now() - copy.digest_began < PATIENCE):
                continue
            found = True
            if status:
                self.get_stuck(copies, head, tail)
                break
            copy.stage = KNOWN
            copy.digest = self.digester.read(<uint32_t>(at % DEEP))
            if copy.compared:
                copy.compared = False
                copy.same = copy.landed = (
                    copy.chunk.digest[0] == copy.digest.first
                    and copy.chunk.digest[1] == copy.digest.second)
        return found

    cdef void get_stuck(self, Copy* copies, uint64_t head, uint64_t tail) noexcept nogil:
        # Their stream shares a queue with one of the program's, which waits at a gate: the device
        # has eight for all streams that run kernels. They will run when the gate opens. Until then
        # the aliases that they read have to stay; what is in the frames may change.
        cdef uint64_t at
        self.digester.give_up()
        pthread_mutex_lock(&self.memory.lock)
        for at in range(head, tail):
            if copies[at % DEEP].stage == UNDER_WAY:
                copies[at % DEEP].stage = NO_DIGEST
                copies[at % DEEP].compared = False
                self.memory.stuck[self.memory.stuck_count] = copies[at % DEEP].frame
                self.memory.stuck_count += 1
        pthread_mutex_unlock(&self.memory.lock)

    def settle(self):
        """Wait for digests that are still under way; call it when nothing waits at a gate."""
        if self.digests == NULL:
            return
        with nogil:
            enter_driver()
            cydriver.cuStreamSynchronize(self.digests)
            cydriver.cuStreamDestroy(self.digests)
            leave_driver()
        self.memory.come_loose()
        self.digests = NULL

    def run_drops(self):
        """Unmap what need not be kept until `stop`; call it in a thread of its own."""
        cdef Chunk* chunk
        cdef uint64_t block, began, blocks
        cdef int status
        cdef bint due
        with nogil:
            enter_driver()
            status = join_context(self.memory.context)
            if status:
                deepum_sleep(1000000)
                status = join_context(self.memory.context)
            if status:
                self.give_up(b"a thread that moves memory cannot begin", status)
            while not self.over():
                chunk = self.take(DROP, DROP, True)
                if chunk == NULL:
                    if deepum_load32(&self.stopping):
                        break
                    pthread_mutex_lock(&self.memory.lock)
                    self.working -= 1      # its segment is gone already
                    pthread_mutex_unlock(&self.memory.lock)
                    continue
                self.dawdle()
                pthread_mutex_lock(&self.memory.lock)
                due = chunk.state == DOOMED
                if due:
                    chunk.state = UNMAPPING
                else:
                    self.working -= 1      # called off
                    deepum_add(&self.drops_refused, 1)
                block = self.memory.map.block_of(chunk)
                blocks = blocks_of(chunk)
                pthread_mutex_unlock(&self.memory.lock)
                if not due:
                    continue
                began = deepum_now()
                status = self.memory.unmap_chunk(chunk)
                if status:
                    self.give_up(b"memory could not be unmapped", status)
                    break
                pthread_mutex_lock(&self.memory.lock)
                self.memory.frames.give(chunk.frame)
                chunk.state = AWAY
                if chunk.wanted:
                    chunk.wanted = False
                    chunk.state = ENTERING
                    self.hand(IN_DEMAND, block)
                    pthread_cond_broadcast(&self.work)
                elif chunk.retired:
                    self.say(block, GONE)
                self.working -= 1
                pthread_mutex_unlock(&self.memory.lock)
                deepum_add(&self.bytes_dropped, blocks * BLOCK)
                if self.marks is not None:
                    self.marks.put(MARK_DROP, began, deepum_now(), block, blocks, 0, 0)
            leave_driver()

    def stop(self):
        """Ask the threads to return once what they were given is done."""
        pthread_mutex_lock(&self.memory.lock)
        deepum_store32(&self.stopping, 1)
        pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.memory.lock)

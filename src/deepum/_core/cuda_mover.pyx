# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Moves managed memory with the CUDA driver: prefetches, evictions, drops.

The driver's prefetch calls block their caller for most of the transfer, so each direction has
threads of its own, and none of them is a thread of the program. Drops have a third: one must not
wait behind an eviction, since memory that becomes active again waits for it.

DESIGN: the bus could carry both directions at once, but the driver's migrations get in each
other's way. Measured on an H200 (bench/gpu/moves.py): 47 GB/s in or 17 GB/s out alone, 10 and 12
together; so one direction moves at a time unless `duplex` is asked for. Several threads may move in
that direction: they take turns with the other one, move by move.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from deepum._core.conductor cimport Mover
from deepum._core.cuda_thread cimport join_context
from deepum._core.engine cimport HURRY_COMMAND, Engine
from deepum._core.exec_table cimport NONE
from deepum._core.feed cimport (
    Feed, deepum_add, deepum_load, deepum_now, deepum_sleep, enter_driver, leave_driver,
    pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_t,
    pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_t, pthread_mutex_unlock,
)
from deepum._core.marks cimport MARK_DROP, MARK_IN, MARK_OUT, Marks
from deepum._core.memory_map cimport Row
from deepum._core.records cimport *
from deepum._core.residency cimport INCOMING, LEAF_BITS, LEAF_BLOCKS, OUTGOING

cdef enum:
    DROPS = 64             # blocks dropped by one call
    LANES = 4              # queues
    IN_DEMAND = 0
    IN_AHEAD = 1
    OUT = 2
    DROP = 3

cdef uint64_t BLOCK = 1 << DEEPUM_BLOCK_SHIFT


cdef struct Lane:
    deepum_command* commands
    uint64_t head, tail, mask, size


cdef int lane_put(Lane* lane, const deepum_command* command) except -1 nogil:
    cdef uint64_t size, i
    cdef deepum_command* memory
    if lane.tail - lane.head == lane.size:
        size = lane.size * 2 if lane.size else 256
        memory = <deepum_command*>realloc(NULL, size * sizeof(deepum_command))
        if memory == NULL:
            with gil:
                raise MemoryError()
        for i in range(lane.head, lane.tail):
            memory[i & (size - 1)] = lane.commands[i & lane.mask]
        free(lane.commands)
        lane.commands = memory
        lane.size = size
        lane.mask = size - 1
    lane.commands[lane.tail & lane.mask] = command[0]
    lane.tail += 1
    return 0


@cython.final
cdef class CudaMover(Mover):
    """Carries commands out with a CUDA device's driver.

    Parameters
    ----------
    feed
        Whose memory is moved.
    device : int
        CUDA ordinal.
    executes_faults : bool
        Whether blocks that a fault asked for are moved: a driver that services faults does it.
    duplex : bool
        Whether both directions may move at once.
    delay_us : int
        Up to so many microseconds are lost before each move, at random; for tests.
    """

    cdef Feed feed
    cdef int device
    cdef bint executes_faults, duplex
    cdef Marks marks               # None: nothing is recorded
    cdef pthread_cond_t turn       # the bus has come free for a direction
    cdef uint32_t moving[2]        # threads that move in and out now
    cdef uint32_t waiting[2]       # and that wait for their turn
    cdef uint32_t next[2]          # of these, whose turn it is
    cdef uint64_t delay, random
    cdef pthread_mutex_t lock
    cdef pthread_cond_t work
    cdef Lane lanes[LANES]
    cdef Lane done
    cdef uint32_t stopping, working
    cdef cydriver.CUcontext context
    cdef readonly uint64_t bytes_in, bytes_out, bytes_dropped, moves_in, moves_out
    cdef readonly uint64_t drops_refused, busy_in_ns, busy_out_ns, errors
    cdef readonly int last_error

    def __cinit__(
        self, Feed feed not None, int device, *, bint executes_faults, bint duplex=False,
        uint64_t delay_us=0
    ):
        self.feed = feed
        self.device = device
        self.executes_faults = executes_faults
        self.duplex = duplex
        self.delay = delay_us * 1000
        self.random = 88172645463325252
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.work, NULL)
        pthread_cond_init(&self.turn, NULL)

    def __dealloc__(self):
        cdef int i
        for i in range(LANES):
            free(self.lanes[i].commands)
        free(self.done.commands)
        pthread_cond_destroy(&self.work)
        pthread_cond_destroy(&self.turn)
        pthread_mutex_destroy(&self.lock)

    def use_context(self, uint64_t context):
        """Set the CUDA context that the moving threads work in."""
        self.context = <cydriver.CUcontext>context

    def record(self, Marks marks not None):
        """Note each move, and when; call it before the threads start."""
        self.marks = marks

    @property
    def counts(self):
        """Bytes, moves, busy seconds each way and what failed, a dict."""
        return {
            "bytes_in": deepum_load(&self.bytes_in), "bytes_out": deepum_load(&self.bytes_out),
            "bytes_dropped": deepum_load(&self.bytes_dropped),
            "moves_in": deepum_load(&self.moves_in), "moves_out": deepum_load(&self.moves_out),
            "busy_in_s": deepum_load(&self.busy_in_ns) * 1e-9,
            "busy_out_s": deepum_load(&self.busy_out_ns) * 1e-9,
            "move_errors": deepum_load(&self.errors), "last_move_error": self.last_error,
            "drops_refused": deepum_load(&self.drops_refused),
        }

    # -- the conductor's side ----------------------------------------------------------------------

    cdef int submit(self, Feed feed, const deepum_command* command) except -1 nogil:
        cdef deepum_command piece = command[0]
        cdef uint64_t i
        cdef Row* row
        cdef int lane = OUT
        if command.type == HURRY_COMMAND:
            return self.hurry(command)
        if command.type == DEEPUM_COMMAND_PREFETCH:
            lane = IN_DEMAND if command.flags & DEEPUM_COMMAND_DEMAND else IN_AHEAD
        elif command.type == DEEPUM_COMMAND_DISCARD:
            lane = DROP
        piece.count = 0
        pthread_mutex_lock(&feed.lock)
        pthread_mutex_lock(&self.lock)
        try:
            for i in range(command.count):
                row = feed.map.row(command.block + i)
                if row != NULL and lane == DROP:
                    feed.map.want_drop(command.block + i)
                elif row != NULL and row.drop and lane != OUT:
                    # A drop that has not begun is called off; one that has is waited for.
                    feed.map.cancel_drop(row)
                # The driver moves nothing that reaches over the end of an allocation.
                if piece.count and row != NULL and row.begins:
                    self.hand_over(lane, &piece)
                    piece.block += piece.count
                    piece.count = 0
                piece.count += 1
            self.hand_over(lane, &piece)
            pthread_cond_broadcast(&self.work)
        finally:
            pthread_mutex_unlock(&self.lock)
            pthread_mutex_unlock(&feed.lock)
        return 0

    cdef int hurry(self, const deepum_command* wanted) except -1 nogil:
        # Prefetches that a launch waits for go before what later launches wait for.
        cdef Lane* lane = &self.lanes[IN_AHEAD]
        cdef deepum_command command
        cdef uint64_t i, kept
        pthread_mutex_lock(&self.lock)
        try:
            kept = lane.head
            for i in range(lane.head, lane.tail):
                command = lane.commands[i & lane.mask]
                if (command.block < wanted.block + wanted.count
                        and wanted.block < command.block + command.count):
                    lane_put(&self.lanes[IN_DEMAND], &command)
                else:
                    lane.commands[kept & lane.mask] = command
                    kept += 1
            lane.tail = kept
        finally:
            pthread_mutex_unlock(&self.lock)
        return 0

    cdef int hand_over(self, int lane, const deepum_command* command) except -1 nogil:
        if (lane == IN_DEMAND and not self.executes_faults) or (
                lane == OUT and command.flags & DEEPUM_COMMAND_CLEAN):
            return lane_put(&self.done, command)
        return lane_put(&self.lanes[lane], command)

    cdef int report(self, Engine engine) except -1 nogil:
        cdef deepum_command command
        cdef uint64_t i
        cdef uint32_t slot
        cdef int told = 0
        if deepum_load(&self.done.tail) == self.done.head:
            return 0
        while True:
            pthread_mutex_lock(&self.lock)
            if self.done.head == self.done.tail:
                pthread_mutex_unlock(&self.lock)
                return told
            command = self.done.commands[self.done.head & self.done.mask]
            self.done.head += 1
            pthread_mutex_unlock(&self.lock)
            told += 1
            for i in range(command.count):
                # Its range may have been given back meanwhile; the frame has to come free yet.
                slot = engine.mem.find_leaf(<uint32_t>((command.block + i) >> LEAF_BITS))
                if slot == NONE:
                    continue
                slot = (slot << LEAF_BITS) | (<uint32_t>(command.block + i) & (LEAF_BLOCKS - 1))
                if command.type == DEEPUM_COMMAND_PREFETCH:
                    if engine.mem.at(slot).state == INCOMING:
                        engine.arrived(slot)
                elif engine.mem.at(slot).state == OUTGOING:
                    engine.departed(slot)

    cdef bint idle(self) noexcept nogil:
        cdef int i
        for i in range(DROP):
            if self.lanes[i].head != self.lanes[i].tail:
                return False
        return self.working == 0 and self.done.head == self.done.tail

    def ask(self, uint32_t kind, uint64_t block, uint32_t count, uint8_t flags=0):
        """Hand over a command, for tests."""
        cdef deepum_command command
        memset(&command, 0, sizeof(command))
        command.type = kind
        command.block = block
        command.count = count
        command.flags = flags
        self.submit(self.feed, &command)

    @property
    def waiting(self):
        """First blocks of the commands in each queue: in on demand, in ahead, out, drops."""
        cdef uint64_t i
        cdef int lane
        return [
            [self.lanes[lane].commands[i & self.lanes[lane].mask].block
             for i in range(self.lanes[lane].head, self.lanes[lane].tail)]
            for lane in range(LANES)
        ]

    # -- the moving threads ------------------------------------------------------------------------

    cdef bint take(self, int first, int second, deepum_command* command) noexcept nogil:
        # Wait for a command of either lane, the first one's before the second's.
        cdef Lane* lane
        pthread_mutex_lock(&self.lock)
        while not self.stopping:
            lane = &self.lanes[first]
            if lane.head == lane.tail:
                lane = &self.lanes[second]
            if lane.head != lane.tail:
                command[0] = lane.commands[lane.head & lane.mask]
                lane.head += 1
                self.working += 1
                pthread_mutex_unlock(&self.lock)
                return True
            pthread_cond_wait(&self.work, &self.lock)
        pthread_mutex_unlock(&self.lock)
        return False

    cdef int finish(self, const deepum_command* command, bint report) except -1 nogil:
        pthread_mutex_lock(&self.lock)
        try:
            self.working -= 1
            if report:
                lane_put(&self.done, command)
        finally:
            pthread_mutex_unlock(&self.lock)
        return 0

    cdef void take_bus(self, bint out) noexcept nogil:
        # Whoever moves the same way may join, unless the other direction waits for its turn; when
        # that comes, all who waited for it go.
        if self.duplex:
            return
        pthread_mutex_lock(&self.lock)
        while (self.moving[not out] or self.next[not out]
               or self.moving[out] and self.waiting[not out] and not self.next[out]):
            self.waiting[out] += 1
            pthread_cond_wait(&self.turn, &self.lock)
            self.waiting[out] -= 1
        if self.next[out]:
            self.next[out] -= 1
        self.moving[out] += 1
        pthread_mutex_unlock(&self.lock)

    cdef void leave_bus(self, bint out) noexcept nogil:
        if self.duplex:
            return
        pthread_mutex_lock(&self.lock)
        self.moving[out] -= 1
        if not self.moving[out] and not self.next[out]:
            self.next[not out] = self.waiting[not out]
            pthread_cond_broadcast(&self.turn)
        pthread_mutex_unlock(&self.lock)

    cdef void dawdle(self) noexcept nogil:
        if self.delay:
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            deepum_sleep(self.random % self.delay)

    cdef int check(self, int status) noexcept nogil:
        # A move that fails is no loss: the memory is where it was, and a fault brings it.
        if status:
            self.last_error = status
            deepum_add(&self.errors, 1)
        return status

    def run(self, bint out):
        """Move in one direction until `stop`; call it in a thread of its own."""
        cdef cydriver.CUstream stream = NULL
        cdef cydriver.CUmemLocation where
        cdef deepum_command command
        cdef uint64_t began, ended, size
        cdef int status
        if out:
            where.type = cydriver.CU_MEM_LOCATION_TYPE_HOST
            where.id = 0
        else:
            where.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
            where.id = self.device
        with nogil:
            enter_driver()
            self.check(join_context(self.context))
            self.check(cydriver.cuStreamCreate(&stream, cydriver.CU_STREAM_NON_BLOCKING))
            while self.take(OUT if out else IN_DEMAND, OUT if out else IN_AHEAD, &command):
                self.dawdle()
                self.take_bus(out)
                began = deepum_now()
                size = command.count * BLOCK
                status = self.check(cydriver.cuMemPrefetchAsync(
                    <cydriver.CUdeviceptr>(command.block << DEEPUM_BLOCK_SHIFT), size, where, 0,
                    stream))
                if not status:
                    status = self.check(cydriver.cuStreamSynchronize(stream))
                ended = deepum_now()
                self.leave_bus(out)
                if self.marks is not None and not status:
                    self.marks.put(MARK_OUT if out else MARK_IN, began, ended, command.block,
                                   command.count, 0, 0)
                if out:
                    deepum_add(&self.busy_out_ns, ended - began)
                    if not status:
                        deepum_add(&self.bytes_out, size)
                        deepum_add(&self.moves_out, 1)
                else:
                    deepum_add(&self.busy_in_ns, ended - began)
                    if not status:
                        deepum_add(&self.bytes_in, size)
                        deepum_add(&self.moves_in, 1)
                self.finish(&command, True)
            if stream != NULL:
                self.check(cydriver.cuStreamDestroy(stream))
            leave_driver()

    def run_drops(self):
        """Drop what may be dropped until `stop`; call it in a thread of its own."""
        cdef cydriver.CUstream stream = NULL
        cdef cydriver.CUdeviceptr addresses[DROPS]
        cdef size_t sizes[DROPS]
        cdef Row* rows[DROPS]
        cdef deepum_command command
        cdef uint64_t at, began
        cdef int count, i, status
        with nogil:
            enter_driver()
            self.check(join_context(self.context))
            self.check(cydriver.cuStreamCreate(&stream, cydriver.CU_STREAM_NON_BLOCKING))
            while self.take(DROP, DROP, &command):
                at = 0
                while at < command.count:
                    self.dawdle()
                    count = 0
                    pthread_mutex_lock(&self.feed.lock)
                    while at < command.count and count < DROPS:
                        rows[count] = self.feed.map.begin_drop(command.block + at)
                        if rows[count] != NULL:
                            addresses[count] = <cydriver.CUdeviceptr>(
                                (command.block + at) << DEEPUM_BLOCK_SHIFT)
                            sizes[count] = BLOCK
                            count += 1
                        else:
                            deepum_add(&self.drops_refused, 1)
                        at += 1
                    pthread_mutex_unlock(&self.feed.lock)
                    if not count:
                        continue
                    began = deepum_now()
                    status = self.check(cydriver.cuMemDiscardBatchAsync(
                        addresses, sizes, count, 0, stream))
                    if not status:
                        status = self.check(cydriver.cuStreamSynchronize(stream))
                    for i in range(count):
                        self.feed.map.end_drop(rows[i])
                    if not status:
                        deepum_add(&self.bytes_dropped, count * BLOCK)
                        if self.marks is not None:
                            self.marks.put(MARK_DROP, began, deepum_now(),
                                           <uint64_t>addresses[0] >> DEEPUM_BLOCK_SHIFT,
                                           count, 0, 0)
                self.finish(&command, False)
            if stream != NULL:
                self.check(cydriver.cuStreamDestroy(stream))
            leave_driver()

    def stop(self):
        """Ask the threads to return; what still waits is not carried out."""
        pthread_mutex_lock(&self.lock)
        self.stopping = 1
        pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.lock)

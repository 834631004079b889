# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""A managed mapping with real page faults, without privilege: userfaultfd.

The processor stands in for the GPU. A budget of 2 MiB *frames* is the device's memory, the *store*
is the host's. A block that has no frame is not mapped: touching it is a page fault, the thread
stops, and the block is brought.

Two threads serve. The *fault thread* reads faults and writes them down; it touches neither the
engine nor the GIL, ever. The *migration thread* tells the engine what happened, takes its
commands, and moves blocks: those that faulted first, then the rest. Where the engine cannot be
asked in time, or has no answer, the blocks that are waited for are served without it, as plain
demand paging would, and the engine is told afterwards: whoever touches memory never waits for a
policy.

How a block moves. In: its contents are copied from the store to a free frame, and the frame's
pages are moved to the block's address in one step (UFFDIO_MOVE). Out: the pages are moved back to
the frame, where nobody can write to them any more, and then copied to the store. Kernels before
6.8 cannot move pages. There UFFDIO_COPY makes new ones; on the way out the block is protected
against writing, copied to the store, and dropped with MADV_DONTNEED. Who touches a block that is
on its way out waits and finds it absent, so no write is lost.

Lock order: the engine's, then the mapping's.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from deepum._core.engine cimport Engine
from deepum._core.exec_table cimport NONE
from deepum._core.live cimport LiveEngine
from deepum._core.records cimport *
from deepum._core.residency cimport RESIDENT as ENGINE_RESIDENT
from deepum._core.residency cimport CONTENT
from deepum._core.threads cimport (
    deepum_cond_init, deepum_wait_for, pthread_cond_broadcast, pthread_cond_destroy,
    pthread_cond_t, pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)

import os

import numpy as np

from deepum._core import engine as _engine

cdef extern from "uffd.h" nogil:
    enum:
        MADV_DONTNEED
    uint64_t DEEPUM_BLOCK_BYTES
    uint64_t DEEPUM_STALL_MS
    uint64_t DEEPUM_FEATURE_MOVE
    int deepum_uffd_open(uint64_t* features)
    int deepum_uffd_register(int fd, void* start, uint64_t size, bint protect)
    int deepum_uffd_unregister(int fd, void* start, uint64_t size)
    int deepum_uffd_wake(int fd, void* start, uint64_t size)
    int deepum_uffd_protect(int fd, void* start, uint64_t size, bint on)
    int deepum_uffd_move(int fd, void* to, void* source, uint64_t size, uint64_t* done)
    int deepum_uffd_copy(int fd, void* to, void* source, uint64_t size, uint64_t* done)
    int deepum_uffd_read(int fd, uint64_t* addresses)
    void* deepum_reserve(uint64_t size)
    int deepum_commit(void* start, uint64_t size, bint populate)
    uint64_t deepum_now_ns()
    int deepum_die(const char* text, int error)
    int madvise(void* start, uint64_t size, int advice)
    int munmap(void* start, uint64_t size)
    int usleep(unsigned int microseconds)
    int close(int fd)
    int getpid()
    struct pollfd:
        int fd
        short events, revents
    enum:
        POLLIN
    int poll(pollfd* fds, unsigned long count, int milliseconds)
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    ssize_t write(int fd, const void* data, size_t size)

cdef enum:
    JOURNAL = 8192             # reports that may wait for the engine
    WAITERS = 65536            # blocks that threads wait for: no more than there are threads
    PATIENCE_MS = 50           # how long a fault may wait for the engine's lock

cdef enum Where:
    ABSENT                     # no frame; contents, if any, in the store
    COMING                     # queued to be brought
    MOVING_IN
    PRESENT
    LEAVING                    # queued to be taken out; still mapped
    MOVING_OUT

cdef enum:
    URGENT = 0                 # blocks to bring that somebody waits for
    AHEAD = 1                  # blocks to bring ahead
    OUT = 2                    # blocks to take out
    NOWHERE = 3


def probe():
    """Try to open a userfaultfd; return 0, or an errno below zero."""
    cdef uint64_t features = 0
    cdef int fd = deepum_uffd_open(&features)
    if fd >= 0:
        close(fd)
    return min(fd, 0)


cdef struct Home:
    # What is known of one block of the mapping.
    uint64_t order             # when it was queued
    uint64_t since             # when the fault came that it is waited for, ns
    uint32_t before, after     # neighbours in its queue
    uint32_t frame             # where its pages go back to
    uint32_t comings           # how often it has come
    uint8_t where
    uint8_t queue
    uint8_t stored             # the store has its contents
    uint8_t waiting            # some thread waits for it


cdef struct Queue:
    uint32_t head, tail, size


cdef struct Report:
    uint32_t type, block
    uint32_t comings           # how often the block had come when this happened


cdef struct Tally:
    uint64_t bytes_in          # copied from the store
    uint64_t bytes_out         # copied to it
    uint64_t bytes_dropped     # given up without copying
    uint64_t bytes_zeroed      # frames given out empty
    uint64_t waits             # blocks that were waited for
    uint64_t wait_ns           # how long, all together
    uint64_t in_ns, out_ns     # spent moving blocks
    uint64_t alone             # blocks served without the engine
    uint64_t given_up          # prefetches for which no frame was left


@cython.final
cdef class Uffd:
    """The mapping, its frames and its store.

    Parameters
    ----------
    live : LiveEngine
        Decides; its budget is the number of frames.
    blocks : int
        Addresses to reserve, in blocks. Memory is taken when they are committed.
    moves : bool
        Whether to move pages where the kernel can, instead of copying them.

    Raises
    ------
    OSError
        The kernel does not give a userfaultfd, or not the memory.
    """

    cdef LiveEngine live
    cdef int fd, bell
    cdef readonly bint moves
    cdef int pid
    cdef char* space
    cdef char* pool
    cdef char* store
    cdef char* zeros
    cdef uint64_t reserved     # blocks of `space` and of `store`
    cdef uint32_t first        # number of the mapping's first block
    cdef uint32_t high         # blocks committed
    cdef uint32_t budget
    cdef Home* homes
    cdef uint32_t* frames      # free ones
    cdef uint32_t frames_free
    cdef Queue queues[3]
    cdef uint64_t order
    cdef uint32_t* waiters
    cdef uint32_t waiter_count
    cdef Report journal[JOURNAL]
    cdef uint32_t journal_head, journal_size
    cdef bint resync           # more was reported than the journal holds
    cdef uint32_t hand         # where the search for a victim goes on
    cdef uint32_t moving       # blocks being copied now
    cdef bint busy             # the migration thread is not waiting for work
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t work   # something is due
    cdef pthread_cond_t quiet  # nothing is
    cdef volatile bint stop_moves, stop_faults
    cdef volatile uint64_t beat    # grows whenever the migration thread has come round
    cdef Tally tally

    def __cinit__(self, LiveEngine live not None, uint64_t blocks, *, bint moves=True):
        cdef uint64_t features = 0
        cdef uint32_t i
        self.fd = self.bell = -1
        self.pid = getpid()
        self.live = live
        self.budget = <uint32_t>live.engine.mem.budget
        self.reserved = blocks
        pthread_mutex_init(&self.mutex, NULL)
        deepum_cond_init(&self.work)
        deepum_cond_init(&self.quiet)
        for i in range(3):
            self.queues[i].head = self.queues[i].tail = NONE
        self.fd = deepum_uffd_open(&features)
        if self.fd < 0:
            raise OSError(-self.fd, os.strerror(-self.fd))
        self.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        self.moves = moves and (features & DEEPUM_FEATURE_MOVE) != 0
        self.space = <char*>deepum_reserve(blocks * DEEPUM_BLOCK_BYTES)
        self.store = <char*>deepum_reserve(blocks * DEEPUM_BLOCK_BYTES)
        self.homes = <Home*>calloc(blocks, sizeof(Home))
        self.frames = <uint32_t*>malloc(self.budget * sizeof(uint32_t))
        self.waiters = <uint32_t*>malloc(WAITERS * sizeof(uint32_t))
        if (self.bell < 0 or not self.space or not self.store or not self.homes
                or not self.frames or not self.waiters):
            raise MemoryError()
        self.first = <uint32_t>(<uint64_t>self.space >> DEEPUM_BLOCK_SHIFT)
        for i in range(self.budget):
            self.frames[i] = self.budget - 1 - i
        self.frames_free = self.budget
        if self.moves:
            self.pool = <char*>deepum_reserve(self.budget * DEEPUM_BLOCK_BYTES)
            if not self.pool:
                raise MemoryError()
            self.must(deepum_commit(self.pool, self.budget * DEEPUM_BLOCK_BYTES, True))
            # Pages can only be moved to registered memory, and these come back.
            self.must(deepum_uffd_register(
                self.fd, self.pool, self.budget * DEEPUM_BLOCK_BYTES, False))
        else:
            self.zeros = <char*>deepum_reserve(DEEPUM_BLOCK_BYTES)
            if not self.zeros:
                raise MemoryError()
            self.must(deepum_commit(self.zeros, DEEPUM_BLOCK_BYTES, True))

    cdef int must(self, int error) except -1:
        if error:
            raise OSError(-error, os.strerror(-error))
        return 0

    def __dealloc__(self):
        # In a child process none of this is mapped, and other things may be.
        if self.fd >= 0:
            close(self.fd)
        if self.bell >= 0:
            close(self.bell)
        if getpid() == self.pid:
            self.unmap()
            if self.space:
                munmap(self.space, self.reserved * DEEPUM_BLOCK_BYTES)
        free(self.homes)
        free(self.frames)
        free(self.waiters)
        pthread_cond_destroy(&self.work)
        pthread_cond_destroy(&self.quiet)
        pthread_mutex_destroy(&self.mutex)

    cdef void unmap(self) noexcept nogil:
        if self.pool:
            munmap(self.pool, self.budget * DEEPUM_BLOCK_BYTES)
        if self.store:
            munmap(self.store, self.reserved * DEEPUM_BLOCK_BYTES)
        if self.zeros:
            munmap(self.zeros, DEEPUM_BLOCK_BYTES)
        self.pool = self.store = self.zeros = NULL

    # -- addresses ----------------------------------------------------------------------------

    cdef char* at(self, uint32_t i) noexcept nogil:
        return self.space + <uint64_t>i * DEEPUM_BLOCK_BYTES

    cdef char* stored_at(self, uint32_t i) noexcept nogil:
        return self.store + <uint64_t>i * DEEPUM_BLOCK_BYTES

    cdef char* frame_at(self, uint32_t frame) noexcept nogil:
        return self.pool + <uint64_t>frame * DEEPUM_BLOCK_BYTES

    @property
    def address(self):
        """Where the mapping begins."""
        return <uint64_t>self.space

    @property
    def committed(self):
        """Blocks of it that may be used, from the first one on."""
        return self.high

    def commit(self, uint64_t blocks):
        """Make the first `blocks` blocks usable, with room for each of them in the store.

        The engine must know them before.
        """
        cdef uint32_t i
        cdef int error
        cdef uint64_t size
        if blocks > self.reserved:
            raise ValueError(f"only {self.reserved} blocks are reserved")
        if blocks <= self.high:
            return
        size = (blocks - self.high) * DEEPUM_BLOCK_BYTES
        with nogil:
            error = deepum_commit(self.stored_at(self.high), size, True)
            if not error:
                error = deepum_commit(self.at(self.high), size, False)
            if not error:
                error = deepum_uffd_register(self.fd, self.at(self.high), size, True)
        self.must(error)
        for i in range(self.high, <uint32_t>blocks):
            self.homes[i].queue = NOWHERE
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.high = <uint32_t>blocks
            pthread_mutex_unlock(&self.mutex)

    # -- queues: the mapping's lock is held ---------------------------------------------------

    cdef void push(self, uint32_t i, uint8_t queue, bint front) noexcept nogil:
        cdef Home* h = &self.homes[i]
        cdef Queue* q = &self.queues[queue]
        self.order += 1
        h.order = self.order
        h.queue = queue
        h.before = NONE if front else q.tail
        h.after = q.head if front else NONE
        if h.before == NONE:
            q.head = i
        else:
            self.homes[h.before].after = i
        if h.after == NONE:
            q.tail = i
        else:
            self.homes[h.after].before = i
        q.size += 1

    cdef void pull(self, uint32_t i) noexcept nogil:
        cdef Home* h = &self.homes[i]
        cdef Queue* q
        if h.queue == NOWHERE:
            return
        q = &self.queues[h.queue]
        if h.before == NONE:
            q.head = h.after
        else:
            self.homes[h.before].after = h.after
        if h.after == NONE:
            q.tail = h.before
        else:
            self.homes[h.after].before = h.before
        q.size -= 1
        h.queue = NOWHERE

    cdef void report(self, uint32_t type, uint32_t i) noexcept nogil:
        cdef Report* r
        if self.journal_size == JOURNAL:
            self.resync = True
            return
        r = &self.journal[(self.journal_head + self.journal_size) % JOURNAL]
        r.type = type
        r.block = i
        r.comings = self.homes[i].comings
        self.journal_size += 1

    cdef void wake(self, uint32_t i) noexcept nogil:
        deepum_uffd_wake(self.fd, self.at(i), DEEPUM_BLOCK_BYTES)

    cdef void served(self, uint32_t i) noexcept nogil:
        # The block is there: let go who waits for it.
        cdef uint32_t k
        if not self.homes[i].waiting:
            return
        self.homes[i].waiting = False
        self.tally.waits += 1
        self.tally.wait_ns += deepum_now_ns() - self.homes[i].since
        for k in range(self.waiter_count):
            if self.waiters[k] == i:
                # The order of the rest stays: first come, first served.
                while k + 1 < self.waiter_count:
                    self.waiters[k] = self.waiters[k + 1]
                    k += 1
                self.waiter_count -= 1
                break
        self.wake(i)

    # -- moving a block: the lock is held, and let go while memory is copied ------------------

    cdef void bring(self, uint32_t i) noexcept nogil:
        # The block has no frame, and one is free.
        cdef Home* h = &self.homes[i]
        cdef uint32_t frame
        cdef int error = 0, _
        cdef uint64_t began, done = 0
        cdef bint stored = h.stored
        self.pull(i)
        self.frames_free -= 1
        frame = self.frames[self.frames_free]
        h.where = MOVING_IN
        self.moving += 1
        pthread_mutex_unlock(&self.mutex)
        began = deepum_now_ns()
        if self.moves:
            if stored:
                memcpy(self.frame_at(frame), self.stored_at(i), DEEPUM_BLOCK_BYTES)
            else:
                memset(self.frame_at(frame), 0, DEEPUM_BLOCK_BYTES)
        for _ in range(1000):
            if self.moves:
                error = deepum_uffd_move(
                    self.fd, self.at(i), self.frame_at(frame), DEEPUM_BLOCK_BYTES, &done)
            else:
                error = deepum_uffd_copy(
                    self.fd, self.at(i), self.stored_at(i) if stored else self.zeros,
                    DEEPUM_BLOCK_BYTES, &done)
            if not error:
                break
            usleep(1000)
        if error:
            # Waiting threads could only be given wrong contents.
            deepum_die("deepum: a block cannot be mapped", -error)
        pthread_mutex_lock(&self.mutex)
        self.tally.in_ns += deepum_now_ns() - began
        if stored:
            self.tally.bytes_in += DEEPUM_BLOCK_BYTES
        else:
            self.tally.bytes_zeroed += DEEPUM_BLOCK_BYTES
        self.moving -= 1
        h.frame = frame
        h.comings += 1
        h.where = PRESENT
        self.report(DEEPUM_EVENT_ARRIVED, i)
        self.served(i)
        pthread_cond_broadcast(&self.work)

    cdef bint take_out(self, uint32_t i) noexcept nogil:
        # The block has a frame. False if its pages cannot be had now.
        cdef Home* h = &self.homes[i]
        cdef int error
        cdef uint64_t began
        self.pull(i)
        h.where = MOVING_OUT
        self.moving += 1
        pthread_mutex_unlock(&self.mutex)
        began = deepum_now_ns()
        if self.moves:
            error = self.unmap_block(i, h.frame)
            if not error:
                memcpy(self.stored_at(i), self.frame_at(h.frame), DEEPUM_BLOCK_BYTES)
        else:
            error = deepum_uffd_protect(self.fd, self.at(i), DEEPUM_BLOCK_BYTES, True)
            if not error:
                memcpy(self.stored_at(i), self.at(i), DEEPUM_BLOCK_BYTES)
                error = self.unmap_block(i, h.frame)
        if error:
            usleep(1000)
        pthread_mutex_lock(&self.mutex)
        self.tally.out_ns += deepum_now_ns() - began
        self.moving -= 1
        if error:
            # Something else holds the pages, a device that writes to them perhaps.
            h.where = LEAVING
            self.push(i, OUT, False)
            self.served(i)
            return False
        self.tally.bytes_out += DEEPUM_BLOCK_BYTES
        h.stored = True
        h.where = ABSENT
        self.frames[self.frames_free] = h.frame
        self.frames_free += 1
        self.report(DEEPUM_EVENT_DEPARTED, i)
        pthread_cond_broadcast(&self.work)
        return True

    cdef int unmap_block(self, uint32_t i, uint32_t frame) noexcept nogil:
        # All of it or nothing.
        cdef uint64_t done = 0, back = 0
        cdef int error
        if not self.moves:
            error = madvise(self.at(i), DEEPUM_BLOCK_BYTES, MADV_DONTNEED)
            if error:
                deepum_uffd_protect(self.fd, self.at(i), DEEPUM_BLOCK_BYTES, False)
            return error
        error = deepum_uffd_move(
            self.fd, self.frame_at(frame), self.at(i), DEEPUM_BLOCK_BYTES, &done)
        if error and done and deepum_uffd_move(
            self.fd, self.at(i), self.frame_at(frame), done, &back
        ):
            deepum_die("deepum: a block cannot be mapped again", -error)
        return error

    cdef void drop(self, uint32_t i) noexcept nogil:
        # Nobody will read the block's contents again.
        cdef Home* h = &self.homes[i]
        if h.where == PRESENT or h.where == LEAVING:
            if self.unmap_block(i, h.frame):
                # Held by something else: it goes the long way, when it can.
                if h.where == PRESENT:
                    h.where = LEAVING
                    self.push(i, OUT, False)
                return
            self.pull(i)
            h.where = ABSENT
            self.frames[self.frames_free] = h.frame
            self.frames_free += 1
            self.tally.bytes_dropped += DEEPUM_BLOCK_BYTES
            h.stored = False
        else:
            self.lose(i)

    cdef void lose(self, uint32_t i) noexcept nogil:
        # What the store has of a block is not wanted any more: it comes with zeros.
        if self.homes[i].where == ABSENT or self.homes[i].where == COMING:
            self.homes[i].stored = False

    cdef uint32_t victim(self) noexcept nogil:
        # Without the engine's advice: what is to leave anyway, then all in turn.
        cdef uint32_t _
        if self.queues[OUT].size:
            return self.queues[OUT].head
        for _ in range(self.high):
            self.hand = self.hand + 1 if self.hand + 1 < self.high else 0
            if self.homes[self.hand].where == PRESENT:
                return self.hand
        return NONE

    cdef bint clear_frame(self) noexcept nogil:
        # Make sure that a frame is free.
        cdef uint32_t i
        if self.frames_free:
            return True
        i = self.victim()
        return i != NONE and self.take_out(i) and self.frames_free > 0

    # -- the engine ---------------------------------------------------------------------------

    cdef int turn(
        self, const deepum_event* events, Py_ssize_t count, long patience
    ) except -1 nogil:
        # Tell the engine what happened here and what is new, and take its commands. 0 if it
        # cannot be asked within so many milliseconds (below 0: however long it takes).
        if self.live.lost:
            pthread_mutex_lock(&self.mutex)
            self.journal_size = 0
            self.resync = False
            pthread_mutex_unlock(&self.mutex)
            return 0
        if patience < 0:
            self.live.lock()
        elif not self.live.lock_within(patience):
            return 0
        try:
            self.tell(self.live.engine, events, count)
        finally:
            self.live.unlock()
        return 1

    cdef int tell(
        self, Engine engine, const deepum_event* events, Py_ssize_t count
    ) except -1 nogil:
        cdef deepum_event e
        cdef Report r
        cdef uint32_t slot
        cdef Py_ssize_t k
        memset(&e, 0, sizeof(e))
        while True:
            pthread_mutex_lock(&self.mutex)
            if not self.journal_size:
                if self.resync:
                    self.resync = False
                    pthread_mutex_unlock(&self.mutex)
                    self.compare(engine)
                    continue
                pthread_mutex_unlock(&self.mutex)
                break
            r = self.journal[self.journal_head]
            self.journal_head = (self.journal_head + 1) % JOURNAL
            self.journal_size -= 1
            pthread_mutex_unlock(&self.mutex)
            e.type = r.type
            e.address = <uint64_t>(self.first + r.block) << DEEPUM_BLOCK_SHIFT
            slot = engine.mem.slot_of(self.first + r.block)
            if slot == NONE:
                continue
            engine.feed_one(&e)
            if r.type == DEEPUM_EVENT_DEPARTED and not engine.mem.at(slot).flags & CONTENT:
                # It was freed on its way out. What has come since then is not that.
                pthread_mutex_lock(&self.mutex)
                if self.homes[r.block].comings == r.comings:
                    self.lose(r.block)
                pthread_mutex_unlock(&self.mutex)
        for k in range(count):
            engine.feed_one(&events[k])
        engine.pump()
        self.route(engine)
        return 0

    cdef int compare(self, Engine engine) except -1 nogil:
        # The journal ran over: bring the engine up to what is there.
        cdef uint32_t i, slot
        cdef bint here
        cdef deepum_event e
        memset(&e, 0, sizeof(e))
        for i in range(self.high):
            slot = engine.mem.slot_of(self.first + i)
            if slot == NONE:
                continue
            pthread_mutex_lock(&self.mutex)
            here = self.homes[i].where in (PRESENT, LEAVING, MOVING_OUT)
            pthread_mutex_unlock(&self.mutex)
            e.address = <uint64_t>(self.first + i) << DEEPUM_BLOCK_SHIFT
            e.type = DEEPUM_EVENT_ARRIVED if here else DEEPUM_EVENT_DEPARTED
            if here != (engine.mem.at(slot).state == ENGINE_RESIDENT):
                engine.feed_one(&e)
        return 0

    cdef void route(self, Engine engine) noexcept nogil:
        # Queue what the commands ask for. What the blocks have done meanwhile is in the journal:
        # a command that does not fit any more is none.
        cdef uint32_t k, n, i
        cdef deepum_command* c
        cdef Home* h
        if not engine.command_count:
            return
        pthread_mutex_lock(&self.mutex)
        for k in range(engine.command_count):
            c = &engine.commands[k]
            for n in range(c.count):
                i = <uint32_t>c.block + n - self.first
                if i >= self.high:
                    continue
                h = &self.homes[i]
                if c.type == DEEPUM_COMMAND_PREFETCH:
                    if h.where == ABSENT:
                        h.where = COMING
                        self.push(
                            i, URGENT if c.flags & DEEPUM_COMMAND_DEMAND or h.waiting else AHEAD,
                            False)
                elif c.type == DEEPUM_COMMAND_EVICT:
                    if h.where == PRESENT:
                        h.where = LEAVING
                        self.push(i, OUT, (c.flags & DEEPUM_COMMAND_DEMAND) != 0)
                else:
                    self.drop(i)
        engine.command_count = 0
        pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.mutex)

    def feed(self, events):
        """Tell the engine of events, an array of `EVENT_DTYPE`, and take its commands.

        Raises
        ------
        ValueError
            An event that cannot be: the ones before it have been taken.
        """
        cdef const unsigned char[::1] view
        cdef const deepum_event* e = NULL
        cdef Py_ssize_t count
        array = np.ascontiguousarray(events, dtype=_engine.EVENT_DTYPE).reshape(-1)
        count = array.size
        if count:
            view = array.view(np.uint8)
            e = <const deepum_event*>&view[0]
        with nogil:
            self.turn(e, count, -1)

    def poke(self):
        """Take the commands that are due."""
        with nogil:
            self.turn(NULL, 0, -1)

    def forget(self, blocks):
        """Forget the stored contents of blocks, by number; what is present stays."""
        cdef uint32_t i
        for block in blocks:
            i = <uint32_t>(<uint64_t>block - self.first)
            with nogil:
                pthread_mutex_lock(&self.mutex)
                if i < self.high:
                    self.lose(i)
                pthread_mutex_unlock(&self.mutex)

    def forget_reports(self):
        """Lose what was to be reported to the engine, as if too much had happened: for tests."""
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.journal_size = 0
            self.resync = True
            pthread_mutex_unlock(&self.mutex)

    # -- the fault thread ---------------------------------------------------------------------

    cdef void note_fault(self, uint32_t i) noexcept nogil:
        cdef Home* h
        if i >= self.high:
            return
        h = &self.homes[i]
        if h.where == PRESENT or h.where == LEAVING:
            self.wake(i)       # it came meanwhile
            return
        if h.waiting:
            return
        h.waiting = True
        h.since = deepum_now_ns()
        if self.waiter_count < WAITERS:
            self.waiters[self.waiter_count] = i
            self.waiter_count += 1
        self.report(DEEPUM_EVENT_FAULT, i)
        if h.where == COMING and h.queue == AHEAD:
            self.pull(i)
            self.push(i, URGENT, False)

    def watch_faults(self):
        """Read faults until told to stop: the body of the fault thread."""
        with nogil:
            self.watch()

    cdef void watch(self) noexcept nogil:
        cdef pollfd fds[2]
        cdef uint64_t addresses[64]
        cdef int count, k
        cdef bint waiting = False
        cdef uint64_t seen = 0, since = 0, now
        fds[0].fd = self.fd
        fds[1].fd = self.bell
        fds[0].events = fds[1].events = POLLIN
        while not self.stop_faults:
            poll(fds, 2, <int>(DEEPUM_STALL_MS / 10) if waiting else -1)
            count = deepum_uffd_read(self.fd, addresses)
            now = deepum_now_ns()
            pthread_mutex_lock(&self.mutex)
            for k in range(count):
                self.note_fault(<uint32_t>(
                    (addresses[k] - <uint64_t>self.space) >> DEEPUM_BLOCK_SHIFT))
            if count:
                pthread_cond_broadcast(&self.work)
            # The migration thread may be caught in the engine, behind a lock that one of those
            # holds who wait here.
            if self.stop_moves:
                self.serve_alone()
            elif self.beat != seen or not waiting:
                seen = self.beat
                since = now
            elif now - since > DEEPUM_STALL_MS * 1000000:
                self.serve_alone()
            waiting = self.waiter_count > 0
            pthread_mutex_unlock(&self.mutex)

    cdef bint serve_alone(self) noexcept nogil:
        # Plain demand paging for the blocks that are waited for. Whether any was served.
        cdef uint32_t k = 0, i
        cdef bint worked = False
        while k < self.waiter_count:
            i = self.waiters[k]
            if self.homes[i].where != ABSENT and self.homes[i].where != COMING:
                k += 1             # on its way already
                continue
            if not self.clear_frame():
                return worked
            # Memory was copied and the lock let go: what is true now?
            if self.homes[i].where != ABSENT and self.homes[i].where != COMING:
                k = 0
                continue
            self.bring(i)
            self.tally.alone += 1
            worked = True
            k = 0
        return worked

    # -- the migration thread -----------------------------------------------------------------

    def move_blocks(self):
        """Move blocks until told to stop: the body of the migration thread.

        Raises
        ------
        Exception
            The engine failed. Called again after `LiveEngine.give_up`, it goes on without.
        """
        with nogil:
            self.migrate()

    cdef int migrate(self) except -1 nogil:
        cdef bint reached, worked
        while not self.stop_moves:
            pthread_mutex_lock(&self.mutex)
            while not (self.stop_moves or self.journal_size or self.resync or self.waiter_count
                       or self.queues[URGENT].size or self.queues[AHEAD].size
                       or self.queues[OUT].size):
                self.busy = False
                pthread_cond_broadcast(&self.quiet)
                pthread_cond_wait(&self.work, &self.mutex)
            self.busy = True
            pthread_mutex_unlock(&self.mutex)
            if self.stop_moves:
                break
            reached = self.turn(NULL, 0, PATIENCE_MS)
            self.beat += 1
            pthread_mutex_lock(&self.mutex)
            worked = self.one_move()
            # Without an answer, not because the question has yet to be asked.
            if self.waiter_count and (not reached or not (worked or self.journal_size)):
                worked |= self.serve_alone()
            if not worked and not self.journal_size:
                # All that is due is in the other thread's hands, or held by a device.
                deepum_wait_for(&self.work, &self.mutex, 1000)
            pthread_mutex_unlock(&self.mutex)
        return 0

    cdef bint one_move(self) noexcept nogil:
        # The most urgent move. Whether there was any.
        cdef uint32_t coming, out = self.queues[OUT].head
        if self.queues[URGENT].size:
            # The engine counts frames as this does, unless blocks were served without it.
            if self.clear_frame() and self.queues[URGENT].size:
                self.bring(self.queues[URGENT].head)
                return True
            return False
        coming = self.queues[AHEAD].head
        if out != NONE and (
            self.waiter_count or coming == NONE or self.homes[out].order < self.homes[coming].order
        ):
            return self.take_out(out)
        if coming == NONE:
            return False
        if self.frames_free:
            self.bring(coming)
        elif out != NONE:
            return self.take_out(out)
        else:
            self.pull(coming)
            self.homes[coming].where = ABSENT
            self.tally.given_up += 1
            self.report(DEEPUM_EVENT_DEPARTED, coming)
        return True

    # -- from outside -------------------------------------------------------------------------

    cdef bint idle(self) noexcept nogil:
        return not (self.waiter_count or self.journal_size or self.resync or self.moving
                    or (self.busy and not self.stop_moves)
                    or self.queues[URGENT].size or self.queues[AHEAD].size
                    or self.queues[OUT].size)

    def settle(self, double seconds=30.0):
        """Wait until nothing is due any more; returns whether that came in time."""
        cdef uint64_t end = deepum_now_ns() + <uint64_t>(seconds * 1e9)
        cdef bint done = False
        with nogil:
            while not done and deepum_now_ns() < end:
                pthread_mutex_lock(&self.mutex)
                done = self.idle()
                if not done:
                    deepum_wait_for(&self.quiet, &self.mutex, 10000)
                pthread_mutex_unlock(&self.mutex)
        return done

    def present(self):
        """Return the numbers of the blocks that have a frame now, ascending."""
        cdef uint32_t i
        return [
            self.first + i for i in range(self.high)
            if self.homes[i].where in (PRESENT, LEAVING, MOVING_OUT)
        ]

    @property
    def counts(self):
        """What was moved, a dict: bytes, waits, nanoseconds."""
        cdef Tally t
        with nogil:
            pthread_mutex_lock(&self.mutex)
            t = self.tally
            pthread_mutex_unlock(&self.mutex)
        return t

    def stop_moving(self):
        """Let the migration thread end. Faults are served without the engine from here on."""
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.stop_moves = True
            pthread_cond_broadcast(&self.work)
            pthread_mutex_unlock(&self.mutex)

    def stop_watching(self):
        """Let the fault thread end."""
        cdef uint64_t one = 1
        self.stop_faults = True
        write(self.bell, &one, sizeof(one))

    def release(self, ranges):
        """Make the mapping ordinary memory: (address, bytes) ranges keep their contents.

        The migration thread must have ended. Frames, store and everything else is given back.
        """
        cdef uint64_t address, size, first, last
        cdef uint32_t i
        cdef uint8_t* kept = <uint8_t*>calloc(self.high + 1, 1)
        cdef int error = 0
        if not kept:
            raise MemoryError()
        try:
            for address, size in ranges:
                if size:
                    first = (address - <uint64_t>self.space) >> DEEPUM_BLOCK_SHIFT
                    last = (address + size - 1 - <uint64_t>self.space) >> DEEPUM_BLOCK_SHIFT
                    for i in range(first, last + 1):
                        kept[i] = 1
            with nogil:
                pthread_mutex_lock(&self.mutex)
                while self.moving:
                    deepum_wait_for(&self.work, &self.mutex, 1000)
                for i in range(self.high):
                    error = self.settle_down(i, kept[i])
                    if error:
                        break
                if self.high and not error:
                    error = deepum_uffd_unregister(
                        self.fd, self.space, self.high * DEEPUM_BLOCK_BYTES)
                if not error:
                    self.high = 0      # no fault means anything any more
                    self.waiter_count = 0
                pthread_mutex_unlock(&self.mutex)
        finally:
            free(kept)
        self.must(error)

    cdef int settle_down(self, uint32_t i, bint keep) noexcept nogil:
        cdef Home* h = &self.homes[i]
        cdef int error = 0
        cdef uint64_t done = 0
        if not keep:
            return madvise(self.at(i), DEEPUM_BLOCK_BYTES, MADV_DONTNEED)
        if h.where in (PRESENT, LEAVING) or not h.stored:
            return 0
        # The store's own pages will do: no memory is needed that is not there.
        if self.moves:
            error = deepum_uffd_move(
                self.fd, self.at(i), self.stored_at(i), DEEPUM_BLOCK_BYTES, &done)
        else:
            error = deepum_uffd_copy(
                self.fd, self.at(i), self.stored_at(i), DEEPUM_BLOCK_BYTES, &done)
            madvise(self.stored_at(i), DEEPUM_BLOCK_BYTES, MADV_DONTNEED)
        if not error:
            h.where = PRESENT
        return error

    def give_back(self):
        """Give frames and store back. Both threads must have ended."""
        with nogil:
            self.unmap()
            close(self.fd)
            close(self.bell)
            self.fd = self.bell = -1

    def leave(self):
        """In a child process: let go of what belongs to the parent."""
        close(self.fd)
        close(self.bell)
        self.fd = self.bell = -1

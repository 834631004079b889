# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""A managed mapping served by the kernel module.

The module serves page faults and moves blocks; see docs/kmod.md. Here is the other end of its
ring: one thread tells the engine what happened and hands the engine's commands back. The module
waits for that only where a fault finds no free frame, and not for long. So this thread may take
its time, wait for the engine's lock, or die: who touches memory goes on.

The engine follows what the module says. Where events were lost, it is brought up to what is there.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from deepum._core.engine cimport Engine
from deepum._core.exec_table cimport NONE
from deepum._core.live cimport LiveEngine
from deepum._core.records cimport *
from deepum._core.residency cimport ABSENT as ENGINE_ABSENT
from deepum._core.residency cimport OUTGOING as ENGINE_OUTGOING
from deepum._core.residency cimport RESIDENT as ENGINE_RESIDENT

import errno
import os
import time

import numpy as np

from deepum._core import engine as _engine

cdef extern from "kmod.h" nogil:
    uint64_t DEEPUM_BLOCK_SIZE
    uint32_t DEEPUM_MAX_BATCH
    uint32_t DEEPUM_STATE_MASK
    uint32_t DEEPUM_STATE_RESIDENT
    uint32_t DEEPUM_STATE_OUTGOING
    uint32_t DEEPUM_MOVE_REFUSED
    uint32_t DEEPUM_SUBMIT_WAIT
    uint32_t DEEPUM_SUBMIT_PASS
    struct deepum_ring:
        pass
    struct deepum_stats:
        uint64_t frames, frames_free, host_blocks, launched, completed, faults
        unsigned long long served[5]
        unsigned long long served_ns[5]
        uint64_t mapped_huge, mapped_small, write_upgrades, prefetched, prefetch_refused, evicted
        uint64_t evicted_demand, discarded, discard_refused, dropped_inactive, left_clean
        uint64_t copied_in, copied_out, zeroed, copy_ns, events, events_dropped, queued, waiting
    struct deepum_uvm:
        uint32_t flags
    int deepum_kmod_open()
    int deepum_kmod_setup(int fd, uint32_t frames, uint32_t events, uint32_t patience_us)
    uint64_t deepum_kmod_ring_bytes(uint32_t events)
    deepum_ring* deepum_kmod_ring(int fd, uint32_t events)
    bint deepum_kmod_next(deepum_ring* ring, uint32_t size, deepum_event* event)
    bint deepum_kmod_pending(deepum_ring* ring)
    uint64_t deepum_kmod_dropped(deepum_ring* ring)
    int deepum_kmod_submit(
        int fd, const deepum_command* commands, uint32_t count, uint32_t flags, uint32_t* done)
    int deepum_kmod_notify(int fd, const deepum_event* event)
    int deepum_kmod_note(int fd, uint32_t type, uint64_t address, uint64_t bytes)
    int deepum_kmod_residency(int fd, uint64_t block, uint32_t count, uint8_t* states)
    int deepum_kmod_stats(int fd, deepum_stats* stats)
    int deepum_kmod_features(int fd, uint64_t* features)
    int deepum_kmod_observe(int fd, const deepum_uvm* layout)
    void* deepum_kmod_reserve(uint64_t size)
    int deepum_kmod_map(int fd, void* start, uint64_t size)
    int deepum_kmod_settle(void* start, uint64_t size, bint keep)
    int munmap(void* start, uint64_t size)
    int usleep(unsigned int microseconds)
    int close(int fd)
    int getpid()
    struct pollfd:
        int fd
        short events, revents
    enum:
        POLLIN
        EAGAIN
        EINTR
    int poll(pollfd* fds, unsigned long count, int milliseconds)
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    ssize_t write(int fd, const void* data, size_t size)

CAUSES = ("map", "zero", "copy", "evict", "late")
"""Why a touch had to be served; the module counts each."""

cdef enum:
    RING = 16384               # events that may wait for the engine
    PATIENCE_US = 50000        # how long a fault without a frame waits for the engine


def probe():
    """Try to open the device; return the module's features, or an errno below zero."""
    cdef uint64_t features = 0
    cdef int error, fd = deepum_kmod_open()
    if fd < 0:
        return fd
    error = deepum_kmod_features(fd, &features)
    close(fd)
    return error if error else features


cdef int must(int error) except -1:
    if error < 0:
        raise OSError(-error, os.strerror(-error))
    return 0


cdef dict read_stats(int fd):
    cdef deepum_stats s
    cdef int error
    with nogil:
        error = deepum_kmod_stats(fd, &s)
    must(error)
    counts = dict(s)
    for name in ("served", "served_ns"):
        counts[name] = dict(zip(CAUSES, counts[name], strict=True))
    return counts


@cython.final
cdef class Kmod:
    """The mapping and the thread that reads its ring.

    Parameters
    ----------
    live : LiveEngine
        Decides; its budget is the number of frames.
    blocks : int
        Addresses to reserve, in blocks.
    patience_us : int
        How long a fault that finds no free frame waits for the engine to name a victim,
        microseconds.

    Raises
    ------
    OSError
        There is no module, or not the memory for the frames.
    MemoryError
        There are not so many addresses.
    """

    cdef LiveEngine live
    cdef int fd, bell, pid
    cdef deepum_ring* ring
    cdef char* space
    cdef uint64_t reserved     # blocks of `space`
    cdef uint64_t first        # number of the mapping's first block
    cdef readonly uint64_t committed
    """Blocks that may be used, from the first one on."""
    cdef uint64_t dropped      # events lost so far
    cdef volatile bint stop, busy
    cdef volatile uint64_t turns  # of the thread that reads the ring

    def __cinit__(
        self, LiveEngine live not None, uint64_t blocks, *, uint32_t patience_us=PATIENCE_US
    ):
        cdef uint32_t frames
        self.fd = self.bell = -1
        self.pid = getpid()
        self.live = live
        self.reserved = blocks
        if live.engine.mem.budget > 1 << 20:
            raise OSError(errno.ENOMEM, "the kernel module has at most 2^20 frames")
        frames = <uint32_t>live.engine.mem.budget
        self.fd = deepum_kmod_open()
        must(self.fd)
        with nogil:
            self.space = <char*>deepum_kmod_reserve(blocks * DEEPUM_BLOCK_SIZE)
        if not self.space:
            raise MemoryError("no addresses left")
        must(deepum_kmod_setup(self.fd, frames, RING, patience_us))
        self.ring = deepum_kmod_ring(self.fd, RING)
        self.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if not self.ring or self.bell < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.first = <uint64_t>self.space >> DEEPUM_BLOCK_SHIFT

    def __dealloc__(self):
        self.give_back()
        # In a child process none of this is mapped, and other things may be.
        if self.space and getpid() == self.pid:
            munmap(self.space, self.reserved * DEEPUM_BLOCK_SIZE)

    cdef void give_back(self) noexcept nogil:
        if self.ring and getpid() == self.pid:
            munmap(self.ring, deepum_kmod_ring_bytes(RING))
        self.ring = NULL
        if self.fd >= 0:
            close(self.fd)
        if self.bell >= 0:
            close(self.bell)
        self.fd = self.bell = -1

    @property
    def address(self):
        """Where the mapping begins."""
        return <uint64_t>self.space

    def commit(self, uint64_t blocks):
        """Make the first `blocks` blocks usable, with a place on the host for each of them.

        The engine must know them before.
        """
        cdef uint64_t start, size
        cdef int error
        if blocks > self.reserved:
            raise ValueError(f"only {self.reserved} blocks are reserved")
        if blocks <= self.committed:
            return
        start = (self.first + self.committed) << DEEPUM_BLOCK_SHIFT
        size = (blocks - self.committed) << DEEPUM_BLOCK_SHIFT
        with nogil:
            error = deepum_kmod_note(self.fd, DEEPUM_EVENT_MANAGE, start, size)
            if error:
                self.take_back(start, size)
            else:
                error = deepum_kmod_map(self.fd, <void*>start, size)
        must(error)
        self.committed = blocks

    cdef void take_back(self, uint64_t start, uint64_t size) noexcept nogil:
        cdef deepum_command c
        cdef uint32_t done
        memset(&c, 0, sizeof(c))
        c.type = DEEPUM_COMMAND_DISCARD
        c.block = start >> DEEPUM_BLOCK_SHIFT
        c.count = <uint32_t>(size >> DEEPUM_BLOCK_SHIFT)
        deepum_kmod_note(self.fd, DEEPUM_EVENT_UNMANAGE, start, size)
        deepum_kmod_submit(self.fd, &c, 1, DEEPUM_SUBMIT_WAIT, &done)

    # -- the engine ---------------------------------------------------------------------------

    cdef int turn(self, const deepum_event* events, Py_ssize_t count) except -1 nogil:
        # Tell the engine what happened and what is new, and hand in its commands.
        cdef deepum_event e
        cdef uint32_t done
        self.live.lock()
        try:
            if not self.ring:          # closed, and a hook that outlived it has come back
                return 0
            if self.live.lost:
                while deepum_kmod_next(self.ring, RING, &e):
                    pass
                return 0
            self.tell(self.live.engine)
            self.notify(self.live.engine, events, count)
            self.live.engine.pump()
            # A fault for which there is no victim, and nothing is on its way that could help.
            if (self.route(self.live.engine) == 0 and self.live.engine.demand_size
                    and not self.live.engine.mem.outgoing and not self.live.engine.mem.incoming):
                deepum_kmod_submit(self.fd, NULL, 0, DEEPUM_SUBMIT_PASS, &done)
        finally:
            self.live.unlock()
        return 0

    cdef int tell(self, Engine engine) except -1 nogil:
        cdef deepum_event e
        while deepum_kmod_next(self.ring, RING, &e):
            # Notices come back too; the engine has had them at once.
            if e.type < DEEPUM_EVENT_FAULT or e.device:
                continue
            if engine.mem.slot_of(<uint32_t>(e.address >> DEEPUM_BLOCK_SHIFT)) != NONE:
                if e.type == DEEPUM_EVENT_ARRIVED and e.flags & DEEPUM_MOVE_REFUSED:
                    self.stays(engine, &e)
                engine.feed_one(&e)
                engine.pump()
                if engine.command_count:
                    self.route(engine)
        if deepum_kmod_dropped(self.ring) != self.dropped:
            self.dropped = deepum_kmod_dropped(self.ring)
            self.compare(engine)
        return 0

    cdef int stays(self, Engine engine, const deepum_event* event) except -1 nogil:
        # A block that the engine believes on its way out is not: for the engine it comes back.
        cdef deepum_event e = event[0]
        cdef uint32_t slot = engine.mem.slot_of(<uint32_t>(e.address >> DEEPUM_BLOCK_SHIFT))
        if engine.mem.at(slot).state == ENGINE_OUTGOING:
            e.type = DEEPUM_EVENT_DEPARTED
            engine.feed_one(&e)
        return 0

    cdef int compare(self, Engine engine) except -1 nogil:
        # Events were lost: bring the engine up to what is there, once all it asked for is done.
        # Older events that are still in the ring end in the same state.
        cdef uint8_t states[256]
        cdef uint64_t i, k, count
        cdef uint32_t slot, done
        cdef bint here
        cdef deepum_event e
        memset(&e, 0, sizeof(e))
        deepum_kmod_submit(self.fd, NULL, 0, DEEPUM_SUBMIT_WAIT, &done)
        for i in range(0, self.committed, 256):
            count = min(<uint64_t>256, self.committed - i)
            if deepum_kmod_residency(self.fd, self.first + i, <uint32_t>count, states):
                return 0
            for k in range(count):
                slot = engine.mem.slot_of(<uint32_t>(self.first + i + k))
                if slot == NONE:
                    continue
                here = (states[k] & DEEPUM_STATE_MASK) in (
                    DEEPUM_STATE_RESIDENT, DEEPUM_STATE_OUTGOING)
                if engine.mem.at(slot).state == (ENGINE_RESIDENT if here else ENGINE_ABSENT):
                    continue
                e.address = (self.first + i + k) << DEEPUM_BLOCK_SHIFT
                if here:
                    self.stays(engine, &e)
                e.type = DEEPUM_EVENT_ARRIVED if here else DEEPUM_EVENT_DEPARTED
                engine.feed_one(&e)
        return 0

    cdef int notify(
        self, Engine engine, const deepum_event* events, Py_ssize_t count
    ) except -1 nogil:
        # The module hears first what makes memory active, so that no discard takes it away.
        cdef deepum_event e
        cdef Py_ssize_t k
        for k in range(count):
            e = events[k]
            if e.type == DEEPUM_EVENT_ALLOC:
                deepum_kmod_note(self.fd, DEEPUM_EVENT_ALLOC, e.address, e.bytes)
            engine.feed_one(&events[k])
            if e.type == DEEPUM_EVENT_LAUNCH or e.type == DEEPUM_EVENT_COMPLETE:
                e.address = e.bytes = e.id = e.time_ns = 0
                deepum_kmod_notify(self.fd, &e)
        return 0

    cdef int route(self, Engine engine) except -1 nogil:
        # Returns how many commands were handed in.
        cdef deepum_command* c
        cdef uint32_t k, kept = 0
        for k in range(engine.command_count):
            c = &engine.commands[k]
            # What somebody waits for the module brings on its own.
            if c.type == DEEPUM_COMMAND_PREFETCH and c.flags & DEEPUM_COMMAND_DEMAND:
                continue
            if c.type == DEEPUM_COMMAND_DISCARD:
                deepum_kmod_note(
                    self.fd, DEEPUM_EVENT_FREE, c.block << DEEPUM_BLOCK_SHIFT,
                    <uint64_t>c.count << DEEPUM_BLOCK_SHIFT)
            c.seq = 0
            engine.commands[kept] = c[0]
            kept += 1
        engine.command_count = 0
        self.submit(engine.commands, kept)
        return <int>kept

    cdef int submit(self, deepum_command* commands, uint32_t count) except -1 nogil:
        cdef uint32_t done, chunk
        cdef int error
        while count:
            chunk = min(count, DEEPUM_MAX_BATCH)
            error = deepum_kmod_submit(self.fd, commands, chunk, 0, &done)
            commands += done
            count -= done
            if error == -EAGAIN:
                usleep(100)            # its queue is full: it is working on it
            elif error and error != -EINTR:
                with gil:
                    must(error)
        return 0

    def feed(self, events):
        """Tell engine and module of events, an array of `EVENT_DTYPE`, and hand in commands.

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
            self.turn(e, count)

    def poke(self):
        """Hand in the commands that are due."""
        with nogil:
            self.turn(NULL, 0)

    def forget(self, blocks):
        """Forget the contents of absent blocks, by number, that nothing lives in."""
        cdef deepum_command c
        cdef uint64_t block
        memset(&c, 0, sizeof(c))
        c.type = DEEPUM_COMMAND_DISCARD
        c.count = 1
        for block in blocks:
            c.block = block
            with nogil:
                deepum_kmod_note(
                    self.fd, DEEPUM_EVENT_FREE, block << DEEPUM_BLOCK_SHIFT, DEEPUM_BLOCK_SIZE)
                self.submit(&c, 1)

    # -- the thread ---------------------------------------------------------------------------

    def watch(self):
        """Read the ring until told to stop: the body of the thread.

        Raises
        ------
        Exception
            The engine failed. Called again after `LiveEngine.give_up`, it goes on without.
        """
        with nogil:
            self.serve()

    cdef int serve(self) except -1 nogil:
        cdef pollfd fds[2]
        fds[0].fd = self.fd
        fds[1].fd = self.bell
        fds[0].events = fds[1].events = POLLIN
        while not self.stop:
            self.busy = False
            if not deepum_kmod_pending(self.ring):
                poll(fds, 2, -1)
            self.busy = True
            self.turns += 1
            self.turn(NULL, 0)
        return 0

    def stop_watching(self):
        """Let the thread end."""
        cdef uint64_t one = 1
        self.stop = True
        write(self.bell, &one, sizeof(one))

    # -- from outside -------------------------------------------------------------------------

    cdef bint idle(self) noexcept nogil:
        # A turn between the looks may have answered the last event with commands.
        cdef deepum_stats s
        cdef uint64_t turns = self.turns
        if not self.ring:
            return True
        if deepum_kmod_pending(self.ring) or self.busy:
            return False
        return (not deepum_kmod_stats(self.fd, &s) and not s.queued and not s.waiting
                and not deepum_kmod_pending(self.ring) and not self.busy
                and turns == self.turns)

    def settle(self, double seconds=30.0):
        """Wait until nothing is due any more; returns whether that came in time."""
        cdef bint done
        end = time.monotonic() + seconds
        while True:
            with nogil:
                done = self.idle()
                if not done:
                    usleep(100)
            if done or time.monotonic() > end:
                return done

    def present(self):
        """Return the numbers of the blocks that have a frame now, ascending."""
        states = np.zeros(self.committed, np.uint8)
        cdef uint8_t[::1] view = states
        if self.committed:
            must(deepum_kmod_residency(
                self.fd, self.first, <uint32_t>self.committed, &view[0]))
        where = states & DEEPUM_STATE_MASK
        here = (where == DEEPUM_STATE_RESIDENT) | (where == DEEPUM_STATE_OUTGOING)
        return (np.flatnonzero(here) + self.first).tolist()

    @property
    def module_stats(self):
        """What the module counts, a dict; ``served`` and ``served_ns`` by cause."""
        return read_stats(self.fd)

    def release(self, ranges):
        """Make the mapping ordinary memory: (address, bytes) ranges keep their contents.

        Each block's place on the host is given back once it has been copied: no more memory is
        needed than before, but for one block. The thread must have ended, and nobody may write
        to the ranges meanwhile.
        """
        cdef uint64_t address, size, block, i
        cdef uint8_t* kept = <uint8_t*>malloc(self.committed + 1)
        cdef int error = 0
        if not kept:
            raise MemoryError()
        memset(kept, 0, self.committed + 1)
        try:
            for address, size in ranges:
                if size:
                    for block in range(
                        (address >> DEEPUM_BLOCK_SHIFT) - self.first,
                        ((address + size - 1) >> DEEPUM_BLOCK_SHIFT) - self.first + 1,
                    ):
                        kept[block] = 1
            with nogil:
                for i in range(self.committed):
                    if kept[i]:
                        self.bring(self.first + i)
                    error = deepum_kmod_settle(
                        self.space + i * DEEPUM_BLOCK_SIZE, DEEPUM_BLOCK_SIZE, kept[i])
                    if error:
                        break
                    self.take_back((self.first + i) << DEEPUM_BLOCK_SHIFT, DEEPUM_BLOCK_SIZE)
        finally:
            free(kept)
        must(error)
        with nogil:
            self.live.lock()
            self.give_back()
            self.live.unlock()

    cdef void bring(self, uint64_t block) noexcept nogil:
        # Without waiting for a thread that is no more to name a victim.
        cdef deepum_command c
        cdef uint32_t done
        memset(&c, 0, sizeof(c))
        c.type = DEEPUM_COMMAND_PREFETCH
        c.flags = DEEPUM_COMMAND_DEMAND
        c.block = block
        c.count = 1
        deepum_kmod_submit(self.fd, &c, 1, DEEPUM_SUBMIT_WAIT, &done)

    def leave(self):
        """In a child process: let go of what belongs to the parent."""
        self.give_back()


@cython.final
cdef class Sensor:
    """What happens in NVIDIA's driver, read from the module's ring.

    Parameters
    ----------
    layout : bytes
        ``struct deepum_uvm``; see `deepum.backends.btf.uvm_layout`.
    events : int
        Events that may wait to be read, a power of two.

    Raises
    ------
    OSError
        There is no module, or observing is not permitted.
    """

    cdef int fd
    cdef uint32_t size
    cdef deepum_ring* ring

    def __cinit__(self, bytes layout not None, *, uint32_t events=65536):
        self.fd = -1
        if len(layout) != sizeof(deepum_uvm):
            raise ValueError(f"a layout has {sizeof(deepum_uvm)} bytes, not {len(layout)}")
        self.size = events
        self.fd = deepum_kmod_open()
        must(self.fd)
        must(deepum_kmod_setup(self.fd, 4, events, 0))
        self.ring = deepum_kmod_ring(self.fd, events)
        if not self.ring:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        must(deepum_kmod_observe(self.fd, <const deepum_uvm*><const unsigned char*>layout))

    def __dealloc__(self):
        if self.ring:
            munmap(self.ring, deepum_kmod_ring_bytes(self.size))
        if self.fd >= 0:
            close(self.fd)

    def fileno(self):
        """Return the descriptor to poll: it is readable while there are events."""
        return self.fd

    def read(self, uint32_t most=4096):
        """Return the events that wait, `most` of them at most, an array of `EVENT_DTYPE`."""
        events = np.zeros(most, _engine.EVENT_DTYPE)
        cdef unsigned char[::1] view
        cdef uint32_t count = 0
        cdef deepum_event* e
        if most:
            view = events.view(np.uint8)
            e = <deepum_event*>&view[0]
            with nogil:
                while count < most and deepum_kmod_next(self.ring, self.size, &e[count]):
                    count += 1
        return events[:count]

    @property
    def dropped(self):
        """Events lost because nobody read."""
        return deepum_kmod_dropped(self.ring)

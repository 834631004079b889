# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The engine of a running program: one lock around it, held briefly.

Whoever waits for the lock does so without the GIL. Nothing that serves a page fault waits for
either: the thread that faulted may hold both.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.engine cimport Counters, Engine, NativePolicy
from deepum._core.exec_table cimport NONE
from deepum._core.residency cimport ABSENT, AHEAD, CONTENT, RESIDENT, Block
from deepum._core.threads cimport (
    deepum_lock_within, deepum_recursive_init, pthread_mutex_destroy, pthread_mutex_lock,
    pthread_mutex_unlock,
)

from contextlib import contextmanager

import numpy as np


@cython.final
cdef class LiveEngine:
    """An engine that several threads use.

    Parameters
    ----------
    engine : Engine
        It must follow what its backend does on its own.
    """

    def __cinit__(self, Engine engine not None):
        if not engine.follows:
            raise ValueError("a live engine follows its backend: Engine(..., follows=True)")
        self.engine = engine
        # Recursive: a finalizer may run, and ask, while this thread has the lock.
        deepum_recursive_init(&self.mutex)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.mutex)

    cdef void lock(self) noexcept nogil:
        pthread_mutex_lock(&self.mutex)

    cdef bint lock_within(self, long milliseconds) noexcept nogil:
        return deepum_lock_within(&self.mutex, milliseconds)

    cdef void unlock(self) noexcept nogil:
        pthread_mutex_unlock(&self.mutex)

    @contextmanager
    def held(self):
        """Keep everybody else from the engine for a while."""
        with nogil:
            self.lock()
        try:
            yield self.engine
        finally:
            self.unlock()

    def give_up(self):
        """Ask the engine no more: it failed."""
        self.lost = True

    @property
    def failed(self):
        """Whether the engine failed and is not asked any more."""
        return self.lost

    def set_policy(self, NativePolicy policy not None):
        """Let another policy advise from now on."""
        with self.held():
            self.engine.set_policy(policy)

    def want(self, uint64_t block, uint64_t count):
        """Ask for `count` neighbouring blocks; returns how many were accepted."""
        cdef uint64_t i
        cdef uint32_t accepted = 0
        with nogil:
            self.lock()
            for i in range(count):
                if block >= NONE or i >= NONE - block:
                    self.engine.n.refused += 1
                elif self.engine.want(<uint32_t>(block + i), 0):
                    accepted += 1
            self.unlock()
        return accepted

    def evict(self, uint64_t block, uint64_t count):
        """Free the frames of `count` neighbouring blocks; returns how many were accepted."""
        cdef uint64_t i
        cdef uint32_t slot, accepted = 0
        with nogil:
            self.lock()
            try:
                for i in range(count):
                    slot = NONE
                    if block < NONE and i < NONE - block:
                        slot = self.engine.mem.slot_of(<uint32_t>(block + i))
                    if slot != NONE and self.engine.may_evict(slot):
                        self.engine.evict(slot, False)
                        accepted += 1
                    else:
                        self.engine.n.refused += 1
            finally:
                self.unlock()
        return accepted

    def hold_prefetches(self):
        """Let no prefetch begin before the evictions under way have ended."""
        with nogil:
            self.lock()
            self.engine.fenced = self.engine.mem.outgoing > 0
            self.unlock()

    def touched(self, ranges):
        """Note that memory was used: an array of (address, bytes) rows.

        A resident block in it that was prefetched has served its purpose.
        """
        cdef const uint64_t[:, ::1] rows = np.ascontiguousarray(ranges, np.uint64)
        cdef Py_ssize_t i
        cdef uint64_t block
        cdef uint32_t slot
        cdef Block* b
        with nogil:
            self.lock()
            for i in range(rows.shape[0]):
                if rows[i, 1] == 0:
                    continue
                for block in range(rows[i, 0] >> 21, ((rows[i, 0] + rows[i, 1] - 1) >> 21) + 1):
                    slot = self.engine.mem.slot_of(<uint32_t>block)
                    if slot == NONE:
                        continue
                    b = self.engine.mem.at(slot)
                    if b.state == RESIDENT and b.flags & AHEAD:
                        b.flags &= ~AHEAD
                        self.engine.n.prefetch_used += 1
            self.unlock()

    def emptied(self, ranges):
        """Return the blocks of freed (address, bytes) rows that hold nothing any more."""
        cdef const uint64_t[:, ::1] rows = np.ascontiguousarray(ranges, np.uint64)
        cdef uint64_t block
        cdef uint32_t slot
        cdef Block* b
        cdef Py_ssize_t i
        found = []
        with self.held():
            for i in range(rows.shape[0]):
                if rows[i, 1] == 0:
                    continue
                for block in range(rows[i, 0] >> 21, ((rows[i, 0] + rows[i, 1] - 1) >> 21) + 1):
                    slot = self.engine.mem.slot_of(<uint32_t>block)
                    if slot == NONE:
                        continue
                    b = self.engine.mem.at(slot)
                    if b.state == ABSENT and b.active == 0 and not b.flags & CONTENT:
                        found.append(block)
        return found

    @property
    def stats(self):
        """The engine's counts and sizes now, a dict."""
        cdef Counters n
        cdef uint64_t resident, tables
        with nogil:
            self.lock()
            n = self.engine.n
            resident = self.engine.mem.migrated.size + self.engine.mem.dead.size
            tables = self.engine.bytes_of_tables()
            self.unlock()
        counts = dict(n)
        counts["resident_blocks"] = resident
        counts["budget_blocks"] = self.engine.mem.budget
        counts["table_bytes"] = tables
        return counts

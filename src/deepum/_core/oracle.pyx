# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The oracle: knows the trace. Prefetches in order of need, evicts what is needed last (Belady).

It can run in the simulator only, and shows what any policy could at best reach there.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport NOBODY, Engine, NativePolicy
from deepum._core.exec_table cimport NONE
from deepum._core.furthest cimport Furthest, Use
from deepum._core.residency cimport CONTENT, INCOMING, RESIDENT, Block
from deepum._core.simulator cimport Simulator

import numpy as np

cdef uint64_t NEVER = 0xFFFFFFFFFFFFFFFF

cdef enum:
    SOON = 32                  # launches from now


@cython.final
cdef class OraclePolicy(NativePolicy):
    def __cinit__(self, uint64_t horizon=1024):
        self.horizon = horizon
        self.name = "oracle"
        self.pre_evicts = True
        self.invalidates = True
        self.kernels = np.empty(0, np.uint64)
        self.due = Furthest()

    def foresee(self, Simulator simulator not None, kernels):
        """Learn the future: the kernel rows that will be launched from now on, in order."""
        cdef Engine engine = simulator.engine
        cdef Py_ssize_t slots = engine.mem.leaf_count << 10
        cdef Py_ssize_t i, t
        cdef uint64_t kernel
        self.kernels = np.ascontiguousarray(kernels, dtype=np.uint64)
        self.touch_start = simulator.touch_start
        self.touch_slot = simulator.touch_slot
        self.base = engine.launched
        self.length = self.kernels.shape[0]
        start = np.zeros(slots + 1, np.int64)
        cdef int64_t[::1] start_v = start
        for i in range(self.kernels.shape[0]):
            kernel = self.kernels[i]
            for t in range(self.touch_start[kernel], self.touch_start[kernel + 1]):
                start_v[self.touch_slot[t] + 1] += 1
        start = np.cumsum(start, dtype=np.int64)
        uses = np.empty(int(start[slots]), np.uint64)
        fill = start[:slots].copy()
        cdef int64_t[::1] fill_v = fill
        cdef uint64_t[::1] uses_v = uses
        for i in range(self.kernels.shape[0]):
            kernel = self.kernels[i]
            for t in range(self.touch_start[kernel], self.touch_start[kernel + 1]):
                uses_v[fill_v[self.touch_slot[t]]] = self.base + i + 1
                fill_v[self.touch_slot[t]] += 1
        self.use_start = start
        self.uses = uses
        self.use_next = start[:slots].copy()
        self.known = slots
        self.ahead_launch = self.base + 1
        self.ahead_touch = 0
        self.due.size = 0
        for i in range(slots):
            if engine.mem.at(<uint32_t>i).state == RESIDENT:
                self.due.push(self.next_use(<uint32_t>i, self.base), <uint32_t>i)

    cdef uint64_t next_use(self, uint32_t slot, uint64_t after) noexcept nogil:
        # First launch later than `after` that touches the slot; `after` never goes back.
        cdef int64_t k, end
        if slot >= self.known:
            return NEVER           # it came after the future was told, or nothing was
        k = self.use_next[slot]
        end = self.use_start[slot + 1]
        while k < end and self.uses[k] <= after:
            k += 1
        self.use_next[slot] = k
        return self.uses[k] if k < end else NEVER

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        # The launch's own blocks stay until it completes.
        cdef uint64_t row
        cdef int64_t t
        if seq - self.base > self.length:
            return 0
        row = self.kernels[seq - self.base - 1]
        for t in range(self.touch_start[row], self.touch_start[row + 1]):
            engine.pin(engine.mem.at(self.touch_slot[t]), seq)
        if self.ahead_launch < seq:
            self.ahead_launch = seq
            self.ahead_touch = 0
        return 0

    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil:
        # Now each of them is filed under its next use.
        cdef uint64_t row
        cdef int64_t t
        cdef uint32_t slot
        if seq - self.base > self.length:
            return 0
        row = self.kernels[seq - self.base - 1]
        for t in range(self.touch_start[row], self.touch_start[row + 1]):
            slot = self.touch_slot[t]
            self.due.push(self.next_use(slot, seq), slot)
        return 0

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        # The plan did not hold (a gather's order is random even to the oracle): look again.
        self.ahead_launch = engine.completed + 1
        self.ahead_touch = 0
        return 0

    cdef int64_t furthest(self, Engine engine, uint64_t beyond) except? -2 nogil:
        # The resident block with the furthest next use, if that lies beyond a launch. An entry
        # counts only while it is true: a block used or moved since has been filed again.
        cdef Use top
        cdef Use moving[64]
        cdef uint32_t kept = 0
        cdef int64_t chosen = NOBODY
        cdef Block* b
        while self.due.size and kept < 64:
            top = self.due.heap[0]
            b = engine.mem.at(top.slot)
            if (b.pinned > engine.completed
                    or top.launch != self.next_use(top.slot, engine.completed)
                    or b.state != RESIDENT and b.state != INCOMING):
                self.due.pop()
            elif top.launch <= beyond:
                break
            elif b.state == INCOMING:
                moving[kept] = top         # cannot go yet: set aside and filed again below
                kept += 1
                self.due.pop()
            else:
                chosen = top.slot
                break
        while kept:
            kept -= 1
            self.due.push(moving[kept].launch, moving[kept].slot)
        return chosen

    cdef int64_t victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2 nogil:
        # Contents that are dead cost nothing to give up; else the furthest next use goes.
        cdef uint32_t slot = engine.mem.dead.head
        cdef uint32_t looked = 0
        cdef int64_t chosen
        cdef uint64_t beyond = 0 if demand else self.ahead_launch
        while slot != NONE and looked < 64:
            if (engine.mem.at(slot).pinned <= engine.completed
                    and self.next_use(slot, engine.completed) > beyond):
                return slot
            slot = engine.mem.at(slot).after
            looked += 1
        chosen = self.furthest(engine, beyond)
        if chosen >= 0 and demand and self.next_use(<uint32_t>chosen, engine.completed) \
                <= self.ahead_launch:
            self.ahead_launch = self.next_use(<uint32_t>chosen, engine.completed)
            self.ahead_touch = 0
        return chosen

    cdef int reclaim(self, Engine engine) except -1 nogil:
        # The frame of dead contents is free at once, that of an eviction when it has left: it
        # goes first, though evictions on their way promise frames enough.
        cdef uint32_t slot = engine.mem.dead.head, after, looked = 0
        while (slot != NONE and looked < 64
               and engine.mem.frames_free() <= <int64_t>engine.queue_size):
            after = engine.mem.at(slot).after
            if (engine.may_evict(slot)
                    and self.next_use(slot, engine.completed) > self.ahead_launch):
                engine.evict(slot, False)
            slot = after
            looked += 1
        return 0

    cdef int advance(self, Engine engine) except -1 nogil:
        cdef uint64_t row
        cdef int64_t t
        cdef uint32_t slot
        cdef Block* b
        self.reclaim(engine)
        while (engine.room() and self.ahead_launch - self.base <= self.length
               and self.ahead_launch <= engine.completed + 1 + self.horizon):
            row = self.kernels[self.ahead_launch - self.base - 1]
            t = self.touch_start[row] + <int64_t>self.ahead_touch
            if t >= self.touch_start[row + 1]:
                self.ahead_launch += 1
                self.ahead_touch = 0
                continue
            slot = self.touch_slot[t]
            b = engine.mem.at(slot)
            if b.state != RESIDENT and b.state != INCOMING:
                # Bring it only if a frame is free or held by something needed later.
                # An empty frame costs no transfer: it is worth one only when needed soon.
                if (engine.mem.frames_free() + <int64_t>engine.mem.outgoing
                        <= <int64_t>engine.queue_size
                        and (not b.flags & CONTENT
                             and self.ahead_launch > engine.completed + SOON
                             or self.victim(engine, 1, False) < 0)):
                    return 0
                engine.want(engine.mem.block_of(slot), self.ahead_launch)
                self.due.push(self.ahead_launch, slot)
            self.ahead_touch += 1
        return 0

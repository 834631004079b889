# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The least that must move: Belady's eviction with perfect knowledge of the trace.

A block's contents are worth keeping only if a later touch reads them: what dies before its next
touch leaves at no cost, and so does what has not been written since it was last on the host.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from deepum._core.lowering cimport TOUCH_RANDOM, TOUCH_WRITE, Program

import numpy as np

cdef int64_t NEVER = (<int64_t>1 << 62)


cdef struct Key:
    int64_t use
    uint32_t slot


cdef class _Heap:
    # Slots by next use, furthest first.
    cdef Key* keys
    cdef Py_ssize_t size, capacity

    def __dealloc__(self):
        free(self.keys)

    cdef int push(self, int64_t use, uint32_t slot) except -1 nogil:
        cdef Py_ssize_t i
        cdef void* memory
        if self.size == self.capacity:
            self.capacity = self.capacity * 2 if self.capacity else 1024
            memory = realloc(self.keys, self.capacity * sizeof(Key))
            if not memory:
                with gil:
                    raise MemoryError()
            self.keys = <Key*>memory
        i = self.size
        self.size += 1
        while i and self.keys[(i - 1) >> 1].use < use:
            self.keys[i] = self.keys[(i - 1) >> 1]
            i = (i - 1) >> 1
        self.keys[i].use = use
        self.keys[i].slot = slot
        return 0

    cdef Key pop(self) noexcept nogil:
        cdef Key top = self.keys[0], last
        cdef Py_ssize_t i = 0, child
        self.size -= 1
        last = self.keys[self.size]
        while True:
            child = 2 * i + 1
            if child >= self.size:
                break
            if child + 1 < self.size and self.keys[child + 1].use > self.keys[child].use:
                child += 1
            if self.keys[child].use <= last.use:
                break
            self.keys[i] = self.keys[child]
            i = child
        self.keys[i] = last
        return top


def least_traffic(Program program not None, dict columns, steps, uint64_t budget):
    """Return the blocks that must come in and go out in each iteration.

    Parameters
    ----------
    program : Program
    columns : dict of numpy.ndarray
        `Trace.columns()`.
    steps : sequence of int
        Step index of each iteration; the last one is looked ahead into and not reported.
    budget : int
        Frames.

    Returns
    -------
    (int64 array, int64 array)
        Blocks in and out, one entry an iteration.
    """
    # A gather leaves out other blocks in each launch, and of the rest a fault brings some pages
    # only. Who reads such a block next finds it there, so none of its touches counts as sure.
    unsure = np.repeat(program.gather_share < 1.0, program.working_set)
    unsure |= program.touch_moved < 512
    unsure &= (program.touch_flags & TOUCH_RANDOM) != 0
    sure = ~np.isin(program.touch_block, program.touch_block[unsure])
    cdef const int64_t[::1] touch_start = np.append(0, np.cumsum(sure))[program.touch_start]
    cdef const uint32_t[::1] touch_block = program.touch_block[sure]
    cdef const uint8_t[::1] touch_flags = program.touch_flags[sure]
    cdef const uint8_t[::1] op = columns["event_op"]
    cdef const uint64_t[::1] arg = columns["event_arg"]
    cdef const uint32_t[::1] step_start = columns["step_start"]
    cdef const uint64_t[::1] address = columns["tensor_address"]
    cdef const uint64_t[::1] size = columns["tensor_block_bytes"]
    cdef const uint32_t[::1] initial = columns["initial"]
    cdef Py_ssize_t i, e, t, total = 0
    cdef int64_t n
    cdef uint64_t k, base, start, end, stop
    cdef uint32_t slot
    cdef Key top
    for i in steps:
        for e in range(step_start[i], step_start[i + 1]):
            if op[e] == 0:
                total += touch_start[arg[e] + 1] - touch_start[arg[e]]
    low = int(columns["segment_address"].min()) >> 21
    high = int((columns["segment_address"] + columns["segment_bytes"]).max()) >> 21
    base = low
    cdef int64_t[::1] active = np.zeros(high - low + 1, np.int64)
    cdef uint8_t[::1] content = np.zeros(high - low + 1, np.uint8)
    # Whether a touch reads nothing that was there before, then the next touch worth keeping for.
    cdef uint8_t[::1] fresh = np.zeros(total, np.uint8)
    cdef int64_t[::1] keep = np.empty(total, np.int64)
    cdef int64_t[::1] last = np.full(high - low + 1, -1, np.int64)
    for i in range(initial.shape[0]):
        k = initial[i]
        start = address[k]
        end = start + size[k]
        while start < end:
            stop = min(end, ((start >> 21) + 1) << 21)
            active[(start >> 21) - base] += stop - start
            content[(start >> 21) - base] = 1
            start = stop
    n = 0
    for i in steps:
        for e in range(step_start[i], step_start[i + 1]):
            k = arg[e]
            if op[e] == 0:
                for t in range(touch_start[k], touch_start[k + 1]):
                    slot = <uint32_t>(touch_block[t] - base)
                    if not content[slot]:
                        fresh[n] = 1
                        content[slot] = 1
                    if last[slot] >= 0:
                        keep[last[slot]] = NEVER if fresh[n] else n
                    last[slot] = n
                    keep[n] = NEVER
                    n += 1
            elif op[e] <= 2:
                start = address[k]
                end = start + size[k]
                while start < end:
                    stop = min(end, ((start >> 21) + 1) << 21)
                    slot = <uint32_t>((start >> 21) - base)
                    active[slot] += <int64_t>(stop - start) * (1 if op[e] == 1 else -1)
                    if active[slot] == 0:
                        content[slot] = 0
                    start = stop
    # Belady's eviction, touch by touch.
    cdef uint8_t[::1] here = np.zeros(high - low + 1, np.uint8)
    cdef uint8_t[::1] dirty = np.zeros(high - low + 1, np.uint8)
    cdef int64_t[::1] want = np.full(high - low + 1, -1, np.int64)
    cdef uint64_t used = 0
    cdef _Heap heap = _Heap()
    count = len(steps) - 1
    moved_in = np.zeros(count + 1, np.int64)
    moved_out = np.zeros(count + 1, np.int64)
    cdef int64_t[::1] in_v = moved_in
    cdef int64_t[::1] out_v = moved_out
    cdef Py_ssize_t iteration = 0
    n = 0
    for i in steps:
        for e in range(step_start[i], step_start[i + 1]):
            if op[e] != 0:
                continue
            k = arg[e]
            for t in range(touch_start[k], touch_start[k + 1]):
                slot = <uint32_t>(touch_block[t] - base)
                if not here[slot]:
                    while used >= budget:
                        top = heap.pop()
                        if not here[top.slot] or want[top.slot] != top.use:
                            continue
                        here[top.slot] = 0
                        used -= 1
                        if top.use != NEVER and dirty[top.slot]:
                            out_v[iteration] += 1
                    here[slot] = 1
                    used += 1
                    dirty[slot] = 0
                    if not fresh[n]:
                        in_v[iteration] += 1
                if touch_flags[t] & TOUCH_WRITE:
                    dirty[slot] = 1
                want[slot] = keep[n]
                heap.push(keep[n], slot)
                n += 1
        iteration += 1
    return moved_in[:count], moved_out[:count]

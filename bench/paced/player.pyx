# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False
"""Plays a trace to a feed as a program and a device would: one thread launches, one computes."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from deepum._core.cuda_vmm cimport VmmMemory
from deepum._core.feed cimport (
    Feed, deepum_load, deepum_now, deepum_sleep, deepum_store, deepum_store32, deepum_wake_sharply,
)

cdef enum:
    KERNEL = 0
    ALLOC = 1
    FREE = 2
    TIMES = 1 << 16            # more than launches that can be submitted and not finished
    OPERANDS = 4096


cdef class Player:
    """One program on one stream; all times are stretched by `scale`."""

    cdef Feed feed
    cdef VmmMemory memory
    cdef double scale
    cdef uint64_t times[TIMES]
    cdef uint64_t submitted, finished
    cdef uint32_t stream

    def __init__(self, Feed feed not None, VmmMemory memory not None, double scale):
        self.feed = feed
        self.memory = memory
        self.scale = scale

    def segment(self, uint64_t size):
        """Make a segment; returns its address."""
        self.memory.make_host_room(size >> 21)
        return <uint64_t>self.memory.new_segment(size >> 21)

    def compute(self):
        """Run launches in order, each once its gate is open, as long as the process lives."""
        cdef uint64_t seq = 0, free_at = 0, now
        deepum_wake_sharply()
        with nogil:
            while True:
                if (seq == deepum_load(&self.submitted)
                        or deepum_load(&self.feed.opened) < seq + 1):
                    deepum_sleep(3000)
                    continue
                free_at = max(free_at, deepum_now())
                seq += 1
                free_at += self.times[seq % TIMES]
                while True:
                    now = deepum_now()
                    if now >= free_at:
                        break
                    if free_at - now > 60000:      # the rest is spun
                        deepum_sleep(free_at - now - 55000)
                deepum_store32(&self.feed.done[self.stream], <uint32_t>seq)
                deepum_store(&self.finished, seq)

    def play(
        self, const uint8_t[::1] ops, const uint64_t[::1] args, const uint64_t[::1] addresses,
        const uint64_t[::1] sizes, const uint32_t[::1] names, const uint64_t[::1] times,
        const uint32_t[::1] starts, const uint32_t[::1] tensors, const uint64_t[::1] offsets,
        uint64_t host_ns, uint64_t ahead
    ):
        """Submit what the events say, at most `ahead` launches before their gates open.

        `addresses` and `sizes` are of the tensors; `names`, `times` (ns) and `starts` of the
        kernels, whose operands are `tensors` and `offsets`. Returns the last launch's number.
        """
        cdef uint64_t pointers[OPERANDS]
        cdef uint64_t i, seq = 0, next_at = 0
        cdef uint32_t kernel, operand, count, stream = 0
        with nogil:
            for i in range(<uint64_t>ops.shape[0]):
                if ops[i] == ALLOC:
                    self.feed.activate(addresses[args[i]], sizes[args[i]])
                elif ops[i] == FREE:
                    self.feed.deactivate(addresses[args[i]])
                if ops[i] != KERNEL:
                    continue
                kernel = <uint32_t>args[i]
                count = 0
                for operand in range(starts[kernel], min(starts[kernel + 1],
                                                         starts[kernel] + <uint32_t>OPERANDS)):
                    pointers[count] = addresses[tensors[operand]] + offsets[operand]
                    count += 1
                seq = 0
                while seq == 0:        # the feed is full
                    seq = self.feed.launch(
                        0, (<uint64_t>names[kernel] + 1) * <uint64_t>0x9E3779B97F4A7C15,
                        <uint64_t>kernel << 32, pointers, count, &stream)
                    if seq == 0:
                        deepum_sleep(100000)
                self.stream = stream
                self.times[seq % TIMES] = <uint64_t>(times[kernel] * self.scale)
                deepum_store(&self.submitted, seq)
                self.feed.submit(stream, seq, True)
                while seq > ahead and deepum_load(&self.feed.opened) < seq - ahead:
                    deepum_sleep(20000)
                next_at = max(next_at, deepum_now()) + <uint64_t>(host_ns * self.scale)
                while deepum_now() + 55000 < next_at:
                    deepum_sleep(20000)
        return seq

    def wait(self, uint64_t seq):
        """Wait until a launch has finished."""
        with nogil:
            while deepum_load(&self.finished) < seq:
                deepum_sleep(50000)

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Where a program's steps end, and how long they take.

The program may say where: `deepum.Session.step`, or a hook that PyTorch's optimizers call. Until
it does, its launches tell: a step is the longest way from a kernel's launch to its next one, as
next-use prediction takes it. Kernels are told apart by name and launch shape, not by addresses,
which take a few steps to repeat. A layer looks like a step until a longer way shows that it is
none: the count begins anew then, and once the program says where its steps end.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.feed cimport deepum_load, deepum_store

cdef enum:
    SETTLED = 256          # laps in a row after which a longer one is no step, such as evaluation
    AWAY = 64              # laps without the kernel that begins a step: it does so no more


@cython.final
cdef class Steps:
    """Follows a program's steps; used by one thread, read by any."""

    cdef bint launch(self, uint64_t kernel, uint64_t seq, uint64_t now) noexcept nogil:
        # A launch. True if a step ended with the launch before it.
        cdef uint32_t place
        cdef uint64_t way
        if not self.first:
            self.first = now
        if self.told:
            return False
        place = <uint32_t>((kernel * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (KERNELS - 1)
        while self.seen[place].seq and self.seen[place].kernel != kernel:
            place = (place + 1) & (KERNELS - 1)
        if not self.seen[place].seq:
            if self.known * 2 < KERNELS:
                self.known += 1
                self.seen[place].kernel = kernel
                self.seen[place].seq = seq
            return False
        way = seq - self.seen[place].seq
        self.seen[place].seq = seq
        if kernel == self.anchor:
            if way * 4 < self.lap * 3:
                return False       # it comes twice in a step
            if way * 3 <= self.lap * 4:
                self.agreed += 1
                self.lap = way
                self.longer = 0
            else:                  # once is an interruption, twice a longer step
                self.longer += 1
                if self.longer > 1:
                    self.agreed = 0
                    self.lap = way
        elif way * 3 > self.lap * 4 and (
                self.agreed < SETTLED or seq - self.passed > AWAY * self.lap):
            self.anchor = kernel   # a longer way round: what seemed a step was none
            self.lap = way
            self.agreed = self.longer = 0
            self.start_over(0)
        else:
            return False
        self.passed = seq
        return self.end(seq - 1)

    cdef bint mark(self, uint64_t seq) noexcept nogil:
        # The program says that a step ends with this launch.
        if not self.told:
            self.told = True
            self.start_over(self.first)
        return self.end(seq)

    cdef void start_over(self, uint64_t began) noexcept nogil:
        self.head = self.tail
        self.began = began
        self.sort += 1
        deepum_store(&self.ended, 0)

    cdef bint end(self, uint64_t seq) noexcept nogil:
        if seq == 0 or self.tail - self.head == PENDING or (
                self.head != self.tail and self.pending[(self.tail - 1) % PENDING] == seq):
            return False           # an empty step is none
        self.pending[self.tail % PENDING] = seq
        self.tail += 1
        return True

    cdef void complete(self, uint64_t seq, uint64_t now) noexcept nogil:
        # Launches up to this one have finished. Steps that are seen to end at once share the time.
        cdef uint64_t ends = self.head, each
        while ends != self.tail and self.pending[ends % PENDING] <= seq:
            ends += 1
        if ends == self.head:
            return
        if not self.began:
            self.began = now       # the end of what was no step
            self.head += 1
        each = (now - self.began) // max(<uint64_t>1, ends - self.head)
        while self.head != ends:
            self.head += 1
            deepum_store(&self.times[self.ended % KEPT], each)
            deepum_store(&self.ended, self.ended + 1)
        self.began = now

    @property
    def count(self):
        """Steps that have ended."""
        return deepum_load(&self.ended)

    @property
    def seconds(self):
        """How long the latest steps took, a list, oldest first: at most 64 of them."""
        cdef uint64_t i, ended = deepum_load(&self.ended)
        return [deepum_load(&self.times[i % KEPT]) * 1e-9
                for i in range(ended - min(ended, <uint64_t>KEPT), ended)]

    # -- for backends that are not told of launches in another way, and for tests ------------------

    def begin(self, uint64_t now):
        """Begin the first step, at nanosecond `now`; later calls do nothing."""
        if not self.first:
            self.first = now

    def launched(self, uint64_t kernel, uint64_t seq, uint64_t now):
        """Take a launch; tell whether a step ended with the one before it."""
        return bool(self.launch(kernel, seq, now))

    def step(self, uint64_t seq):
        """End a step with launch `seq`; tell whether there was one to end."""
        return bool(self.mark(seq))

    def completed(self, uint64_t seq, uint64_t now):
        """Take the completion of all launches up to one."""
        self.complete(seq, now)

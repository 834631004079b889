# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Policies written in Python beside a running program: what the engine has to tell them, kept.

In a simulation the engine calls a hook and waits for it. Here it must not: a page fault may be
what it works on, and the thread that faulted may hold the GIL, without which no hook can run. So
the engine writes down what happened and goes on, and a thread of the policy's own reads it.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from deepum._core.engine cimport DEFAULT_ORDER, LAUNCH_RING, Engine, NativePolicy
from deepum._core.exec_table cimport NONE
from deepum._core.threads cimport (
    deepum_cond_init, deepum_wait_for, pthread_cond_broadcast, pthread_cond_destroy,
    pthread_cond_signal, pthread_cond_t, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)

cdef enum:
    NOTICES = 32768            # events that may wait for a policy
    CHOICES = 4096             # victims that a policy may name ahead

cdef enum Kind:
    LAUNCH, FAULT, COMPLETE, ALLOC, FREE, VICTIMS, RANGE

KINDS = ("on_launch", "on_fault", "on_complete", "on_alloc", "on_free", "victims", "range")


cdef struct Notice:
    uint64_t seq, exec_id, address, bytes
    uint32_t kind


@cython.final
cdef class DeferredPolicy(NativePolicy):
    """Keeps what happens for a `deepum.Policy` that is asked later.

    Parameters
    ----------
    policy : deepum.Policy
    native : NativePolicy or None
        What a built-in policy does by itself, at once.
    hooks : set of str
        Names of the hooks that the policy has.
    set_aside : object
        Not used: who calls the hooks finds out that they fail.
    """

    cdef readonly object policy
    cdef readonly object hooks
    cdef NativePolicy native
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t filled
    cdef Notice* ring
    cdef uint32_t head, size, taken
    cdef uint32_t choices[CHOICES]
    cdef uint32_t choice_head, choice_size
    cdef bint victims_asked, over, closed
    cdef bint wanted[7]

    def __cinit__(self, policy, NativePolicy native, hooks, set_aside=None):
        pthread_mutex_init(&self.mutex, NULL)
        deepum_cond_init(&self.filled)
        self.ring = <Notice*>malloc(NOTICES * sizeof(Notice))
        if not self.ring:
            raise MemoryError()
        self.policy = policy
        self.native = native
        self.hooks = frozenset(hooks)
        self.name = policy.name
        self.learns = policy.learns
        self.pre_evicts = policy.pre_evicts
        self.invalidates = policy.invalidates
        self.wants_ranges = policy.wants_ranges
        self.queue = policy.queue
        for kind, name in enumerate(KINDS):
            self.wanted[kind] = name in hooks
        self.wanted[<int>RANGE] = self.wanted[<int>LAUNCH]

    def __dealloc__(self):
        free(self.ring)
        pthread_cond_destroy(&self.filled)
        pthread_mutex_destroy(&self.mutex)

    cdef int attach(self, Engine engine) except -1:
        if self.native is not None:
            self.native.attach(engine)
        return 0

    cdef void note(
        self, uint32_t kind, uint64_t seq, uint64_t exec_id, uint64_t address, uint64_t size
    ) noexcept nogil:
        cdef Notice* n
        if not self.wanted[kind] or self.closed:
            return
        pthread_mutex_lock(&self.mutex)
        if self.size == NOTICES:
            self.over = True
        else:
            n = &self.ring[(self.head + self.size) % NOTICES]
            n.kind = kind
            n.seq = seq
            n.exec_id = exec_id
            n.address = address
            n.bytes = size
            self.size += 1
        pthread_cond_signal(&self.filled)
        pthread_mutex_unlock(&self.mutex)

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        cdef uint32_t i
        if self.native is not None:
            self.native.on_launch(engine, seq, kernel)
        for i in range(engine.range_count):
            self.note(RANGE, seq, 0, engine.ranges[2 * i], engine.ranges[2 * i + 1])
        self.note(LAUNCH, seq, engine.ring_exec[seq % LAUNCH_RING], 0, 0)
        return 0

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        cdef uint64_t seq = 0
        cdef uint64_t exec_id = 0
        if self.native is not None:
            self.native.on_fault(engine, block)
        if engine.launched > engine.completed:
            seq = engine.completed + 1
            exec_id = engine.ring_exec[seq % LAUNCH_RING]
        self.note(FAULT, seq, exec_id, block, 0)
        return 0

    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil:
        if self.native is not None:
            self.native.on_complete(engine, seq)
        self.note(COMPLETE, seq, engine.ring_exec[seq % LAUNCH_RING], 0, 0)
        return 0

    cdef int on_alloc(
        self, Engine engine, uint64_t address, uint64_t size, uint8_t kind
    ) except -1 nogil:
        if self.native is not None:
            self.native.on_alloc(engine, address, size, kind)
        self.note(ALLOC, 0, 0, address, size)
        return 0

    cdef int on_free(self, Engine engine, uint64_t address, uint64_t size) except -1 nogil:
        if self.native is not None:
            self.native.on_free(engine, address, size)
        self.note(FREE, 0, 0, address, size)
        return 0

    cdef int advance(self, Engine engine) except -1 nogil:
        if self.native is not None:
            self.native.advance(engine)
        return 0

    cdef int64_t victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2 nogil:
        # What the policy named when it was asked last; it is asked again when that is used up.
        cdef int64_t chosen = DEFAULT_ORDER
        cdef uint32_t slot
        cdef bint ask = False
        if self.wanted[<int>VICTIMS]:
            pthread_mutex_lock(&self.mutex)
            while self.choice_size and chosen == DEFAULT_ORDER:
                slot = engine.mem.slot_of(self.choices[self.choice_head])
                self.choice_head = (self.choice_head + 1) % CHOICES
                self.choice_size -= 1
                if slot != NONE and engine.may_evict(slot):
                    chosen = slot
            ask = self.choice_size < wanted and not self.victims_asked
            if ask:
                self.victims_asked = True
            pthread_mutex_unlock(&self.mutex)
            if ask:
                self.note(VICTIMS, wanted, 0, 0, 0)
        if chosen == DEFAULT_ORDER and self.native is not None:
            return self.native.victim(engine, wanted, demand)
        return chosen

    cdef uint64_t bytes_used(self) noexcept nogil:
        return 0 if self.native is None else self.native.bytes_used()

    # -- the policy's thread ------------------------------------------------------------------

    def take(self, long milliseconds):
        """Wait for something to tell; returns up to 256 (hook, seq, exec_id, address, bytes).

        An empty list when the time is over, None when there will be nothing any more.
        """
        cdef Notice taken[256]
        cdef uint32_t count = 0
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.taken = 0
            if not self.size and not self.closed:
                deepum_wait_for(&self.filled, &self.mutex, milliseconds * 1000)
            while self.size and count < 256:
                taken[count] = self.ring[self.head]
                self.head = (self.head + 1) % NOTICES
                self.size -= 1
                count += 1
            self.taken = count
            pthread_mutex_unlock(&self.mutex)
        if self.closed:
            return None
        return [
            (KINDS[taken[i].kind], taken[i].seq, taken[i].exec_id, taken[i].address,
             taken[i].bytes)
            for i in range(count)
        ]

    def choose(self, blocks):
        """Keep the policy's victims, best first, until the engine needs one."""
        cdef uint64_t block
        numbers = [block for block in blocks if 0 <= block < NONE][:CHOICES]
        with nogil:
            pthread_mutex_lock(&self.mutex)
        self.choice_head = 0
        self.choice_size = 0
        for block in numbers:
            self.choices[self.choice_size] = <uint32_t>block
            self.choice_size += 1
        self.victims_asked = False
        pthread_mutex_unlock(&self.mutex)

    def close(self):
        """Take no more notes, and let who waits for them go."""
        with nogil:
            pthread_mutex_lock(&self.mutex)
            self.closed = True
            self.choice_size = 0
            pthread_cond_broadcast(&self.filled)
            pthread_mutex_unlock(&self.mutex)

    @property
    def idle(self):
        """Whether nothing waits to be told, and who took the last notices has asked for more."""
        cdef bint nothing
        with nogil:
            pthread_mutex_lock(&self.mutex)
            nothing = not self.size and not self.taken
            pthread_mutex_unlock(&self.mutex)
        return nothing or self.closed

    @property
    def overflowed(self):
        """Whether more happened than the policy could keep up with."""
        return self.over

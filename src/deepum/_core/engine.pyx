# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The engine: events in, commands out.

It has no clock, no thread, no CUDA. Given the same events it gives the same commands, so what a
simulation measures is the code that runs on the GPU. A policy advises; the engine checks:

- a block that a launched, uncompleted kernel is known to need is never evicted;
- memory of an active PT block is never discarded;
- frames in use never exceed the budget.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free as c_free
from libc.stdlib cimport realloc
from libc.string cimport memmove, memset

from deepum._core.correlator cimport Correlator
from deepum._core.exec_table cimport NONE
from deepum._core.records cimport *
from deepum._core.residency cimport (
    ABSENT, AHEAD, CONTENT, DEMANDED, DIRTY, IN_PLACE, INCOMING, LEAF_BLOCKS, MANAGED,
    ON_DEAD_LIST, OUTGOING, QUEUED, RESIDENT, Block, Residency,
)

import numpy as np

EVENT_DTYPE = np.dtype([
    ("type", "u4"), ("device", "u2"), ("tier", "u1"), ("flags", "u1"), ("seq", "u8"),
    ("exec_id", "u8"), ("address", "u8"), ("bytes", "u8"), ("id", "u8"), ("time_ns", "u8"),
    ("reserved", "u8"),
])
"""numpy's view of ``struct deepum_event``."""

COMMAND_DTYPE = np.dtype([
    ("type", "u4"), ("device", "u2"), ("tier", "u1"), ("flags", "u1"), ("block", "u8"),
    ("count", "u4"), ("reserved", "u4"), ("seq", "u8"),
])
"""numpy's view of ``struct deepum_command``."""

EVENT_TYPES = {
    "manage": DEEPUM_EVENT_MANAGE, "unmanage": DEEPUM_EVENT_UNMANAGE,
    "alloc": DEEPUM_EVENT_ALLOC, "free": DEEPUM_EVENT_FREE, "launch": DEEPUM_EVENT_LAUNCH,
    "range": DEEPUM_EVENT_RANGE, "complete": DEEPUM_EVENT_COMPLETE,
    "fault": DEEPUM_EVENT_FAULT, "arrived": DEEPUM_EVENT_ARRIVED,
    "departed": DEEPUM_EVENT_DEPARTED,
}
COMMAND_TYPES = {
    "prefetch": DEEPUM_COMMAND_PREFETCH, "evict": DEEPUM_COMMAND_EVICT,
    "discard": DEEPUM_COMMAND_DISCARD,
}
COMMAND_DEMAND = DEEPUM_COMMAND_DEMAND
STATES = ("absent", "incoming", "resident", "outgoing")

cdef uint64_t ADDRESS_END = (
    (<uint64_t>1 << DEEPUM_ADDRESS_BITS) - (<uint64_t>1 << DEEPUM_BLOCK_SHIFT)
)


cdef class NativePolicy:
    """What the engine asks of a policy. This one does nothing: plain demand paging."""

    cdef int attach(self, Engine engine) except -1:
        return 0

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        return 0

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        return 0

    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil:
        return 0

    cdef int on_alloc(
        self, Engine engine, uint64_t address, uint64_t size, uint8_t kind
    ) except -1 nogil:
        return 0

    cdef int on_free(self, Engine engine, uint64_t address, uint64_t size) except -1 nogil:
        return 0

    cdef int advance(self, Engine engine) except -1 nogil:
        # Called when prefetches can be taken: call engine.want while engine.room().
        return 0

    cdef int64_t victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2 nogil:
        # The slot to evict next of the `wanted` ones; DEFAULT_ORDER leaves the choice to the
        # engine, NOBODY keeps every block where no fault waits.
        return DEFAULT_ORDER

    cdef uint64_t bytes_used(self) noexcept nogil:
        return 0


@cython.final
cdef class Engine:
    """Decides what to move, from what happens.

    Parameters
    ----------
    budget : int
        Frames of 2 MiB that may be in use, at least 1.
    policy : NativePolicy
        Who advises; see `deepum.policy.make_native`.
    depth : int
        Prefetch distance N in kernels.
    prefetch, pre_evict, invalidate : bool
        What the policy is allowed to use.
    learn_allocations : bool
        Whether blocks allocated for a launch enter its block table without a fault.
    drop_clean : bool
        Whether a block that has not been written since it came from the host leaves without
        being copied. Needs a backend that keeps the host's copy and knows about writes.
    auto_depth : bool
        Whether a chain stops where it has spoken for three quarters of the frames, not at `depth`.
    low, high : int
        Pre-eviction starts when fewer than `low` frames are free and frees up to `high`.
    window, max_run : int
        Blocks of prefetch on their way at once; blocks in one command.
    gated : bool
        Whether the backend holds a launch back until all that it names is resident: what is
        missing is then asked for when it is launched, as a fault would ask.
    frees_early : bool
        Whether memory may be freed while launches that use it have not completed, as programs
        that run ahead of the device do.
    batches_demand : bool
        Whether frames for all faults that wait are freed at once, not for one after the other.
    hurries : bool
        Whether there is a command too for each prefetch under way that a launch now waits for.
    follows : bool
        Whether the backend may bring blocks in and take them out on its own where a fault cannot
        wait for the engine, and tells of it afterwards.
    queue : int
        Prefetches that may wait at once; 0 leaves it to the policy, and then to the engine.
    rows, ways, successors, levels : int
        Geometry of the UM-block tables.
    """

    def __cinit__(
        self,
        uint64_t budget,
        NativePolicy policy not None,
        *,
        uint32_t depth=32,
        bint prefetch=True,
        bint pre_evict=True,
        bint invalidate=True,
        bint learn_allocations=True,
        bint drop_clean=False,
        bint auto_depth=False,
        bint gated=False,
        bint frees_early=False,
        bint batches_demand=False,
        bint hurries=False,
        bint follows=False,
        uint32_t low=32,
        uint32_t high=64,
        uint32_t window=32,
        uint32_t max_run=16,
        uint32_t queue=0,
        uint32_t rows=2048,
        uint32_t ways=2,
        uint32_t successors=4,
        uint32_t levels=1,
    ):
        if budget < 1 or budget > NONE:
            raise ValueError(f"budget must be between 1 and {NONE} blocks, not {budget}")
        if window < 1 or max_run < 1:
            raise ValueError("window and max_run must be at least 1")
        if high < low:
            raise ValueError(f"high ({high}) must not be below low ({low})")
        self.mem = Residency(budget)
        self.correlator = Correlator(rows, ways, successors, levels)
        self.retired = []
        self.allow_prefetch = prefetch
        self.allow_pre_evict = pre_evict
        self.allow_invalidate = invalidate
        self.learns_allocations = learn_allocations
        self.drops_clean = drop_clean
        self.auto_depth = auto_depth
        self.gated = gated
        self.frees_early = frees_early
        self.batches_demand = batches_demand
        self.hurries = hurries
        self.follows = follows
        # A small budget keeps most of its frames for use.
        self.low = <uint32_t>min(low, budget // 8)
        self.high = <uint32_t>min(high, budget // 4)
        self.window = <uint32_t>max(1, min(window, budget // 2))
        self.queue_asked = queue
        self.max_run = max_run
        self.depth = 1023 if auto_depth else depth
        self.policy = policy
        self.size_queue()
        self.refresh_switches()
        policy.attach(self)

    def __dealloc__(self):
        c_free(self.ranges)
        c_free(self.fresh)
        c_free(self.queue)
        c_free(self.demand)
        c_free(self.commands)

    # -- policies -----------------------------------------------------------------------------

    cdef void refresh_switches(self) noexcept nogil:
        # Blocks change lists when invalidation does: an inactive block is a list apart only
        # while dropping it is allowed.
        cdef uint32_t leaf, i, slot
        cdef Block* b
        cdef bint dead
        self.prefetches = self.allow_prefetch
        self.pre_evicts = self.allow_pre_evict and self.policy.pre_evicts
        self.invalidates = self.allow_invalidate and self.policy.invalidates
        self.barren = False
        self.passed = NONE
        for leaf in range(self.mem.leaf_count):
            for i in range(LEAF_BLOCKS):
                slot = leaf * LEAF_BLOCKS + i
                b = self.mem.at(slot)
                dead = self.invalidates and b.active == 0
                if b.state == RESIDENT and dead != ((b.flags & ON_DEAD_LIST) != 0):
                    self.mem.set_dead(slot, dead)
                elif b.state == ABSENT and dead:
                    b.flags &= ~CONTENT

    def set_policy(self, NativePolicy policy not None):
        """Let another policy advise from now on; tables, residency and commands stay."""
        policy.attach(self)   # may refuse: nothing has changed then
        # One of its hooks may be what asks for the change, so the old policy is kept a while.
        self.retired.append(self.policy)
        if len(self.retired) > 4:
            self.retired.pop(0)
        self.policy = policy
        self.forget_wishes()
        self.size_queue()
        self.refresh_switches()

    cpdef void keep_contents(self) noexcept nogil:
        """Drop nothing from now on: it is not known what still runs."""
        self.allow_invalidate = False
        self.refresh_switches()

    cdef void forget_wishes(self) noexcept nogil:
        # The prefetches that wait were the last policy's.
        while self.queue_size:
            self.mem.at(self.queue[self.queue_head]).flags &= ~QUEUED
            self.queue_head = (self.queue_head + 1) % self.queue_capacity
            self.queue_size -= 1
        self.fenced = self.behind = False

    cdef int size_queue(self) except -1:
        # Called while nothing waits. A policy that names whole working sets asks for more than
        # one that looks ahead can use.
        cdef uint64_t limit = self.queue_asked or self.policy.queue
        cdef void* memory
        if limit:
            limit = min(limit, self.mem.budget)
        else:
            limit = max(1, min(<uint64_t>QUEUE_BLOCKS, self.mem.budget // 8))
        if limit > self.queue_capacity:
            memory = realloc(self.queue, limit * sizeof(uint32_t))
            if not memory:
                raise MemoryError()
            self.queue = <uint32_t*>memory
            self.queue_capacity = <uint32_t>limit
            self.queue_head = 0
        self.queue_limit = <uint32_t>limit
        return 0

    cdef bint fence(self) noexcept nogil:
        # Whether evictions under way hold up prefetches and launches.
        return self.fenced

    # -- launches -----------------------------------------------------------------------------

    cdef uint32_t running_kernel(self) noexcept nogil:
        if self.launched == self.completed:
            return NONE
        return self.ring_kernel[(self.completed + 1) % LAUNCH_RING]

    cdef int launch(self, uint64_t exec_id) except -1 nogil:
        cdef uint32_t kernel = NONE
        cdef uint32_t i
        if self.launched - self.completed >= LAUNCH_RING:
            with gil:
                raise ValueError(f"more than {LAUNCH_RING} launches are waiting to complete")
        self.launched += 1
        self.n.launches += 1
        if self.policy.learns:
            kernel = self.correlator.launch(exec_id)
            for i in range(self.fresh_count):
                self.correlator.allocated(kernel, self.fresh[i])
        self.fresh_count = 0
        self.ring_kernel[self.launched % LAUNCH_RING] = kernel
        self.ring_exec[self.launched % LAUNCH_RING] = exec_id
        for i in range(self.range_count):
            self.pin_range(self.ranges[i * 2], self.ranges[i * 2 + 1], self.launched)
        self.policy.on_launch(self, self.launched, kernel)
        if self.gated:
            self.demand_ranges()
        self.range_count = 0
        return 0

    cdef int complete(self, uint64_t seq) except -1 nogil:
        if seq > self.launched:
            with gil:
                raise ValueError(f"launch {seq} completed before it was submitted")
        if seq <= self.completed:
            return 0
        while self.completed < seq:
            self.completed += 1
            self.pinned_now -= self.pin_counts[self.completed % LAUNCH_RING]
            self.pin_counts[self.completed % LAUNCH_RING] = 0
        self.barren = False
        self.passed = NONE
        self.policy.on_complete(self, seq)
        return 0

    cdef int name_range(self, uint64_t address, uint64_t size) except -1 nogil:
        # Memory that the next launch is known to touch.
        cdef uint32_t capacity
        cdef void* memory
        if self.range_count == self.range_capacity:
            capacity = self.range_capacity * 2 if self.range_capacity else 16
            memory = realloc(self.ranges, capacity * 2 * sizeof(uint64_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.ranges = <uint64_t*>memory
            self.range_capacity = capacity
        self.ranges[self.range_count * 2] = address
        self.ranges[self.range_count * 2 + 1] = size
        self.range_count += 1
        return 0

    cdef void pin(self, Block* b, uint64_t seq) noexcept nogil:
        # A launch that has not completed needs the block.
        if seq <= b.pinned or seq <= self.completed:
            return
        if b.pinned > self.completed:
            self.pin_counts[b.pinned % LAUNCH_RING] -= b.more + 1
        else:
            self.pinned_now += b.more + 1
        self.pin_counts[seq % LAUNCH_RING] += b.more + 1
        b.pinned = seq

    cdef int demand_ranges(self) except -1 nogil:
        # What the latest launch names and is not here goes before all that is only expected.
        cdef uint64_t block, address, size
        cdef uint32_t i, slot
        cdef Block* b
        for i in range(self.range_count):
            address = self.ranges[2 * i]
            size = self.ranges[2 * i + 1]
            if size == 0:
                continue
            block = address >> DEEPUM_BLOCK_SHIFT
            while block <= (address + size - 1) >> DEEPUM_BLOCK_SHIFT:
                slot = self.mem.slot_of(<uint32_t>block)
                block = self.mem.past(block, slot)
                if slot == NONE:
                    continue
                b = self.mem.at(slot)
                if b.state == INCOMING or b.state == RESIDENT:
                    if b.flags & AHEAD:
                        b.flags &= ~AHEAD
                        self.n.prefetch_used += b.more + 1
                        if b.state == INCOMING:
                            self.n.late += b.more + 1
                            if self.hurries:
                                self.say(HURRY_COMMAND, slot, DEEPUM_COMMAND_DEMAND, self.launched)
                    continue
                if not b.flags & (QUEUED | DEMANDED):
                    self.n.misses += b.more + 1
                self.demand_block(slot)
        return 0

    cdef void pin_range(self, uint64_t address, uint64_t size, uint64_t seq) noexcept nogil:
        cdef uint64_t block = address >> DEEPUM_BLOCK_SHIFT
        cdef uint32_t slot
        if size == 0:
            return
        while block <= (address + size - 1) >> DEEPUM_BLOCK_SHIFT:
            slot = self.mem.slot_of(<uint32_t>block)
            block = self.mem.past(block, slot)
            if slot != NONE:
                self.pin(self.mem.at(slot), seq)

    # -- faults and moves ---------------------------------------------------------------------

    cdef int fault(self, uint32_t slot) except -1 nogil:
        # A block was touched and is not resident. Giving it a frame is a step of its own.
        cdef Block* b = self.mem.at(slot)
        cdef uint64_t seq = self.completed + 1
        cdef uint32_t block = self.mem.block_of(slot)
        cdef uint32_t kernel
        self.n.faults += 1
        if self.launched > self.completed:
            self.pin(b, seq)
            kernel = self.running_kernel()
            if kernel != NONE:
                self.correlator.fault(kernel, seq, block)
        self.policy.on_fault(self, block)
        return 0

    cdef int demand_block(self, uint32_t slot) except -1 nogil:
        # The block is to be brought as soon as there is a frame for it.
        cdef uint32_t capacity
        cdef void* memory
        if self.mem.at(slot).flags & DEMANDED:
            return 0
        if self.demand_head + self.demand_size == self.demand_capacity and self.demand_head:
            memmove(self.demand, &self.demand[self.demand_head],
                    self.demand_size * sizeof(uint32_t))
            self.demand_head = 0
        if self.demand_size == self.demand_capacity:
            capacity = self.demand_capacity * 2 if self.demand_capacity else 64
            memory = realloc(self.demand, capacity * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.demand = <uint32_t*>memory
            self.demand_capacity = capacity
        self.mem.at(slot).flags |= DEMANDED
        self.demand[self.demand_head + self.demand_size] = slot
        self.demand_size += 1
        return 0

    cdef int take_frame(self, uint32_t slot) except -1 nogil:
        # Give a faulted block a frame, or say what to wait for. Evicts on the fault path.
        cdef int64_t victim
        while self.mem.frames_free() < self.mem.frames(slot):
            if self.mem.outgoing:
                return WAIT_OUT
            victim = self.choose_victim(True, 1)
            if victim < 0:
                return WAIT_IN if self.mem.incoming else NO_FRAME
            self.evict(<uint32_t>victim, True)
        self.mem.begin_in(slot)
        return TAKEN

    cdef int hurry(self, uint32_t slot) except -1 nogil:
        # A block was touched whose prefetch waits for a frame. That is no news to the policy:
        # its move only has to go first. Answers as take_frame; its place in the queue lapses.
        cdef int answer = self.take_frame(slot)
        if answer == TAKEN:
            self.mem.at(slot).flags &= ~QUEUED
            self.n.prefetched += self.mem.frames(slot)
            self.n.prefetch_used += self.mem.frames(slot)
            self.n.late += self.mem.frames(slot)
        return answer

    cdef int arrived(self, uint32_t slot) except -1 nogil:
        cdef Block* b = self.mem.at(slot)
        if b.state != INCOMING:
            if not self.follows:
                with gil:
                    raise ValueError(
                        f"block {self.mem.block_of(slot)} arrived but was not on its way"
                    )
            if b.state != ABSENT:
                return 0
            self.mem.begin_in(slot)
        self.mem.end_in(slot)
        if self.expendable(b):
            self.barren = False
        b.flags |= DIRTY       # unless a backend that knows better takes it back
        if not b.flags & MANAGED:
            self.mem.drop(slot)
        elif self.invalidates and b.active == 0:
            self.mem.set_dead(slot, True)
        return 0

    cdef int stayed(self, uint32_t slot) except -1 nogil:
        # A block was evicted, but the backend had no place for it: it is where it was.
        cdef Block* b = self.mem.at(slot)
        if b.state != OUTGOING:
            with gil:
                raise ValueError(f"block {self.mem.block_of(slot)} stayed but was not evicted")
        self.mem.outgoing -= b.more + 1
        self.mem.begin_in(slot)
        return self.arrived(slot)

    cdef int departed(self, uint32_t slot) except -1 nogil:
        cdef Block* b = self.mem.at(slot)
        if b.state != OUTGOING:
            if not self.follows:
                with gil:
                    raise ValueError(f"block {self.mem.block_of(slot)} left but was not evicted")
            if b.state == ABSENT:
                return 0
            if b.flags & AHEAD:
                b.flags &= ~AHEAD
                self.n.wasted += b.more + 1
            if b.state == INCOMING:   # its move was given up
                self.mem.incoming -= b.more + 1
                b.state = ABSENT
                return 0
            self.mem.begin_out(slot)
            self.n.demand_evicted += b.more + 1
        self.mem.end_out(slot)
        if self.mem.outgoing == 0:
            self.fenced = False
        if not b.flags & MANAGED or (self.invalidates and self.unread(b)):
            b.flags &= ~CONTENT
        return 0

    # -- memory -------------------------------------------------------------------------------

    cdef int alloc(self, uint64_t address, uint64_t size, uint8_t kind=0) except -1 nogil:
        # All of it is checked first, here and below: an event that cannot be changes nothing.
        cdef uint64_t start = address, end = address + size, stop
        cdef uint32_t slot
        cdef Block* b
        while start < end:
            stop = min(end, ((start >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            slot = self.mem.slot_of(<uint32_t>(start >> DEEPUM_BLOCK_SHIFT))
            if slot == NONE:
                with gil:
                    raise ValueError(f"allocation at {start:#x} lies outside managed memory")
            b = self.mem.at(slot)
            if (b.active + <int64_t>(stop - start)
                    > <int64_t>self.mem.frames(slot) << DEEPUM_BLOCK_SHIFT):
                with gil:
                    raise ValueError(f"memory at {start:#x} was allocated twice")
            start = stop
        start = address
        while start < end:
            stop = min(end, ((start >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            slot = self.mem.slot_of(<uint32_t>(start >> DEEPUM_BLOCK_SHIFT))
            b = self.mem.at(slot)
            if b.active == 0 and b.flags & ON_DEAD_LIST:
                self.mem.set_dead(slot, False)
            b.active += <uint32_t>(stop - start)
            if (self.policy.learns and self.learns_allocations and (
                    start == address or self.mem.block_of(slot) == start >> DEEPUM_BLOCK_SHIFT)):
                self.note_fresh(self.mem.block_of(slot))
            start = stop
        self.mem.active_bytes += size
        return self.policy.on_alloc(self, address, size, kind)

    cdef int manage(
        self, uint64_t address, uint64_t size, bint resident, uint32_t chunk
    ) except -1 nogil:
        # A range becomes managed; where its blocks have frames already, they are taken as is.
        cdef uint64_t block = address >> DEEPUM_BLOCK_SHIFT
        cdef uint32_t slot
        self.mem.manage(address, size, chunk)
        while resident and block < (address + size) >> DEEPUM_BLOCK_SHIFT:
            slot = self.mem.slot_of(<uint32_t>block)
            block = self.mem.past(block, slot)
            if (self.mem.at(slot).state == ABSENT
                    and self.mem.frames_free() >= self.mem.frames(slot)):
                self.mem.begin_in(slot)
                self.arrived(slot)
        return 0

    cdef int note_fresh(self, uint32_t block) except -1 nogil:
        # More than the budget holds is no kernel's output: the program is setting up.
        cdef uint32_t capacity
        cdef void* memory
        if self.fresh_count >= self.mem.budget:
            return 0
        if self.fresh_count == self.fresh_capacity:
            capacity = self.fresh_capacity * 2 if self.fresh_capacity else 64
            memory = realloc(self.fresh, capacity * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            self.fresh = <uint32_t*>memory
            self.fresh_capacity = capacity
        self.fresh[self.fresh_count] = block
        self.fresh_count += 1
        return 0

    cdef int free(self, uint64_t address, uint64_t size) except -1 nogil:
        cdef uint64_t start = address, end = address + size, stop
        cdef uint32_t slot
        cdef Block* b
        while start < end:
            stop = min(end, ((start >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            slot = self.mem.slot_of(<uint32_t>(start >> DEEPUM_BLOCK_SHIFT))
            b = NULL if slot == NONE else self.mem.at(slot)
            if b == NULL or b.active < <int64_t>(stop - start):
                with gil:
                    raise ValueError(f"memory at {start:#x} was freed but is not allocated")
            start = stop
        start = address
        while start < end:
            stop = min(end, ((start >> DEEPUM_BLOCK_SHIFT) + 1) << DEEPUM_BLOCK_SHIFT)
            slot = self.mem.slot_of(<uint32_t>(start >> DEEPUM_BLOCK_SHIFT))
            b = self.mem.at(slot)
            b.active -= <uint32_t>(stop - start)
            if b.active == 0:
                b.flags &= ~IN_PLACE   # a place is given to what was in it
                if self.frees_early:
                    b.freed = self.launched    # any launch up to now may have been given it
            if b.active == 0 and self.invalidates:
                # Wholly inactive: what it holds will never be read again.
                if b.state == RESIDENT:
                    self.mem.set_dead(slot, True)
                elif b.state == ABSENT and self.unread(b):
                    b.flags &= ~CONTENT
            start = stop
        self.mem.active_bytes -= size
        return self.policy.on_free(self, address, size)

    cdef int unmanage(self, uint64_t address, uint64_t size) except -1 nogil:
        # The driver has taken the range away; whole blocks of it lose frame and contents.
        cdef uint64_t first = (address + (1 << DEEPUM_BLOCK_SHIFT) - 1) >> DEEPUM_BLOCK_SHIFT
        cdef uint64_t end = (address + size) >> DEEPUM_BLOCK_SHIFT
        cdef uint64_t block
        cdef uint32_t slot
        cdef Block* b
        for block in range(first, end):
            slot = self.mem.slot_of(<uint32_t>block)
            if slot != NONE and self.mem.at(slot).active:
                with gil:
                    raise ValueError(f"block {block} was given back while a tensor lives in it")
        for block in range(first, end):
            slot = self.mem.slot_of(<uint32_t>block)
            if slot == NONE:
                continue
            slot += <uint32_t>(block - self.mem.block_of(slot))
            b = self.mem.at(slot)
            if b.flags & AHEAD:
                self.n.wasted += b.more + 1
            b.flags &= ~(MANAGED | CONTENT | AHEAD)
            if self.mem.chunked:
                b.flags &= ~(QUEUED | DEMANDED)    # the next chunk there may begin elsewhere
            self.mem.managed -= 1
            if b.state == RESIDENT:
                self.mem.drop(slot)
        return 0

    cdef int host_content(self, uint64_t address, uint64_t size) except -1 nogil:
        # The program has written this memory on the host.
        cdef uint64_t block
        cdef uint32_t slot
        if size == 0:
            return 0
        for block in range(address >> DEEPUM_BLOCK_SHIFT,
                           ((address + size - 1) >> DEEPUM_BLOCK_SHIFT) + 1):
            slot = self.mem.slot_of(<uint32_t>block)
            if slot != NONE:
                self.mem.at(slot).flags |= CONTENT
        return 0

    # -- what a policy may ask for ------------------------------------------------------------

    cdef bint room(self) noexcept nogil:
        return self.prefetches and self.queue_size < self.queue_limit

    cdef bint protects(self, uint32_t block, uint64_t position) noexcept nogil:
        # Launch `position` is expected to need the block. False if the block is unknown.
        cdef uint32_t slot = self.mem.slot_of(block)
        cdef Block* b
        if slot == NONE:
            return False
        b = self.mem.at(slot)
        if position > b.needed:
            b.needed = position
        return True

    cdef bint want(self, uint32_t block, uint64_t position) noexcept nogil:
        # Prefetch the block for launch `position` (0: no particular one). False if refused.
        cdef uint32_t slot
        cdef Block* b
        if not self.protects(block, position):
            self.n.refused += 1
            return False
        slot = self.mem.slot_of(block)
        b = self.mem.at(slot)
        if not self.prefetches or b.flags & QUEUED or b.state in (INCOMING, RESIDENT):
            return True
        if self.queue_size >= self.queue_limit:
            self.n.refused += 1
            return False
        b.flags |= QUEUED
        self.queue[(self.queue_head + self.queue_size) % self.queue_capacity] = slot
        self.queue_size += 1
        return True

    cdef bint may_evict(self, uint32_t slot) noexcept nogil:
        cdef Block* b = self.mem.at(slot)
        return b.state == RESIDENT and b.pinned <= self.completed and not self.keeps

    cdef int evict(self, uint32_t slot, bint demand) except -1 nogil:
        # Free a resident block's frame: at once if nothing in it is alive, else by copying.
        cdef Block* b = self.mem.at(slot)
        cdef uint8_t flags = DEEPUM_COMMAND_DEMAND if demand else 0
        if b.flags & AHEAD:
            b.flags &= ~AHEAD
            self.n.wasted += b.more + 1
        if self.invalidates and b.active == 0 and b.freed <= self.completed:
            self.mem.drop(slot)
            self.n.discarded += b.more + 1
            return self.say(DEEPUM_COMMAND_DISCARD, slot, flags, 0)
        if self.drops_clean and not b.flags & DIRTY:
            self.mem.unlink(slot)
            b.state = ABSENT
            self.n.discarded += b.more + 1
            return self.say(DEEPUM_COMMAND_EVICT, slot, flags | DEEPUM_COMMAND_CLEAN, 0)
        self.mem.begin_out(slot)
        if demand:
            self.n.demand_evicted += b.more + 1
        else:
            self.n.pre_evicted += b.more + 1
        return self.say(DEEPUM_COMMAND_EVICT, slot, flags, 0)

    cdef bint unread(self, Block* b) noexcept nogil:
        # Whether nothing will read what is in it: a launch that waits may be about to, though the
        # program has freed it.
        return b.active == 0 and (not self.frees_early or b.pinned <= self.completed)

    cdef bint expendable(self, Block* b) noexcept nogil:
        # Whether no launch now or soon is expected to need the block. Only the end of a launch
        # makes a resident block so.
        return ((b.needed <= self.completed or not self.pre_evicts)
                and b.pinned <= self.completed
                and (b.freed <= self.completed or not b.flags & ON_DEAD_LIST))

    cdef int64_t choose_victim(self, bint demand, uint32_t wanted) except? -2 nogil:
        # The next block to lose its frame, or NOBODY: the policy's choice, then inactive blocks,
        # then the least recently migrated one that no launch now or soon is expected to need.
        # A fault cannot be refused, so on its path the most recently migrated block goes if all
        # are expected: it was brought for the launch that is furthest away.
        cdef int64_t chosen
        cdef uint32_t slot
        cdef Block* b
        if self.keeps:
            return NOBODY
        chosen = self.policy.victim(self, wanted, demand)
        if chosen == NOBODY and not demand:
            return NOBODY
        if chosen >= 0:
            if self.may_evict(<uint32_t>chosen):
                return chosen
            self.n.refused += 1
        if not self.barren:
            slot = self.mem.dead.head
            while slot != NONE:
                b = self.mem.at(slot)
                if self.expendable(b):
                    return slot
                slot = b.after
            slot = self.mem.migrated.head
            if self.passed != NONE:
                b = self.mem.at(self.passed)
                if (b.state == RESIDENT and not b.flags & ON_DEAD_LIST
                        and b.stamp == self.passed_stamp):
                    slot = b.after
            while slot != NONE:
                b = self.mem.at(slot)
                if self.expendable(b):
                    return slot
                self.passed = slot
                self.passed_stamp = b.stamp
                slot = b.after
            self.barren = True
        if demand:
            slot = self.mem.dead.tail
            while slot != NONE:
                if self.mem.at(slot).pinned <= self.completed:
                    return slot
                slot = self.mem.at(slot).before
            slot = self.mem.migrated.tail
            while slot != NONE:
                if self.mem.at(slot).pinned <= self.completed:
                    return slot
                slot = self.mem.at(slot).before
        return NOBODY

    # -- commands -----------------------------------------------------------------------------

    cdef int pump(self) except -1 nogil:
        # Turn wishes into commands, as far as frames and the window allow.
        cdef uint64_t before
        if self.demand_size:
            self.serve_demand()
        while True:
            before = self.n.prefetched
            if self.room():
                self.policy.advance(self)
            if self.pre_evicts:
                self.make_room()
            if self.queue_size:
                self.issue()
            if self.n.prefetched == before:
                return 0

    cdef int make_room(self) except -1 nogil:
        cdef int64_t free = self.mem.frames_free() + <int64_t>self.mem.outgoing
        cdef int64_t victim
        # Where all there is fits, frames do not run short, however few are left.
        if free >= self.low or self.mem.managed <= self.mem.budget:
            return 0
        while free < self.high:
            victim = self.choose_victim(False, <uint32_t>(self.high - free))
            if victim < 0:
                break
            free += self.mem.frames(<uint32_t>victim)
            self.evict(<uint32_t>victim, False)
        return 0

    cdef int issue(self) except -1 nogil:
        cdef uint32_t slot
        cdef int64_t victim
        cdef Block* b
        if self.fence():
            return 0
        while self.queue_size and self.mem.incoming < self.window:
            slot = self.queue[self.queue_head]
            b = self.mem.at(slot)
            if b.state == OUTGOING:
                return 0
            if b.state == ABSENT and b.flags & QUEUED and b.flags & MANAGED:
                if self.mem.frames_free() < self.mem.frames(slot):
                    # Without pre-eviction a prefetch makes its own room, one thing at a time.
                    if self.pre_evicts or self.mem.outgoing or self.mem.incoming:
                        return 0
                    victim = self.choose_victim(False, 1)
                    if victim >= 0:
                        self.evict(<uint32_t>victim, False)
                    if victim < 0 or self.mem.frames_free() <= 0:
                        return 0
                    continue   # choosing may have set the policy aside, and its wishes with it
                self.mem.begin_in(slot)
                b.flags |= AHEAD
                self.n.prefetched += b.more + 1
                self.say(DEEPUM_COMMAND_PREFETCH, slot, 0, b.needed)
            b.flags &= ~QUEUED
            self.queue_head = (self.queue_head + 1) % self.queue_capacity
            self.queue_size -= 1
        return 0

    cdef int serve_demand(self) except -1 nogil:
        # Faults that wait for a frame, in order: used where the backend moves on command.
        cdef uint32_t slot
        while self.demand_size:
            slot = self.demand[self.demand_head]
            if self.mem.at(slot).state == OUTGOING:
                return 0
            if (self.mem.at(slot).state == ABSENT and self.mem.at(slot).flags & MANAGED
                    and self.mem.at(slot).flags & DEMANDED):
                if self.mem.at(slot).flags & QUEUED:
                    if self.hurry(slot) != TAKEN:
                        return self.free_ahead()
                elif self.take_frame(slot) != TAKEN:
                    return self.free_ahead()
                self.say(DEEPUM_COMMAND_PREFETCH, slot, DEEPUM_COMMAND_DEMAND, self.completed + 1)
            self.mem.at(slot).flags &= ~DEMANDED
            self.demand_head += 1
            self.demand_size -= 1
        self.demand_head = 0
        return 0

    cdef int free_ahead(self) except -1 nogil:
        # Frames for all faults that wait, where the backend evicts several blocks at a time.
        cdef uint64_t wanted = 0
        cdef uint32_t i
        cdef int64_t victim
        for i in range(self.demand_size):
            wanted += self.mem.frames(self.demand[self.demand_head + i])
            if wanted >= self.window:
                wanted = self.window
                break
        # What leaves without a copy is a free frame at once.
        while self.batches_demand and (
                max(<int64_t>0, self.mem.frames_free()) + <int64_t>self.mem.outgoing
                < <int64_t>wanted):
            victim = self.choose_victim(True, 1)
            if victim < 0:
                break
            self.evict(<uint32_t>victim, True)
        return 0

    cdef int say(
        self, uint32_t kind, uint32_t slot, uint8_t flags, uint64_t seq
    ) except -1 nogil:
        # Append a command; neighbouring blocks join the run before them.
        cdef uint64_t block = self.mem.block_of(slot)
        cdef uint32_t count = self.mem.frames(slot)
        cdef deepum_command* c
        cdef uint32_t capacity
        cdef void* memory
        if self.command_count:
            c = &self.commands[self.command_count - 1]
            if (c.type == kind and c.flags == flags and c.block + c.count == block
                    and c.count + count <= self.max_run):
                c.count += count
                return 0
        if self.command_count == self.command_capacity:
            capacity = self.command_capacity * 2 if self.command_capacity else 64
            memory = realloc(self.commands, capacity * sizeof(deepum_command))
            if not memory:
                with gil:
                    raise MemoryError()
            self.commands = <deepum_command*>memory
            self.command_capacity = capacity
        c = &self.commands[self.command_count]
        memset(c, 0, sizeof(deepum_command))
        c.type = kind
        c.flags = flags
        c.block = block
        c.count = count
        c.seq = seq
        self.command_count += 1
        return 0

    cdef int feed_one(self, const deepum_event* event) except -1 nogil:
        cdef uint32_t slot = NONE
        # The number of the last block below the limit stands for "none".
        if event.address >= ADDRESS_END or event.bytes > ADDRESS_END - event.address:
            with gil:
                raise ValueError(f"address {event.address:#x} or its range lies above 2^53")
        if event.type == DEEPUM_EVENT_LAUNCH:
            return self.launch(event.exec_id)
        if event.type == DEEPUM_EVENT_COMPLETE:
            return self.complete(event.seq)
        if event.type == DEEPUM_EVENT_RANGE:
            return self.name_range(event.address, event.bytes)
        if event.type == DEEPUM_EVENT_MANAGE:
            self.manage(event.address, event.bytes, event.flags & DEEPUM_MANAGE_RESIDENT,
                        <uint32_t>max(<uint64_t>1, event.id))
            if event.flags & DEEPUM_MANAGE_CONTENT:
                self.host_content(event.address, event.bytes)
            return 0
        if event.type == DEEPUM_EVENT_UNMANAGE:
            return self.unmanage(event.address, event.bytes)
        if event.type == DEEPUM_EVENT_ALLOC:
            return self.alloc(event.address, event.bytes)
        if event.type == DEEPUM_EVENT_FREE:
            return self.free(event.address, event.bytes)
        slot = self.mem.slot_of(<uint32_t>(event.address >> DEEPUM_BLOCK_SHIFT))
        if slot == NONE:
            # In flight while its range was given back: the frame still has to come free.
            slot = self.mem.find_leaf(<uint32_t>(event.address >> 31))
            if slot != NONE:
                slot = (slot << 10) | (<uint32_t>(event.address >> DEEPUM_BLOCK_SHIFT) & 1023)
            if slot == NONE or event.type == DEEPUM_EVENT_FAULT:
                with gil:
                    raise ValueError(f"address {event.address:#x} lies outside managed memory")
        if event.type == DEEPUM_EVENT_ARRIVED:
            return self.arrived(slot)
        if event.type == DEEPUM_EVENT_DEPARTED:
            return self.departed(slot)
        if event.type != DEEPUM_EVENT_FAULT:
            with gil:
                raise ValueError(f"unknown event type {event.type}")
        # Whether resident, on its way or waiting for its prefetch: the running launch needs it.
        if self.launched > self.completed:
            self.pin(self.mem.at(slot), self.completed + 1)
        if self.mem.at(slot).state == RESIDENT:
            return 0
        if self.mem.at(slot).state == INCOMING:
            if self.mem.at(slot).flags & AHEAD:
                self.mem.at(slot).flags &= ~AHEAD
                self.n.late += 1
                self.n.prefetch_used += 1
            return 0
        if self.mem.at(slot).flags & DEMANDED:
            return 0               # the same fault again
        self.demand_block(slot)
        if self.mem.at(slot).flags & QUEUED:
            return 0
        return self.fault(slot)

    # -- from Python --------------------------------------------------------------------------

    def feed(self, events):
        """Take events, an array of `EVENT_DTYPE`, in order.

        Raises
        ------
        ValueError
            An event that cannot be: the ones before it have been taken.
        """
        cdef const unsigned char[::1] view
        cdef Py_ssize_t i
        cdef const deepum_event* e
        array = np.ascontiguousarray(events, dtype=EVENT_DTYPE).reshape(-1)
        if not array.size:
            return
        view = array.view(np.uint8)
        e = <const deepum_event*>&view[0]
        with nogil:
            for i in range(view.shape[0] // <Py_ssize_t>sizeof(deepum_event)):
                self.feed_one(&e[i])

    def drain(self):
        """Return the commands due now, an array of `COMMAND_DTYPE`, in order."""
        cdef Py_ssize_t size
        with nogil:
            self.pump()
        size = self.command_count * sizeof(deepum_command)
        self.command_count = 0
        if not size:
            return np.empty(0, dtype=COMMAND_DTYPE)
        raw = (<unsigned char*>self.commands)[:size]
        return np.frombuffer(raw, dtype=COMMAND_DTYPE)

    def event(self, str kind, **fields):
        """Feed one event by name, for tests and interactive use."""
        record = np.zeros(1, dtype=EVENT_DTYPE)
        record["type"] = EVENT_TYPES[kind]
        for name, value in fields.items():
            record[name] = value
        self.feed(record)

    def state(self, uint64_t block):
        """Return "absent", "incoming", "resident" or "outgoing"; None for unknown memory."""
        cdef uint32_t slot = NONE
        if block < NONE:
            slot = self.mem.slot_of(<uint32_t>block)
        return None if slot == NONE else STATES[self.mem.at(slot).state]

    def is_resident(self, uint64_t block):
        """Tell whether the block has its contents on the device now."""
        return self.state(block) == "resident"

    def resident_blocks(self):
        """Return the resident blocks, least recently migrated first, inactive ones first."""
        blocks = []
        cdef uint32_t slot
        for start in (self.mem.dead.head, self.mem.migrated.head):
            slot = start
            while slot != NONE:
                blocks.append(self.mem.block_of(slot))
                slot = self.mem.at(slot).after
        return blocks

    def inspect(self, uint64_t block):
        """Return what the engine knows of a block, a dict, or None for unknown memory."""
        cdef uint32_t slot = NONE
        cdef Block* b
        if block < NONE:
            slot = self.mem.slot_of(<uint32_t>block)
        if slot == NONE:
            return None
        b = self.mem.at(slot)
        return {
            "state": STATES[b.state], "active_bytes": b.active, "needed": b.needed,
            "pinned": b.pinned, "content": bool(b.flags & CONTENT),
            "ahead": bool(b.flags & AHEAD), "queued": bool(b.flags & QUEUED),
            "inactive": bool(b.flags & ON_DEAD_LIST), "stamp": b.stamp,
        }

    def check(self):
        """Verify every invariant; return nothing or raise AssertionError."""
        cdef uint32_t leaf, i, slot
        cdef Block* b
        counts = [0, 0, 0, 0]
        queued = 0
        for leaf in range(self.mem.leaf_count):
            for i in range(LEAF_BLOCKS):
                b = self.mem.at(leaf * LEAF_BLOCKS + i)
                counts[b.state] += b.more + 1
                queued += bool(b.flags & QUEUED)
                assert b.active >= 0
                if b.lead:
                    assert b.state == ABSENT and b.active == 0 and b.more == 0
                if b.flags & ON_DEAD_LIST:
                    assert b.state == RESIDENT and b.active == 0 and self.invalidates
        assert counts[INCOMING] == self.mem.incoming
        assert counts[OUTGOING] == self.mem.outgoing
        assert counts[RESIDENT] == self.mem.migrated.size + self.mem.dead.size
        assert queued <= self.queue_size <= self.queue_limit
        assert self.mem.frames_used() <= self.mem.budget
        for start, size in (
            (self.mem.dead.head, self.mem.dead.size),
            (self.mem.migrated.head, self.mem.migrated.size),
        ):
            slot = start
            seen = 0
            stamp = 0
            while slot != NONE:
                b = self.mem.at(slot)
                assert b.state == RESIDENT
                if not b.flags & ON_DEAD_LIST:
                    assert b.stamp > stamp
                    stamp = b.stamp
                seen += b.more + 1
                slot = b.after
            assert seen == size

    @property
    def budget(self):
        """Frames that may be in use."""
        return self.mem.budget

    @property
    def free_frames(self):
        """Frames not in use."""
        return self.mem.frames_free()

    @property
    def resident(self):
        """Blocks resident now."""
        return self.mem.migrated.size + self.mem.dead.size

    @property
    def pinned(self):
        """Blocks that launched, uncompleted kernels are known to need."""
        return self.pinned_now

    @property
    def in_flight(self):
        """Blocks on their way in and out, a pair."""
        return self.mem.incoming, self.mem.outgoing

    @property
    def running(self):
        """Sequence number of the running launch, or None."""
        return self.completed + 1 if self.launched > self.completed else None

    @property
    def running_exec_id(self):
        """Execution ID of the running launch, or None."""
        if self.launched == self.completed:
            return None
        return self.ring_exec[(self.completed + 1) % LAUNCH_RING]

    cdef uint64_t bytes_of_tables(self) noexcept nogil:
        return ((self.correlator.bytes_used() if self.policy.learns else 0)
                + self.policy.bytes_used())

    @property
    def table_bytes(self):
        """Bytes of the tables the policy keeps."""
        return self.bytes_of_tables()

    @property
    def stats(self):
        """Counts since the start, a dict; see docs/how-it-works.md for each."""
        return self.n

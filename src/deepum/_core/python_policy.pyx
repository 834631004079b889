# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Policies written in Python: the engine's calls turned into hooks, and what hooks may do.

A hook that raises, returns nonsense, floods the engine or takes too long costs its policy the
job: the engine goes on with plain demand paging, and one warning says why.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from deepum._core.engine cimport DEFAULT_ORDER, LAUNCH_RING, Engine, NativePolicy
from deepum._core.exec_table cimport NONE
from deepum._core.noop cimport NoopPolicy
from deepum._core.residency cimport IN_PLACE, RESIDENT

import itertools
import time

from deepum.errors import OutOfMemoryError

cdef uint64_t QUOTA = 1 << 16
MAX_COMMANDS = QUOTA
"""Blocks that one call of a hook may ask for: 128 GiB."""

cdef uint64_t MAX_REFUSED = 100_000     # refused in a row before a policy counts as broken


@cython.final
@cython.freelist(64)
cdef class Launch:
    """A kernel submitted to the device."""

    cdef readonly uint64_t exec_id
    cdef readonly uint64_t seq
    cdef readonly tuple ranges

    def __init__(self, exec_id, seq, ranges=()):
        self.exec_id = exec_id
        self.seq = seq
        self.ranges = ranges

    def __repr__(self):
        return f"Launch(exec_id={self.exec_id:#x}, seq={self.seq})"


@cython.final
@cython.freelist(64)
cdef class Fault:
    """A block touched while it was not resident. `seq` is the running launch, 0 for none."""

    cdef readonly uint64_t block
    cdef readonly uint64_t exec_id
    cdef readonly uint64_t seq

    def __init__(self, block, exec_id, seq):
        self.block = block
        self.exec_id = exec_id
        self.seq = seq

    @property
    def address(self):
        """Address of the block's first byte."""
        return self.block << 21

    def __repr__(self):
        return f"Fault(block={self.block}, exec_id={self.exec_id:#x}, seq={self.seq})"


@cython.final
@cython.freelist(64)
cdef class Allocation:
    """A PT block that becomes active or inactive; `kind` is a name, "" where unknown."""

    cdef readonly uint64_t address
    cdef readonly uint64_t bytes
    cdef readonly str kind

    def __init__(self, address, bytes, kind=""):
        self.address = address
        self.bytes = bytes
        self.kind = kind

    def __repr__(self):
        return f"Allocation(address={self.address:#x}, bytes={self.bytes}, kind={self.kind!r})"


cdef tuple KINDS = (
    "", "parameter", "gradient", "optimizer state", "activation", "input", "workspace",
)


cdef Allocation allocation_of(uint64_t address, uint64_t size, uint8_t kind):
    cdef Allocation allocation = Allocation.__new__(Allocation)
    allocation.address = address
    allocation.bytes = size
    allocation.kind = KINDS[kind] if kind < len(KINDS) else ""
    return allocation


cdef Launch launch_of(Engine engine, uint64_t seq, bint with_ranges):
    cdef Launch launch = Launch.__new__(Launch)
    cdef uint32_t i
    launch.exec_id = engine.ring_exec[seq % LAUNCH_RING]
    launch.seq = seq
    launch.ranges = ()
    if with_ranges and engine.range_count:
        launch.ranges = tuple(
            [(engine.ranges[2 * i], engine.ranges[2 * i + 1]) for i in range(engine.range_count)]
        )
    return launch


@cython.final
cdef class View:
    """What a policy sees of the engine, and what it may ask of it.

    A request is checked before it becomes a command; the ones refused are counted in the
    session's statistics. Blocks are numbers, address >> 21.
    """

    cdef Engine engine
    cdef uint64_t asked
    cdef readonly dict options

    def __init__(self, Engine engine not None, dict options):
        self.engine = engine
        self.options = options

    cdef int charge(self, uint64_t count) except -1:
        # Once over, always over: a hook may catch the error and ask again.
        if count > QUOTA - self.asked:
            self.asked = QUOTA
            raise RuntimeError(f"one hook asked for more than {QUOTA} blocks")
        self.asked += count
        return 0

    def prefetch(self, uint64_t block, uint64_t count=1):
        """Ask for `count` neighbouring blocks; returns how many were accepted.

        A block that is resident or on its way counts as accepted. One outside managed memory, or
        more than the queue holds, is refused.
        """
        cdef uint64_t i
        cdef uint32_t accepted = 0
        self.charge(count)
        for i in range(count):
            if block >= NONE or i >= NONE - block:
                self.engine.n.refused += 1
            elif self.engine.want(<uint32_t>(block + i), 0):
                accepted += 1
        return accepted

    def evict(self, uint64_t block, uint64_t count=1):
        """Free the frames of `count` neighbouring blocks; returns how many were accepted.

        Only resident blocks that no launched kernel is known to need can go. Contents are copied
        to the host first unless nothing in the block is alive.
        """
        cdef uint64_t i
        cdef uint32_t slot, accepted = 0
        self.charge(count)
        for i in range(count):
            slot = NONE
            if block < NONE and i < NONE - block:
                slot = self.engine.mem.slot_of(<uint32_t>(block + i))
            if slot != NONE and self.engine.may_evict(slot):
                self.engine.evict(slot, False)
                accepted += 1
            else:
                self.engine.n.refused += 1
        return accepted

    def use_in_place(self, uint64_t block, uint64_t count=1):
        """Let kernels use `count` blocks on the host, over the bus; returns how many were accepted.

        Holds where a block is not resident, until nothing in it is allocated any more. A backend
        that cannot do it brings the block on a fault, as ever.
        """
        cdef uint64_t i
        cdef uint32_t slot, accepted = 0
        self.charge(count)
        for i in range(count):
            slot = NONE
            if block < NONE and i < NONE - block:
                slot = self.engine.mem.slot_of(<uint32_t>(block + i))
            if slot == NONE:
                self.engine.n.refused += 1
            else:
                self.engine.mem.at(slot).flags |= IN_PLACE
                accepted += 1
        return accepted

    def wait_for_evictions(self):
        """Let no prefetch begin and no kernel start before the evictions asked for have ended.

        Kernels wait only where the policy has `plain_memory`; prefetches always do.
        """
        self.engine.fenced = self.engine.mem.outgoing > 0

    def wait_for_kernels(self):
        """Let what was asked for now begin to move only when the kernels before have ended.

        Matters with `plain_memory`, where the program runs ahead of its kernels. Evictions
        always wait for them.
        """
        self.engine.behind = True

    def is_resident(self, uint64_t block):
        """Tell whether the block is on the device now."""
        cdef uint32_t slot
        if block >= NONE:
            return False
        slot = self.engine.mem.slot_of(<uint32_t>block)
        return slot != NONE and self.engine.mem.at(slot).state == RESIDENT

    def predict(self, uint64_t exec_id, Py_ssize_t depth=1):
        """Return up to `depth` execution IDs expected after a kernel, nearest first."""
        return self.engine.correlator.predict(exec_id, depth)

    def blocks_of(self, uint64_t exec_id):
        """Return the blocks learnt for a kernel, in the order it faulted on them."""
        return self.engine.correlator.blocks_of(exec_id)

    @property
    def budget_blocks(self):
        """Frames that may be in use."""
        return self.engine.mem.budget

    @property
    def free_blocks(self):
        """Frames not in use now."""
        return self.engine.mem.frames_free()

    @property
    def resident_blocks(self):
        """Blocks on the device, least recently migrated first; those wholly inactive first."""
        return self.engine.resident_blocks()

    @property
    def running(self):
        """The running kernel, a `Launch`, or None."""
        if self.engine.launched == self.engine.completed:
            return None
        return launch_of(self.engine, self.engine.completed + 1, False)


@cython.final
cdef class PythonPolicy(NativePolicy):
    """Calls the hooks that a `deepum.Policy` overrides, after its native part if it has one.

    Parameters
    ----------
    policy : deepum.Policy
    native : NativePolicy or None
        What a built-in policy does by itself.
    hooks : set of str
        Names of the hooks to call.
    set_aside : callable
        Called with the reason when the policy has lost its job.
    """

    cdef object policy, set_aside
    cdef NativePolicy native
    cdef readonly object foresee   # the native part's, where a simulation may tell the future
    cdef View view
    cdef list victims
    cdef Py_ssize_t victim_at
    cdef bint calls_launch, calls_fault, calls_complete, calls_victims, broken
    cdef bint calls_alloc, calls_free
    cdef object launch_hook, fault_hook, complete_hook, victims_hook, alloc_hook, free_hook
    cdef double patience
    cdef uint64_t refused_run      # requests refused since a call without any

    def __init__(self, policy, NativePolicy native, hooks, set_aside, double patience=1.0):
        self.policy = policy
        self.native = native
        self.foresee = getattr(native, "foresee", None)
        self.set_aside = set_aside
        self.patience = patience
        self.name = policy.name
        self.learns = policy.learns
        self.pre_evicts = policy.pre_evicts
        self.invalidates = policy.invalidates
        self.plain_memory = policy.plain_memory
        self.wants_ranges = policy.wants_ranges
        self.queue = policy.queue
        self.calls_launch = "on_launch" in hooks
        self.calls_fault = "on_fault" in hooks
        self.calls_complete = "on_complete" in hooks
        self.calls_victims = "victims" in hooks
        self.calls_alloc = "on_alloc" in hooks
        self.calls_free = "on_free" in hooks
        self.launch_hook = policy.on_launch
        self.fault_hook = policy.on_fault
        self.complete_hook = policy.on_complete
        self.victims_hook = policy.victims
        self.alloc_hook = policy.on_alloc
        self.free_hook = policy.on_free
        self.victims = []

    cdef int attach(self, Engine engine) except -1:
        self.view = View(engine, dict(self.policy.options, depth=engine.depth))
        if self.native is not None:
            self.native.attach(engine)
        return 0

    cdef int fail(self, Engine engine, reason) except -1:
        if self.broken:
            return 0
        self.broken = True
        engine.set_policy(NoopPolicy())
        self.set_aside(self.policy, reason)
        return 0

    cdef int judge(self, Engine engine, double began, uint64_t refused) except -1:
        # Whether a hook that came back may be called again: it began then, with so many refused.
        cdef double took = time.perf_counter() - began
        if engine.n.refused == refused:
            self.refused_run = 0
        else:
            self.refused_run += engine.n.refused - refused
        if took > self.patience:
            return self.fail(engine, f"a hook took {took:.1f} s")
        if self.refused_run > MAX_REFUSED:
            return self.fail(engine, f"more than {MAX_REFUSED} requests in a row were refused")
        return 0

    cdef int call(self, Engine engine, hook, event) except -1:
        cdef double began = time.perf_counter()
        cdef uint64_t refused = engine.n.refused
        self.victims = []
        self.victim_at = 0
        self.view.asked = 0
        try:
            hook(self.view, event)
        except OutOfMemoryError:   # no fault of the policy's: what it models cannot go on
            raise
        except Exception as error:
            return self.fail(engine, error)
        return self.judge(engine, began, refused)

    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil:
        if self.native is not None:
            self.native.on_launch(engine, seq, kernel)
        if self.calls_launch and not self.broken:
            with gil:
                self.call(engine, self.launch_hook, launch_of(engine, seq, True))
        return 0

    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil:
        if self.native is not None:
            self.native.on_fault(engine, block)
        if self.calls_fault and not self.broken:
            with gil:
                self.call(engine, self.fault_hook, self.fault_event(engine, block))
        return 0

    cdef Fault fault_event(self, Engine engine, uint32_t block):
        cdef Fault fault = Fault.__new__(Fault)
        fault.block = block
        if engine.launched > engine.completed:
            fault.seq = engine.completed + 1
            fault.exec_id = engine.ring_exec[fault.seq % LAUNCH_RING]
        return fault

    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil:
        if self.native is not None:
            self.native.on_complete(engine, seq)
        if self.calls_complete and not self.broken:
            with gil:
                self.call(engine, self.complete_hook, launch_of(engine, seq, False))
        return 0

    cdef int on_alloc(
        self, Engine engine, uint64_t address, uint64_t size, uint8_t kind
    ) except -1 nogil:
        if self.native is not None:
            self.native.on_alloc(engine, address, size, kind)
        if self.calls_alloc and not self.broken:
            with gil:
                self.call(engine, self.alloc_hook, allocation_of(address, size, kind))
        return 0

    cdef int on_free(self, Engine engine, uint64_t address, uint64_t size) except -1 nogil:
        if self.native is not None:
            self.native.on_free(engine, address, size)
        if self.calls_free and not self.broken:
            with gil:
                self.call(engine, self.free_hook, allocation_of(address, size, 0))
        return 0

    cdef int advance(self, Engine engine) except -1 nogil:
        if self.native is not None and not self.broken:
            self.native.advance(engine)
        return 0

    cdef int64_t victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2 nogil:
        if self.calls_victims and not self.broken:
            with gil:
                return self.next_victim(engine, wanted, demand)
        if self.native is not None and not self.broken:
            return self.native.victim(engine, wanted, demand)
        return DEFAULT_ORDER

    cdef int64_t next_victim(
        self, Engine engine, uint32_t wanted, bint demand
    ) except? -2:
        # One answer of the hook serves the requests up to the next event.
        cdef uint32_t slot
        cdef uint64_t block, refused = engine.n.refused
        cdef int64_t chosen = DEFAULT_ORDER
        cdef double began = time.perf_counter()
        try:
            if self.victim_at >= len(self.victims):
                self.view.asked = 0
                answer = self.victims_hook(self.view, wanted)
                self.victims = [] if answer is None else list(itertools.islice(answer, wanted))
                self.victim_at = 0
            while self.victim_at < len(self.victims):
                block = self.victims[self.victim_at]
                self.victim_at += 1
                slot = NONE if block >= NONE else engine.mem.slot_of(<uint32_t>block)
                if slot != NONE and engine.may_evict(slot):
                    chosen = slot
                    break
                engine.n.refused += 1
        except Exception as error:
            self.fail(engine, error)
            return DEFAULT_ORDER
        self.judge(engine, began, refused)
        return DEFAULT_ORDER if self.broken else chosen

    cdef uint64_t bytes_used(self) noexcept nogil:
        if self.native is not None:
            return self.native.bytes_used()
        return 0

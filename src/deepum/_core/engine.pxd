# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from deepum._core.correlator cimport Correlator
from deepum._core.records cimport deepum_command, deepum_event
from deepum._core.residency cimport Block, List, Residency

cdef enum:
    QUEUE_BLOCKS = 1024        # prefetches that wait in the engine, unless more are asked for
    LAUNCH_RING = 4096         # launches submitted and not completed
    HURRY_COMMAND = 0x100      # a prefetch under way is waited for: no command of the interface's,
    #                            only movers that ask for it (`hurries`) see it
    DEFAULT_ORDER = -1         # a policy's answer: the engine's own choice of victim
    NOBODY = -3                # no victim

cdef enum Frame:
    TAKEN = 0                  # the block has a frame now
    WAIT_OUT = 1               # a frame comes free when an eviction ends
    WAIT_IN = 2                # a frame can be had when a move to the device ends
    NO_FRAME = 3               # every frame is held by what the running kernel needs


cdef struct Counters:
    uint64_t launches
    uint64_t faults            # blocks touched while not resident and not on their way
    uint64_t misses            # blocks found missing before the launch that named them ran
    uint64_t prefetched        # blocks moved ahead
    uint64_t prefetch_used     # of these, touched while resident
    uint64_t late              # of these, touched while queued or on their way
    uint64_t wasted            # of these, evicted or dropped untouched
    uint64_t pre_evicted       # evictions off the fault path
    uint64_t demand_evicted    # evictions on it
    uint64_t discarded         # blocks dropped without copying
    uint64_t refused           # commands of a policy that the engine did not let through


cdef class NativePolicy:
    cdef readonly str name
    cdef readonly bint learns       # keeps the correlation tables
    cdef readonly bint pre_evicts
    cdef readonly bint invalidates
    cdef readonly bint plain_memory  # no page faults: launches wait, empty frames cost nothing
    cdef readonly bint wants_ranges  # launches are to name the tensors they touch
    cdef readonly uint32_t queue    # prefetches that may wait at once; 0: the engine's choice
    cdef int attach(self, Engine engine) except -1
    cdef int on_launch(self, Engine engine, uint64_t seq, uint32_t kernel) except -1 nogil
    cdef int on_fault(self, Engine engine, uint32_t block) except -1 nogil
    cdef int on_complete(self, Engine engine, uint64_t seq) except -1 nogil
    cdef int on_alloc(
        self, Engine engine, uint64_t address, uint64_t size, uint8_t kind
    ) except -1 nogil
    cdef int on_free(self, Engine engine, uint64_t address, uint64_t size) except -1 nogil
    cdef int advance(self, Engine engine) except -1 nogil
    cdef int64_t victim(self, Engine engine, uint32_t wanted, bint demand) except? -2 nogil
    cdef uint64_t bytes_used(self) noexcept nogil


cdef class Engine:
    cdef Residency mem
    cdef readonly Correlator correlator
    cdef readonly NativePolicy policy
    cdef list retired               # policies set aside while one of their hooks may be running
    cdef Counters n
    # switches: what the user allows
    cdef bint allow_prefetch, allow_pre_evict, allow_invalidate
    # switches: what the user allows and the policy wants
    cdef bint prefetches, pre_evicts, invalidates
    cdef uint32_t low, high         # pre-eviction starts below low free frames and ends at high
    cdef uint32_t queue_limit       # prefetches that wait at once
    cdef uint32_t window            # blocks of prefetch on their way at once
    cdef uint32_t max_run           # neighbouring blocks in one command
    cdef uint32_t depth             # prefetch distance N, kernels
    cdef uint64_t launched, completed
    cdef uint32_t ring_kernel[LAUNCH_RING]
    cdef uint64_t ring_exec[LAUNCH_RING]
    cdef uint64_t pinned_now                # blocks that launched, uncompleted kernels need
    cdef int64_t pin_counts[LAUNCH_RING]    # of these, by the last launch that needs them
    cdef bint gated                         # launches wait for what they name
    cdef bint batches_demand                # frames for all faults that wait are freed at once
    cdef bint hurries                       # the mover is told which prefetches launches wait for
    cdef bint frees_early                   # memory is freed while launches may still use it
    cdef bint learns_allocations
    # Blocks found needed stay so until a launch completes: the next look goes on behind them.
    cdef bint keeps                 # nothing is evicted for now
    cdef bint barren                # every resident block is
    cdef uint32_t passed            # it and all that migrated before it are; NONE for none
    cdef uint64_t passed_stamp      # when it migrated, to know it by
    cdef bint drops_clean           # blocks that the host has a copy of leave without copying
    cdef bint follows               # the backend may move blocks on its own, and tells of it
    cdef bint auto_depth            # the depth is what most of the frames hold, not a count
    cdef uint32_t* fresh                   # blocks allocated since the last launch
    cdef uint32_t fresh_count, fresh_capacity
    cdef uint64_t* ranges                  # (address, bytes) pairs the next launch will touch
    cdef uint32_t range_count, range_capacity
    cdef uint32_t* queue                   # slots waiting to be prefetched
    cdef uint32_t queue_head, queue_size, queue_capacity
    cdef uint32_t queue_asked              # what the user wants of it; 0: the policy's wish
    cdef bint fenced                       # prefetches and launches wait for evictions
    cdef bint behind                       # what was asked for waits for kernels
    cdef uint32_t* demand                  # slots of faults that wait for a frame
    cdef uint32_t demand_head, demand_size, demand_capacity
    cdef deepum_command* commands
    cdef uint32_t command_count, command_capacity

    cdef uint64_t bytes_of_tables(self) noexcept nogil
    cdef int launch(self, uint64_t exec_id) except -1 nogil
    cdef int complete(self, uint64_t seq) except -1 nogil
    cdef int name_range(self, uint64_t address, uint64_t size) except -1 nogil
    cdef void pin(self, Block* b, uint64_t seq) noexcept nogil
    cdef int manage(
        self, uint64_t address, uint64_t size, bint resident, uint32_t chunk
    ) except -1 nogil
    cdef int demand_ranges(self) except -1 nogil
    cdef int demand_block(self, uint32_t slot) except -1 nogil
    cdef void pin_range(self, uint64_t address, uint64_t size, uint64_t seq) noexcept nogil
    cdef int fault(self, uint32_t slot) except -1 nogil
    cdef int take_frame(self, uint32_t slot) except -1 nogil
    cdef int hurry(self, uint32_t slot) except -1 nogil
    cdef int arrived(self, uint32_t slot) except -1 nogil
    cdef int stayed(self, uint32_t slot) except -1 nogil
    cdef int departed(self, uint32_t slot) except -1 nogil
    cdef int alloc(self, uint64_t address, uint64_t size, uint8_t kind=*) except -1 nogil
    cdef int note_fresh(self, uint32_t block) except -1 nogil
    cdef int free(self, uint64_t address, uint64_t size) except -1 nogil
    cdef int unmanage(self, uint64_t address, uint64_t size) except -1 nogil
    cdef int host_content(self, uint64_t address, uint64_t size) except -1 nogil

    cdef bint room(self) noexcept nogil
    cdef bint want(self, uint32_t block, uint64_t position) noexcept nogil
    cdef bint protects(self, uint32_t block, uint64_t position) noexcept nogil
    cdef bint may_evict(self, uint32_t slot) noexcept nogil
    cdef int evict(self, uint32_t slot, bint demand) except -1 nogil
    cdef bint unread(self, Block* b) noexcept nogil
    cdef bint expendable(self, Block* b) noexcept nogil
    cdef int64_t choose_victim(self, bint demand, uint32_t wanted) except? -2 nogil
    cdef int pump(self) except -1 nogil
    cdef int make_room(self) except -1 nogil
    cdef int issue(self) except -1 nogil
    cdef int serve_demand(self) except -1 nogil
    cdef int free_ahead(self) except -1 nogil
    cdef int say(
        self, uint32_t kind, uint32_t slot, uint8_t flags, uint64_t seq
    ) except -1 nogil
    cdef int feed_one(self, const deepum_event* event) except -1 nogil
    cdef uint32_t running_kernel(self) noexcept nogil
    cdef void refresh_switches(self) noexcept nogil
    cpdef void keep_contents(self) noexcept nogil
    cdef int size_queue(self) except -1
    cdef bint fence(self) noexcept nogil
    cdef void forget_wishes(self) noexcept nogil

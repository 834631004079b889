# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from deepum._core.memory_map cimport MemoryMap, PtBlock, Row
from deepum._core.records cimport deepum_event

cdef extern from "atomics.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, const void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t*, const void*)
    int pthread_cond_destroy(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    uint64_t deepum_load(const uint64_t* at)
    void deepum_store(uint64_t* at, uint64_t value)
    uint32_t deepum_load32(const uint32_t* at)
    void deepum_store32(uint32_t* at, uint32_t value)
    uint64_t deepum_add(uint64_t* at, uint64_t value)
    void deepum_sleep(uint64_t nanoseconds)
    void deepum_wake_sharply()
    uint64_t deepum_now()

# How execution IDs are made of words.
cdef inline uint64_t mix(uint64_t h, uint64_t word) noexcept nogil:
    h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 32)


# A thread between the two calls the driver on deepum's behalf: callbacks do not see that.
cdef int enter_driver() noexcept nogil
cdef void leave_driver() noexcept nogil

cdef enum:
    STREAMS = 1024         # streams whose progress is followed
    OUTSTANDING = 2048     # launches of one stream; the driver itself takes about half as many
    MAX_RANGES = 4096      # PT blocks that one launch may name
    INSIDE = 32            # threads in the midst of a launch on one stream
    STEP_EVENT = 0x100     # a step ends; the feed's own, the engine does not hear of it
    MARK_EVERY = 16        # launches, where few marks will do

ctypedef void (*Asker)(void*) noexcept nogil


cdef struct Segment:
    uint64_t address, size


cdef struct Stream:
    uint64_t handle
    uint64_t* launches     # numbers of those that have not been seen to finish
    uint64_t head, tail
    uint64_t newest        # the latest launch
    uint64_t marked        # what the stream is to write last
    uint64_t skipped       # what it could write, and was not told to
    uint64_t inside[INSIDE]        # launches that the program is submitting now
    uint32_t inside_count


cdef struct Ring:
    deepum_event* events
    uint64_t mask
    uint64_t head, tail    # taken, put


cdef class Feed:
    cdef pthread_mutex_t lock
    cdef MemoryMap map
    cdef Ring ring         # what the program does, in order
    cdef Ring faults       # what the device could not find; ahead of the program's own
    cdef uint64_t submitted        # launches told of
    cdef uint64_t opened           # launches whose gate is open, as the conductor knows
    cdef uint32_t gating           # whether launches wait behind gates
    cdef uint32_t attached         # whether somebody listens
    cdef uint64_t unseen           # launches not told of, for lack of room
    cdef uint64_t lost             # allocations and frees not told of, likewise
    cdef uint64_t managed          # bytes
    cdef uint64_t fault_records, faults_lost
    cdef uint32_t capturing        # CUDA graphs being captured
    cdef Stream streams[STREAMS]
    cdef uint32_t stream_count
    cdef uint32_t* nothing         # what `done` is while no device writes there
    cdef uint32_t* done            # per stream: low half of its last finished launch
    cdef uint32_t blind            # completion cannot be followed: take launches as finished
    cdef uint32_t rarely           # most launches go without a mark: nothing waits for them
    cdef bint owing                # the next launch to finish did; as `finished` found
    cdef Asker asker               # lets streams write what they were not told to; NULL: nobody can
    cdef void* asked
    # For memory that is not there unless it was brought: every launch has a gate, none is opened
    # for lack of patience, and none goes untold.
    cdef uint32_t exact
    cdef uint32_t free_run         # all there is is on the device: gates are open as they are made
    cdef uint64_t held_from        # launches up to this one were made while that was so
    cdef uint32_t blocking         # calls under way that no launch may come behind
    cdef uint32_t chunk            # blocks that move as one; 0: each by itself
    cdef uint32_t orphaned         # this process is a child: the memory is its parent's
    cdef PtBlock* captured         # what launches of captured graphs name
    cdef uint32_t captured_count, captured_capacity
    cdef Segment* segments         # managed memory
    cdef uint32_t segment_count, segment_capacity

    cdef bint put(self, Ring* ring, const deepum_event* event, uint64_t spare) noexcept nogil
    cdef uint64_t launch(
        self, uint64_t stream, uint64_t exec_id, uint64_t kernel, const uint64_t* pointers,
        uint32_t count, uint32_t* slot, bint graph=*
    ) noexcept nogil
    cdef uint64_t submit(self, uint32_t slot, uint64_t seq, bint surely) noexcept nogil
    cdef uint64_t owe(self, uint32_t slot) noexcept nogil
    cdef void let_mark_rarely(self, bint on) noexcept nogil
    cdef void ask(self) noexcept nogil
    cdef void capture(self, const uint64_t* pointers, uint32_t count) noexcept nogil
    cdef void block(self, int more) noexcept nogil
    cdef bint let_run(self) noexcept nogil
    cdef uint32_t find_stream(self, uint64_t handle) noexcept nogil
    cdef void say(
        self, uint32_t kind, uint64_t address, uint64_t size, uint8_t flags=*
    ) noexcept nogil
    cdef int manage(self, uint64_t address, uint64_t size, bint resident) except -1 nogil
    cdef uint64_t unmanage(self, uint64_t address) noexcept nogil
    cdef void end_all(self, uint64_t address, uint64_t size) noexcept nogil
    cdef int activate(self, uint64_t start, uint64_t size) except -1 nogil
    cdef int deactivate(self, uint64_t start) except -1 nogil
    cdef void fault(self, uint64_t address, uint8_t flags, uint64_t records=*) noexcept nogil
    cdef uint64_t finished(self) noexcept nogil
    cdef bint wait_open(self, uint64_t seq) noexcept nogil
    cdef bint settle(self) noexcept nogil

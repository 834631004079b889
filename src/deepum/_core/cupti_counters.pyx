# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Reads GPU faults from CUPTI's unified-memory counters, where the UVM driver's queue is closed.

CUPTI asks for buffers and hands them back filled, from threads of its own or from the one that
flushes: plain functions without the GIL, which stay valid as long as the process. It knows of one
such pair in a process, so there is one here.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

from deepum._core.feed cimport (
    Feed, deepum_add, deepum_load, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef enum:
    BUFFER_BYTES = 1 << 16
    UNIFIED_MEMORY = 25    # CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER
    GPU_PAGE_FAULT = 4
    READ = 1

# As CUPTI 13 lays it out; only what is read here.
cdef packed struct Record:
    uint32_t kind
    uint32_t counter
    uint64_t value         # faults of the page that were served together
    uint64_t start
    uint64_t end
    uint64_t address
    uint32_t source
    uint32_t destination
    uint32_t stream
    uint32_t process
    uint32_t flags         # how the page was accessed

ctypedef int (*next_record)(uint8_t* buffer, size_t valid, void** record) noexcept nogil

cdef Feed _feed = None
cdef bint _telling = False
cdef next_record _next = NULL
cdef uint64_t _buffers = 0     # handed out and not come back
cdef pthread_mutex_t _lock     # faults are told by one thread at a time
pthread_mutex_init(&_lock, NULL)


cdef void request(uint8_t** buffer, size_t* size, size_t* most) noexcept nogil:
    buffer[0] = <uint8_t*>malloc(BUFFER_BYTES)
    size[0] = BUFFER_BYTES if buffer[0] != NULL else 0
    most[0] = 0                # as many records as fit
    if buffer[0] != NULL:
        deepum_add(&_buffers, 1)


cdef void complete(
    void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid
) noexcept nogil:
    cdef void* found = NULL
    cdef Record* record
    pthread_mutex_lock(&_lock)
    while _telling and valid and _next(buffer, valid, &found) == 0:
        record = <Record*>found
        if record.kind == UNIFIED_MEMORY and record.counter == GPU_PAGE_FAULT:
            _feed.fault(record.address, record.flags != READ, max(<uint64_t>1, record.value))
    pthread_mutex_unlock(&_lock)
    free(buffer)
    deepum_add(&_buffers, <uint64_t>-1)


def callbacks():
    """Return the addresses of the two functions, for ``cuptiActivityRegisterCallbacks``."""
    return <uintptr_t>&request, <uintptr_t>&complete


def tell(Feed feed not None, uint64_t next_record_address):
    """Pass faults on to a feed; the second is the address of ``cuptiActivityGetNextRecord``."""
    global _feed, _next, _telling
    with nogil:
        pthread_mutex_lock(&_lock)
    _feed = feed
    _next = <next_record><uintptr_t>next_record_address
    _telling = True
    pthread_mutex_unlock(&_lock)


def tell_nobody():
    """Drop what still comes."""
    global _telling
    with nogil:
        pthread_mutex_lock(&_lock)
        _telling = False
        pthread_mutex_unlock(&_lock)


def buffers():
    """Return how many buffers CUPTI has."""
    return deepum_load(&_buffers)

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Managed memory for PyTorch's caching allocator, and the host words that streams write to.

The callbacks take no GIL and live as long as the process: memory outlives the session that it was
allocated in, and is freed whenever its last tensor dies.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from deepum._core.feed cimport Feed, enter_driver, leave_driver

from deepum.errors import BackendError

cdef uint64_t BLOCK = 1 << 21

cdef Feed _feed = None
cdef uint64_t _allowed = 0                 # bytes of managed memory that there may be
cdef uint64_t _filled = 0                  # up to so many get frames when they are allocated
cdef uint64_t _refused = 0                 # bytes of the last request that went over


cdef void* allocate(size_t size, int device, void* stream) noexcept nogil:
    # NULL makes the caching allocator free what it can and ask again, then raise OutOfMemoryError.
    global _refused
    cdef cydriver.CUdeviceptr address = 0
    cdef uint64_t whole = (size + BLOCK - 1) & ~(BLOCK - 1)
    cdef void* result = NULL
    cdef cydriver.CUmemLocation where
    cdef bint fits
    if size == 0:
        return NULL
    enter_driver()
    _feed.settle()
    if _feed.managed + whole > _allowed:
        _refused = whole
    elif cydriver.cuMemAllocManaged(
            &address, whole, cydriver.CU_MEM_ATTACH_GLOBAL) == cydriver.CUDA_SUCCESS:
        # Memory that fits gets its frames now: no kernel has to fault for them one by one.
        fits = _feed.managed + whole <= _filled
        if fits:
            where.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
            where.id = device
            fits = not cydriver.cuMemPrefetchAsync(
                address, whole, where, 0, <cydriver.CUstream>stream)
        _feed.manage(<uint64_t>address, whole, fits)
        result = <void*>address
    leave_driver()
    return result


cdef void release(void* pointer, size_t size, int device, void* stream) noexcept nogil:
    if pointer == NULL:
        return
    enter_driver()
    _feed.settle()
    _feed.unmanage(<uint64_t>pointer)
    cydriver.cuMemFree(<cydriver.CUdeviceptr>pointer)
    leave_driver()


cdef void on_alloc(uint64_t address, uint64_t size) noexcept nogil:
    _feed.activate(address, size)


cdef void on_free(uint64_t address) noexcept nogil:
    _feed.deactivate(address)


def use_feed(Feed feed not None):
    """Set whom the callbacks tell; for the whole life of the process."""
    global _feed
    _feed = feed


def allow(uint64_t size, uint64_t filled):
    """Set how many bytes of managed memory there may be; forget what was refused.

    The first `filled` bytes get their frames when they are allocated, the others when touched.
    """
    global _allowed, _filled, _refused
    _allowed = size
    _filled = filled
    _refused = 0


def refused():
    """Return the bytes of the last request that went over what is allowed, 0 if none did."""
    return _refused


def callbacks():
    """Return the addresses of allocate, free, on_alloc and on_free."""
    return (<uintptr_t>&allocate, <uintptr_t>&release, <uintptr_t>&on_alloc, <uintptr_t>&on_free)


def host_words(size_t size):
    """Allocate zeroed host memory that the device can write; return both its addresses."""
    cdef void* host = NULL
    cdef cydriver.CUdeviceptr device = 0
    cdef int status
    with nogil:
        status = cydriver.cuMemHostAlloc(
            &host, size, cydriver.CU_MEMHOSTALLOC_PORTABLE | cydriver.CU_MEMHOSTALLOC_DEVICEMAP)
        if not status:
            memset(host, 0, size)
            status = cydriver.cuMemHostGetDevicePointer(&device, host, 0)
    if status:
        raise BackendError(f"the driver gives no host memory for the device to write ({status})")
    return <uintptr_t>host, <uint64_t>device


def free_host_words(uint64_t host):
    """Give back what `host_words` gave; the device must have written its last."""
    with nogil:
        cydriver.cuMemFreeHost(<void*><uintptr_t>host)


def current_context():
    """Return the CUDA context of this thread, 0 if it has none."""
    cdef cydriver.CUcontext context = NULL
    cydriver.cuCtxGetCurrent(&context)
    return <uintptr_t>context


def park(Feed feed not None):
    """Move all managed memory to the host; return the bytes."""
    cdef cydriver.CUmemLocation where
    cdef uint64_t total = 0
    cdef uint32_t i
    cdef int status = 0
    where.type = cydriver.CU_MEM_LOCATION_TYPE_HOST
    where.id = 0
    with nogil:
        enter_driver()
        for i in range(feed.segment_count):
            status = cydriver.cuMemPrefetchAsync(
                <cydriver.CUdeviceptr>feed.segments[i].address, feed.segments[i].size, where, 0,
                NULL)
            if status:
                break
            total += feed.segments[i].size
        if not status:
            status = cydriver.cuStreamSynchronize(NULL)
        leave_driver()
    if status:
        raise BackendError(f"managed memory could not be moved to the host (CUDA error {status})")
    return total

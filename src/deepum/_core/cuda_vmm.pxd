# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.block_queue cimport Queue
from deepum._core.chunk_map cimport Chunk, ChunkMap
from deepum._core.feed cimport Feed, pthread_mutex_t
from deepum._core.frame_pool cimport CLASSES, FramePool
from deepum._core.host_pool cimport HostPool
from deepum._core.host_slabs cimport HostSlabs

# What a request for a frame may come back with, beside the driver's errors.
cdef enum:
    LATER = -1             # all are in use

cdef enum:
    MOST_STUCK = 8         # digests that do not end


cdef class VmmMemory:
    cdef readonly Feed feed
    cdef ChunkMap map
    cdef FramePool frames
    cdef HostPool hosts
    cdef readonly HostSlabs slabs          # what they are made of ...
    cdef uint32_t registers                # ... unless it cannot be pinned where it lies
    cdef pthread_mutex_t lock      # all of these, and every chunk's state
    cdef pthread_mutex_t pinning   # held while a slab is pinned
    cdef pthread_mutex_t placing   # held while a segment is made
    cdef cydriver.CUcontext context
    cdef int device
    cdef cydriver.CUmemAllocationProp on_device, on_host
    cdef cydriver.CUmemAccessDesc access
    cdef cydriver.CUdeviceptr base         # the address space
    cdef uint64_t span                     # of so many bytes
    cdef uint64_t aliases[CLASSES]         # where the frames of a class are always mapped
    cdef cydriver.CUdeviceptr alias_base
    cdef uint64_t alias_span
    cdef readonly uint64_t allowed         # bytes of segments there may be
    cdef readonly uint64_t refused         # bytes of the last request that went over
    cdef cydriver.CUstream stream          # for what is waited for
    cdef uint64_t more                     # blocks that the host has room for beside what is away
    cdef Queue doubtful            # chunks whose place on the host may be taken
    cdef uint32_t stuck[MOST_STUCK]        # frames whose alias a digest may read yet
    cdef uint32_t stuck_count
    cdef uint32_t held[MOST_STUCK]         # those of them that were to be broken up
    cdef uint32_t held_count
    cdef uint64_t top                      # no segment ever lay beyond this block
    cdef const char* wrong                 # what failed for good
    cdef int status                        # the driver's word on it

    cdef void fail(self, const char* what, int status) noexcept nogil
    cdef const char* failed(self) noexcept nogil
    cdef uint64_t address_of(self, Chunk* chunk) noexcept nogil
    cdef uint64_t alias_of(self, uint32_t frame) noexcept nogil
    cdef uint64_t handle_of(self, uint32_t frame) noexcept nogil
    cdef int make_frame(self, uint32_t size, uint32_t* frame) noexcept nogil
    cdef int fill_frame(self, uint32_t frame) noexcept nogil
    cdef void empty_frame(self, uint32_t frame) noexcept nogil
    cdef void shed(self) noexcept nogil
    cdef void give_frame(self, uint32_t frame) noexcept nogil
    cdef int map_chunk(self, Chunk* chunk, uint64_t handle) noexcept nogil
    cdef int unmap_chunk(self, Chunk* chunk) noexcept nogil
    cdef uint32_t host_place(self, uint32_t size) noexcept nogil
    cdef uint64_t host_address(self, uint32_t place) noexcept nogil
    cdef bint pin_slab(self) noexcept nogil
    cdef uint64_t pinned_slab(self, bint* registered) noexcept nogil
    cdef void free_slab(self, uint64_t address, bint registered) noexcept nogil
    cdef bint wants_slab(self, uint64_t need) noexcept nogil
    cdef void make_host_room(self, uint64_t blocks) noexcept nogil
    cdef void forget_host(self, Chunk* chunk) noexcept nogil
    cdef void doubt(self, Chunk* chunk) noexcept nogil
    cdef bint reclaim(self) noexcept nogil
    cdef bint hold(self, uint32_t frame) noexcept nogil
    cdef void come_loose(self) noexcept nogil
    cdef int lend(self, Chunk* chunk, bint device) noexcept nogil
    cdef int take_back(self, Chunk* chunk) noexcept nogil
    cdef int bring(self, Chunk* chunk) noexcept nogil
    cdef int send(self, Chunk* chunk) noexcept nogil
    cdef void clear(self, Chunk* chunk) noexcept nogil
    cdef void* new_segment(self, uint64_t blocks) noexcept nogil
    cdef void drop_segment(self, uint64_t address, uint64_t size) noexcept nogil
    cdef bint lives(self, Chunk* chunk) noexcept nogil
    cdef bint owned(self, uint64_t block) noexcept nogil

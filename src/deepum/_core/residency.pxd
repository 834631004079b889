# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    LEAF_BITS = 10
    LEAF_BLOCKS = 1024

cdef enum State:
    ABSENT = 0             # no frame; contents, if any, are on the host
    INCOMING = 1           # has a frame, contents on the way
    RESIDENT = 2
    OUTGOING = 3           # still has its frame, contents on the way out

cdef enum Flag:
    MANAGED = 1            # lies in a range the engine knows
    CONTENT = 2            # holds data that must not be lost
    AHEAD = 4              # prefetched and not touched since
    QUEUED = 8             # waits in the engine's prefetch queue
    ON_DEAD_LIST = 16      # in the list of inactive blocks instead of the migration list
    DIRTY = 32             # the host has no copy of its contents, or an old one
    DEMANDED = 64          # waits in the engine's list of what cannot wait
    IN_PLACE = 128         # kernels use it on the host, over the bus, where it is not resident


cdef struct Block:
    uint32_t before, after  # neighbours in the migration list or the dead list
    uint64_t needed        # last launch predicted to need it: protected until that completes
    uint64_t pinned        # last launch known to need it: never evicted before that completes
    uint64_t freed         # last launch that may use it though nothing in it is active
    uint64_t written       # last launch that may write it, where a backend knows
    uint64_t stamp         # when it migrated last, a count
    int32_t active         # bytes of active PT blocks in it
    uint8_t state
    uint8_t flags
    uint16_t filled        # 4 KiB pages of it on the device, where a backend knows: 0 is all
    uint8_t lead           # blocks between the first of its chunk and it
    uint8_t more           # blocks of its chunk beside it, in the first one's entry


cdef struct List:
    uint32_t head, tail
    uint32_t size          # blocks


cdef uint64_t chunk_blocks(uint64_t block, uint64_t left, uint64_t most) noexcept nogil


cdef class Residency:
    cdef Block** leaves
    cdef uint32_t* leaf_key        # block >> LEAF_BITS of each leaf
    cdef uint32_t leaf_count, leaf_capacity
    cdef uint32_t* leaf_index      # open addressing: key -> leaf
    cdef uint32_t leaf_mask
    cdef uint32_t cached_key, cached_leaf
    cdef readonly uint64_t budget  # frames
    cdef uint64_t incoming, outgoing
    cdef uint64_t managed          # blocks in known ranges
    cdef List migrated             # resident blocks, least recently migrated first
    cdef List dead                 # resident inactive blocks, first freed first
    cdef uint64_t clock
    cdef bint chunked              # whether there are chunks of several blocks
    cdef uint64_t active_bytes

    cdef uint32_t find_leaf(self, uint32_t key) noexcept nogil
    cdef int add_leaf(self, uint32_t key) except -1 nogil
    cdef uint32_t slot_of(self, uint32_t block) noexcept nogil
    cdef uint32_t block_of(self, uint32_t slot) noexcept nogil
    cdef uint32_t frames(self, uint32_t slot) noexcept nogil
    cdef uint64_t past(self, uint64_t block, uint32_t slot) noexcept nogil
    cdef uint32_t lead_of(self, uint32_t block) noexcept nogil
    cdef Block* at(self, uint32_t slot) noexcept nogil
    cdef int manage(self, uint64_t address, uint64_t size, uint32_t chunk=*) except -1 nogil
    cdef void unlink(self, uint32_t slot) noexcept nogil
    cdef void append(self, List* where, uint32_t slot) noexcept nogil
    cdef uint64_t frames_used(self) noexcept nogil
    cdef int64_t frames_free(self) noexcept nogil
    cdef void begin_in(self, uint32_t slot) noexcept nogil
    cdef void end_in(self, uint32_t slot) noexcept nogil
    cdef void begin_out(self, uint32_t slot) noexcept nogil
    cdef void end_out(self, uint32_t slot) noexcept nogil
    cdef void drop(self, uint32_t slot) noexcept nogil
    cdef void set_dead(self, uint32_t slot, bint dead) noexcept nogil

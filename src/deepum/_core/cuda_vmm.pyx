# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Memory whose addresses stay and whose frames change: reserved addresses, physical chunks.

PyTorch's segments lie in one reserved range. A chunk of them is mapped only while its contents are
whole and on the device, so whatever touches it at another time is stopped by the driver. Every
frame has an alias besides, an address of its own that stays: copies go there, so that they need
not be finished, or begun, while the program can see the chunk.

The callbacks take no GIL and live as long as the process; so does the memory.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

from deepum._core.block_queue cimport queue_at, queue_put
from deepum._core.chunk_map cimport (
    AWAY, IN_HOST, MAPPED, Chunk, ChunkMap, blocks_of,
)
from deepum._core.feed cimport (
    Feed, deepum_load, deepum_load32, deepum_sleep, deepum_store, deepum_store32, enter_driver,
    leave_driver, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from deepum._core.frame_pool cimport (
    CLASSES, FRAME_BREAK, FRAME_MAKE, FRAME_TAKEN, NO_FRAME_AT_ALL, Answer, FramePool,
    frame_class, frame_place,
)
from deepum._core.host_pool cimport NO_ROOM, SLAB_BLOCKS, HostPool
from deepum._core.host_slabs cimport HostSlabs
from deepum._core.memory_map cimport Row

from deepum.errors import BackendError, DeepUMError

cdef uint64_t BLOCK = 1 << 21
cdef uint64_t LARGEST = 64             # blocks: what addresses are aligned to
cdef int TRIES = 4                     # of a call that fails
cdef uint64_t AHEAD = 8                # slabs that are made before they are needed

cdef VmmMemory _memory = None          # the process's


cdef void* allocate(size_t size, int device, void* stream) noexcept nogil:
    # NULL makes the caching allocator free what it can and ask again, then raise OutOfMemoryError.
    cdef void* result = NULL
    cdef uint64_t blocks = (size + BLOCK - 1) // BLOCK
    if size == 0 or _memory.feed.orphaned:
        return NULL
    enter_driver()
    pthread_mutex_lock(&_memory.placing)
    if deepum_load(&_memory.feed.managed) + blocks * BLOCK > _memory.allowed:
        _memory.refused = blocks * BLOCK
    else:
        _memory.make_host_room(blocks)
        result = _memory.new_segment(blocks)
    pthread_mutex_unlock(&_memory.placing)
    leave_driver()
    return result


cdef void release(void* pointer, size_t size, int device, void* stream) noexcept nogil:
    if pointer == NULL or _memory.feed.orphaned:
        return
    enter_driver()
    size = _memory.feed.unmanage(<uint64_t>pointer)
    # While somebody listens it is the conductor that takes it away, behind what still runs.
    if size and not deepum_load32(&_memory.feed.attached):
        cydriver.cuCtxSynchronize()
        _memory.drop_segment(<uint64_t>pointer, size)
        _memory.shed()
    leave_driver()


cdef class VmmMemory:
    """All the memory of that kind in a process.

    Parameters
    ----------
    feed : Feed
        Who is told.
    device : int
        CUDA ordinal.
    """

    def __cinit__(self, Feed feed not None, int device):
        pthread_mutex_init(&self.lock, NULL)
        pthread_mutex_init(&self.pinning, NULL)
        pthread_mutex_init(&self.placing, NULL)
        self.feed = feed
        self.device = device
        memset(&self.on_device, 0, sizeof(self.on_device))
        self.on_device.type = cydriver.CU_MEM_ALLOCATION_TYPE_PINNED
        self.on_device.location.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
        self.on_device.location.id = device
        self.on_host = self.on_device
        self.on_host.location.type = cydriver.CU_MEM_LOCATION_TYPE_HOST_NUMA
        self.on_host.location.id = 0
        memset(&self.access, 0, sizeof(self.access))
        self.access.location = self.on_device.location
        self.access.flags = cydriver.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.hosts = HostPool(0)
        self.slabs = HostSlabs(SLAB_BLOCKS * BLOCK)

    def __dealloc__(self):
        free(self.doubtful.entries)

    def begin(
        self, uint64_t context, uint64_t budget, uint64_t host, uint64_t allowed, uint32_t chunk,
        uint64_t more=0,
    ):
        """Prepare for a session.

        Parameters
        ----------
        context : int
            Its CUDA context.
        budget, host, allowed : int
            Bytes on the device, pinned bytes on the host, bytes of segments.
        chunk : int
            The most blocks that move as one.
        more : int
            Bytes of host memory for copies of what is on the device.
        """
        cdef int status, i
        cdef uint64_t blocks = (budget // BLOCK + LARGEST - 1) // LARGEST * LARGEST, size
        self.context = <cydriver.CUcontext>context
        self.wrong = NULL
        self.refused = 0
        self.allowed = allowed
        deepum_store32(&self.registers, 1)
        self.hosts.limit = host // BLOCK
        self.more = more // BLOCK
        if self.map is not None and self.map.largest != chunk:
            if self.feed.segment_count:
                raise DeepUMError(
                    "memory of another session lives that was divided into other chunks: the same "
                    f"chunk_mib is needed, {self.map.largest * 2}")
            self.map = ChunkMap(self.base // BLOCK, self.span // BLOCK, chunk)
        if self.map is None:
            size = <uint64_t>1 << 41
            status = 1
            with nogil:
                while status and size > 2 * allowed:
                    status = cydriver.cuMemAddressReserve(
                        &self.base, size, LARGEST * BLOCK, 0, 0)
                    if status:
                        size >>= 1
            if status:
                raise BackendError(f"the driver reserves no addresses (CUDA error {status})")
            self.span = size
            self.map = ChunkMap(self.base // BLOCK, size // BLOCK, chunk)
        with nogil:
            status = cydriver.cuStreamCreate(&self.stream, cydriver.CU_STREAM_NON_BLOCKING)
        if status:
            raise BackendError(f"the driver makes no stream (CUDA error {status})")
        self.put_away()
        if self.frames is not None:
            with nogil:
                self.shed()
        size = CLASSES * (blocks + LARGEST) * BLOCK
        with nogil:
            status = cydriver.cuMemAddressReserve(
                &self.alias_base, size, LARGEST * BLOCK, 0, 0)
        if status:
            raise BackendError(f"the driver reserves no addresses (CUDA error {status})")
        self.alias_span = size
        for i in range(CLASSES):
            self.aliases[i] = self.alias_base + i * (blocks + LARGEST) * BLOCK
        self.frames = FramePool(budget // BLOCK)

    cdef void fail(self, const char* what, int status) noexcept nogil:
        if self.failed() == NULL:
            self.status = status
            deepum_store(<uint64_t*>&self.wrong, <uint64_t>what)

    cdef const char* failed(self) noexcept nogil:
        return <const char*>deepum_load(<uint64_t*>&self.wrong)

    cdef uint64_t address_of(self, Chunk* chunk) noexcept nogil:
        return self.map.block_of(chunk) * BLOCK

    # -- frames ------------------------------------------------------------------------------------

    cdef uint64_t alias_of(self, uint32_t frame) noexcept nogil:
        return (self.aliases[frame_class(frame)]
                + (<uint64_t>frame_place(frame) << frame_class(frame)) * BLOCK)

    cdef uint64_t handle_of(self, uint32_t frame) noexcept nogil:
        # The table may be growing in another thread.
        cdef uint64_t handle
        pthread_mutex_lock(&self.lock)
        handle = self.frames.handle(frame)
        pthread_mutex_unlock(&self.lock)
        return handle

    cdef int make_frame(self, uint32_t size, uint32_t* frame) noexcept nogil:
        # Get a frame of a class: 0, LATER, or the driver's error.
        cdef Answer answer
        cdef int status
        while True:
            pthread_mutex_lock(&self.lock)
            answer = self.frames.take(size, frame)
            while answer == FRAME_BREAK and self.hold(frame[0]):
                answer = self.frames.take(size, frame)
            if answer == FRAME_MAKE:
                frame[0] = self.frames.add(size, 0)    # counted before it is there
            pthread_mutex_unlock(&self.lock)
            if answer == FRAME_TAKEN:
                return 0
            if answer == FRAME_BREAK:
                self.empty_frame(frame[0])
                continue
            if answer != FRAME_MAKE:
                return LATER
            if frame[0] == NO_FRAME_AT_ALL:
                return cydriver.CUDA_ERROR_OUT_OF_MEMORY
            status = self.fill_frame(frame[0])
            if status:
                pthread_mutex_lock(&self.lock)
                self.frames.remove(frame[0])
                pthread_mutex_unlock(&self.lock)
            return status

    cdef int fill_frame(self, uint32_t frame) noexcept nogil:
        cdef cydriver.CUmemGenericAllocationHandle handle = 0
        cdef uint64_t size = BLOCK << frame_class(frame)
        cdef int status = cydriver.cuMemCreate(&handle, size, &self.on_device, 0)
        if status:
            return status
        status = cydriver.cuMemMap(self.alias_of(frame), size, 0, handle, 0)
        if not status:
            status = cydriver.cuMemSetAccess(self.alias_of(frame), size, &self.access, 1)
            if status:
                cydriver.cuMemUnmap(self.alias_of(frame), size)
        if status:
            cydriver.cuMemRelease(handle)
            return status
        pthread_mutex_lock(&self.lock)
        self.frames.places[frame_class(frame)].handles[frame_place(frame)] = handle
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef void empty_frame(self, uint32_t frame) noexcept nogil:
        # A frame that nobody uses is to be no more.
        cdef uint64_t handle = self.handle_of(frame)
        cydriver.cuMemUnmap(self.alias_of(frame), BLOCK << frame_class(frame))
        cydriver.cuMemRelease(handle)
        pthread_mutex_lock(&self.lock)
        self.frames.remove(frame)
        pthread_mutex_unlock(&self.lock)

    cdef void give_frame(self, uint32_t frame) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        self.frames.give(frame)
        pthread_mutex_unlock(&self.lock)

    cdef bint hold(self, uint32_t frame) noexcept nogil:
        # With the lock held: a frame is to be broken up. If a digest may read its alias yet it
        # stays as it is, and there may be as much memory besides: what wants a frame may be what
        # opens the gate that the digest waits behind.
        cdef uint32_t i
        for i in range(self.stuck_count):
            if self.stuck[i] == frame:
                self.held[self.held_count] = frame
                self.held_count += 1
                self.frames.beyond += <uint64_t>1 << frame_class(frame)
                return True
        return False

    cdef void come_loose(self) noexcept nogil:
        # The digests have ended. What there is beyond the budget goes as frames are broken up.
        pthread_mutex_lock(&self.lock)
        self.stuck_count = 0
        while self.held_count:
            self.held_count -= 1
            self.frames.give(self.held[self.held_count])
        self.frames.beyond = 0
        pthread_mutex_unlock(&self.lock)

    cdef void shed(self) noexcept nogil:
        # Give back what nothing is in, while no session needs it.
        cdef uint32_t frame
        cdef uint64_t slab = 1
        cdef bint registered = False
        enter_driver()
        while True:
            pthread_mutex_lock(&self.lock)
            frame = self.frames.spare(CLASSES)
            pthread_mutex_unlock(&self.lock)
            if frame == NO_FRAME_AT_ALL:
                break
            self.empty_frame(frame)
        if self.frames.made == 0 and self.alias_span:
            cydriver.cuMemAddressFree(self.alias_base, self.alias_span)
            self.alias_span = 0
        while slab:                # not with the lock held: the driver waits for the device
            pthread_mutex_lock(&self.lock)
            slab = self.hosts.remove(&registered)
            pthread_mutex_unlock(&self.lock)
            if slab:
                self.free_slab(slab, registered)
        leave_driver()

    cdef int map_chunk(self, Chunk* chunk, uint64_t handle) noexcept nogil:
        # From now on the program sees it.
        cdef uint64_t address = self.address_of(chunk), size = blocks_of(chunk) * BLOCK
        cdef int status = 1, tries = 0
        while status and tries < TRIES:
            if tries:
                deepum_sleep(1000000)
            tries += 1
            status = cydriver.cuMemMap(address, size, 0, handle, 0)
            if not status:
                status = cydriver.cuMemSetAccess(address, size, &self.access, 1)
                if status:
                    cydriver.cuMemUnmap(address, size)
        return status

    cdef int unmap_chunk(self, Chunk* chunk) noexcept nogil:
        cdef int status = 1, tries = 0
        while status and tries < TRIES:
            if tries:
                deepum_sleep(1000000)
            tries += 1
            status = cydriver.cuMemUnmap(self.address_of(chunk), blocks_of(chunk) * BLOCK)
        return status

    # -- places on the host ------------------------------------------------------------------------

    cdef uint32_t host_place(self, uint32_t size) noexcept nogil:
        # A place for a chunk of a class; NO_ROOM if there is none. Pinning takes its time.
        cdef uint32_t place
        while True:
            pthread_mutex_lock(&self.lock)
            place = self.hosts.take(size)
            while place == NO_ROOM and self.reclaim():
                place = self.hosts.take(size)
            pthread_mutex_unlock(&self.lock)
            if place != NO_ROOM or not self.pin_slab():
                return place

    cdef uint64_t host_address(self, uint32_t place) noexcept nogil:
        # Slabs may be coming in another thread.
        cdef uint64_t address
        pthread_mutex_lock(&self.lock)
        address = self.hosts.address(place)
        pthread_mutex_unlock(&self.lock)
        return address

    cdef bint pin_slab(self) noexcept nogil:
        cdef uint64_t slab = 0
        cdef bint grows, registered = False
        pthread_mutex_lock(&self.pinning)
        pthread_mutex_lock(&self.lock)
        grows = self.hosts.may_grow()
        pthread_mutex_unlock(&self.lock)
        if grows:
            slab = self.pinned_slab(&registered)
            if not slab:           # it may be a matter of a moment
                deepum_sleep(1000000)
                slab = self.pinned_slab(&registered)
            grows = slab != 0
        if grows:
            pthread_mutex_lock(&self.lock)
            grows = self.hosts.add(slab, registered)
            pthread_mutex_unlock(&self.lock)
            if not grows:
                self.free_slab(slab, registered)
        pthread_mutex_unlock(&self.pinning)
        return grows

    cdef uint64_t pinned_slab(self, bint* registered) noexcept nogil:
        # Memory whose pages are there already is pinned fastest. Not every system allows that.
        cdef uint64_t address = self.slabs.take() if deepum_load32(&self.registers) else 0
        cdef void* memory = NULL
        registered[0] = address != 0 and not cydriver.cuMemHostRegister(
            <void*>address, self.slabs.size, cydriver.CU_MEMHOSTREGISTER_PORTABLE)
        if registered[0]:
            return address
        if address:
            deepum_store32(&self.registers, 0)
            self.slabs.give(address)
            self.slabs.give_up()
        cydriver.cuMemHostAlloc(&memory, self.slabs.size, cydriver.CU_MEMHOSTALLOC_PORTABLE)
        return <uint64_t>memory

    cdef void free_slab(self, uint64_t address, bint registered) noexcept nogil:
        if not registered:
            cydriver.cuMemFreeHost(<void*>address)
        elif not cydriver.cuMemHostUnregister(<void*>address):
            self.slabs.give(address)       # else the device may still use it

    cdef void make_host_room(self, uint64_t blocks) noexcept nogil:
        # Pin what a segment more may need. The driver may wait for the device to do that, so it is
        # done here, with all gates open, and not when something has to leave for a gate to open.
        cdef uint64_t need = deepum_load(&self.feed.managed) // BLOCK + blocks
        if need <= self.frames.budget:
            return
        need -= self.frames.budget
        need += need // 16 + self.frames.budget // 8 + 4 * self.map.largest + self.more
        if not self.wants_slab(need):
            return
        if deepum_load32(&self.registers):
            self.slabs.want(min(need // SLAB_BLOCKS + 1 + AHEAD, self.hosts.limit // SLAB_BLOCKS))
        self.feed.block(1)
        self.feed.settle()
        while self.wants_slab(need) and self.pin_slab():
            pass
        self.feed.block(-1)

    cdef bint wants_slab(self, uint64_t need) noexcept nogil:
        # Whether there are fewer pinned blocks than that, and may be more.
        cdef bint wants
        pthread_mutex_lock(&self.lock)
        wants = self.hosts.count * SLAB_BLOCKS < need and self.hosts.may_grow()
        pthread_mutex_unlock(&self.lock)
        return wants

    cdef void forget_host(self, Chunk* chunk) noexcept nogil:
        # With the lock held: what the host has of a chunk is of no use any more.
        if chunk.host != NO_ROOM:
            self.hosts.give(chunk.host, chunk.size)
            chunk.host = NO_ROOM
        chunk.hashed = chunk.doubtful = False

    cdef void doubt(self, Chunk* chunk) noexcept nogil:
        # With the lock held: a chunk on the device may be written. What the host has is compared
        # when it leaves, unless its place is needed sooner or nothing can tell.
        if not chunk.hashed:
            self.forget_host(chunk)
            return
        chunk.doubtful = True
        if not chunk.listed:
            if queue_put(&self.doubtful, self.map.block_of(chunk), 0):
                chunk.listed = True
            else:
                self.forget_host(chunk)

    cdef bint reclaim(self) noexcept nogil:
        # With the lock held: give up a copy on the host that nobody counts on. False if there is
        # none.
        cdef Chunk* chunk
        while self.doubtful.head != self.doubtful.tail:
            chunk = &self.map.chunks[
                queue_at(&self.doubtful, self.doubtful.head).block - self.map.first]
            self.doubtful.head += 1
            chunk.listed = False
            if chunk.state == MAPPED and chunk.doubtful:
                self.forget_host(chunk)
                return True
        return False

    # -- chunks, one at a time and waited for ------------------------------------------------------

    cdef int lend(self, Chunk* chunk, bint device) noexcept nogil:
        # Map a chunk that is away, with what is in it, to memory of its own: the host's, or the
        # device's beyond the budget.
        cdef cydriver.CUmemGenericAllocationHandle handle = 0
        cdef uint64_t size = blocks_of(chunk) * BLOCK
        cdef int status = cydriver.cuMemCreate(
            &handle, size, &self.on_device if device else &self.on_host, 0)
        if status:
            return status
        status = self.map_chunk(chunk, handle)
        if status:
            cydriver.cuMemRelease(handle)
            return status
        if chunk.host != NO_ROOM:
            status = cydriver.cuMemcpyHtoDAsync(
                self.address_of(chunk), <void*>self.host_address(chunk.host), size, self.stream)
            if not status:
                status = cydriver.cuStreamSynchronize(self.stream)
        if status:
            self.unmap_chunk(chunk)
            cydriver.cuMemRelease(handle)
            return status
        pthread_mutex_lock(&self.lock)
        chunk.handle = handle
        chunk.state = IN_HOST
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef int take_back(self, Chunk* chunk) noexcept nogil:
        # End that; what is in it goes to its place.
        cdef int status
        if chunk.host == NO_ROOM:
            chunk.host = self.host_place(chunk.size)
        if chunk.host == NO_ROOM:
            return cydriver.CUDA_ERROR_OUT_OF_MEMORY
        status = cydriver.cuMemcpyDtoHAsync(
            <void*>self.host_address(chunk.host), self.address_of(chunk),
            blocks_of(chunk) * BLOCK, self.stream)
        if not status:
            status = cydriver.cuStreamSynchronize(self.stream)
        if not status:
            status = self.unmap_chunk(chunk)
        if status:
            return status
        cydriver.cuMemRelease(chunk.handle)
        pthread_mutex_lock(&self.lock)
        chunk.handle = 0
        chunk.hashed = False
        chunk.state = AWAY
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef int bring(self, Chunk* chunk) noexcept nogil:
        # Bring a chunk in and map it, to whatever memory there is.
        cdef uint32_t frame
        cdef int status = self.make_frame(chunk.size, &frame)
        if status:
            status = self.lend(chunk, True)
            if status:
                status = self.lend(chunk, False)
            if not status:
                pthread_mutex_lock(&self.lock)
                self.forget_host(chunk)
                pthread_mutex_unlock(&self.lock)
            return status
        if chunk.host != NO_ROOM:
            status = cydriver.cuMemcpyHtoDAsync(
                self.alias_of(frame), <void*>self.host_address(chunk.host),
                blocks_of(chunk) * BLOCK, self.stream)
            if not status:
                status = cydriver.cuStreamSynchronize(self.stream)
        if not status:
            status = self.map_chunk(chunk, self.handle_of(frame))
        if status:
            self.give_frame(frame)
            return status
        pthread_mutex_lock(&self.lock)
        chunk.frame = frame
        chunk.state = MAPPED
        self.forget_host(chunk)
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef int send(self, Chunk* chunk) noexcept nogil:
        # Unmap a chunk; what is in it goes to the host.
        cdef int status
        if chunk.state == IN_HOST:
            return self.take_back(chunk)
        if chunk.host == NO_ROOM:
            chunk.host = self.host_place(chunk.size)
        if chunk.host == NO_ROOM:
            return cydriver.CUDA_ERROR_OUT_OF_MEMORY
        status = cydriver.cuMemcpyDtoHAsync(
            <void*>self.host_address(chunk.host), self.alias_of(chunk.frame),
            blocks_of(chunk) * BLOCK, self.stream)
        if not status:
            status = cydriver.cuStreamSynchronize(self.stream)
        if not status:
            status = self.unmap_chunk(chunk)
        if status:
            return status
        pthread_mutex_lock(&self.lock)
        chunk.state = AWAY
        chunk.hashed = chunk.doubtful = False
        self.frames.give(chunk.frame)
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef void clear(self, Chunk* chunk) noexcept nogil:
        # Whatever it is, let it be nothing.
        if chunk.state == IN_HOST:
            self.unmap_chunk(chunk)
            cydriver.cuMemRelease(chunk.handle)
        elif chunk.state != AWAY:
            if chunk.state == MAPPED:
                self.unmap_chunk(chunk)
            self.give_frame(chunk.frame)
        pthread_mutex_lock(&self.lock)
        self.forget_host(chunk)
        self.map.vacate(self.map.block_of(chunk), blocks_of(chunk))
        pthread_mutex_unlock(&self.lock)

    # -- segments ----------------------------------------------------------------------------------

    cdef void* new_segment(self, uint64_t blocks) noexcept nogil:
        cdef uint64_t first, at
        cdef Chunk* chunk
        cdef uint32_t frame
        cdef int status = 0
        cdef bint filled
        pthread_mutex_lock(&self.lock)
        first = self.map.place(blocks)
        at = first
        while first and at < first + blocks:
            chunk = self.map.find(at)
            chunk.host = NO_ROOM
            at += blocks_of(chunk)
        pthread_mutex_unlock(&self.lock)
        if not first:
            return NULL
        self.top = max(self.top, first + blocks)
        # While all there is is on the device, so is what comes.
        filled = (deepum_load32(&self.feed.free_run)
                  and deepum_load(&self.feed.managed) // BLOCK + blocks <= self.frames.budget)
        at = first
        while filled and at < first + blocks:
            chunk = self.map.find(at)
            status = self.make_frame(chunk.size, &frame)
            if not status:
                status = self.map_chunk(chunk, self.handle_of(frame))
                if status:
                    self.give_frame(frame)
                else:
                    chunk.frame = frame
                    chunk.state = MAPPED
            filled = not status
            at += blocks_of(chunk)
        if not filled:
            at = first
            while at < first + blocks:
                chunk = self.map.find(at)
                at += blocks_of(chunk)
                if chunk.state == MAPPED:
                    self.unmap_chunk(chunk)
                    self.give_frame(chunk.frame)
                    chunk.state = AWAY
        self.feed.manage(first * BLOCK, blocks * BLOCK, filled)
        return <void*>(first * BLOCK)

    cdef void drop_segment(self, uint64_t address, uint64_t size) noexcept nogil:
        # Nothing runs and nothing moves.
        cdef uint64_t at = address // BLOCK, end = (address + size) // BLOCK, next
        cdef Chunk* chunk
        while at < end:
            chunk = self.map.find(at)
            next = at + (1 if chunk == NULL else blocks_of(chunk))
            if chunk != NULL:
                self.clear(chunk)
            at = next

    cdef bint lives(self, Chunk* chunk) noexcept nogil:
        cdef uint64_t block = self.map.block_of(chunk), i
        cdef Row* row
        for i in range(blocks_of(chunk)):
            row = self.feed.map.row(block + i)
            if row != NULL and row.active:
                return True
        return False

    def put_away(self):
        """Send all there is to the host: memory that is left over from a session."""
        cdef uint64_t at, end
        cdef uint32_t i
        cdef Chunk* chunk
        cdef int status = 0
        with nogil:
            enter_driver()
            if self.feed.segment_count:
                status = cydriver.cuCtxSynchronize()
            for i in range(self.feed.segment_count):
                at = self.feed.segments[i].address // BLOCK
                end = at + self.feed.segments[i].size // BLOCK
                while at < end and not status:
                    chunk = self.map.find(at)
                    if chunk.state != AWAY:
                        status = self.send(chunk)
                    at += blocks_of(chunk)
            leave_driver()
        if status:
            raise BackendError(
                f"memory of another session could not be moved to the host (CUDA error {status}): "
                "raise host_limit")

    cdef bint owned(self, uint64_t block) noexcept nogil:
        # Whether the block lies in a segment that is not given back.
        cdef uint32_t i
        for i in range(self.feed.segment_count):
            if block * BLOCK - self.feed.segments[i].address < self.feed.segments[i].size:
                return True
        return False

    def bring_back(self):
        """Map all that lives, for a program that goes on without a session.

        To the device, beyond the budget too, or to host memory where that is full. Nothing may
        move any more. Returns the bytes that could not be mapped.
        """
        cdef uint64_t at, next, lost = 0
        cdef Chunk* chunk
        if self.frames is None or self.map is None:
            return 0
        with nogil:
            enter_driver()
            pthread_mutex_lock(&self.feed.lock)
            at = self.map.first
            while at < self.top:
                chunk = self.map.find(at)
                next = at + (1 if chunk == NULL else blocks_of(chunk))
                if chunk == NULL:
                    pass
                elif not self.owned(at):
                    self.clear(chunk)      # given back when nobody listened any more
                elif chunk.state != MAPPED and chunk.state != IN_HOST and (
                        chunk.host != NO_ROOM or self.lives(chunk)):
                    if chunk.state != AWAY or self.bring(chunk):
                        lost += blocks_of(chunk) * BLOCK
                elif chunk.state == MAPPED:
                    pthread_mutex_lock(&self.lock)
                    self.forget_host(chunk)    # nobody looks at what the program writes
                    pthread_mutex_unlock(&self.lock)
                at = next
            pthread_mutex_unlock(&self.feed.lock)
            leave_driver()
        return lost

    def end(self):
        """Give back what a session needed and the program does not."""
        if self.frames is not None:
            with nogil:
                self.shed()
        if self.stream != NULL:
            with nogil:
                cydriver.cuStreamDestroy(self.stream)
            self.stream = NULL

    @property
    def side_stream(self):
        """A stream that is the session's own."""
        return <uintptr_t>self.stream

    @property
    def trouble(self):
        """What went wrong for good, with the driver's word on it; empty if nothing did."""
        cdef const char* wrong = self.failed()
        return "" if wrong == NULL else f"{wrong.decode()} (CUDA error {self.status})"

    @property
    def pinned_bytes(self):
        """Bytes of host memory that are pinned."""
        cdef uint64_t slabs
        with nogil:
            pthread_mutex_lock(&self.lock)
            slabs = self.hosts.count
            pthread_mutex_unlock(&self.lock)
        return slabs * SLAB_BLOCKS * BLOCK

    @property
    def host_bytes(self):
        """Bytes of it that something is in."""
        return read(&self.lock, &self.hosts.used) * BLOCK

    @property
    def frame_bytes(self):
        """Bytes of the frames that there are."""
        return 0 if self.frames is None else read(&self.lock, &self.frames.made) * BLOCK

    @property
    def frames_made(self):
        """Frames made since `begin`: more than there are where sizes ran short."""
        return 0 if self.frames is None else read(&self.lock, &self.frames.ever)


cdef uint64_t read(pthread_mutex_t* lock, const uint64_t* count) noexcept:
    # What other threads count under a lock.
    cdef uint64_t value
    with nogil:
        pthread_mutex_lock(lock)
        value = count[0]
        pthread_mutex_unlock(lock)
    return value


def use_memory(VmmMemory memory not None):
    """Set the memory that the callbacks serve; for the whole life of the process."""
    global _memory
    _memory = memory


def callbacks():
    """Return the addresses of allocate and free."""
    return <uintptr_t>&allocate, <uintptr_t>&release

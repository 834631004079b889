# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Sees every launch before it runs, by a callback of CUPTI's, and lets it wait behind a gate.

The callback runs in the launching thread, without the GIL, before and after each launch that the
process submits, whichever library does it. It hashes the launch, collects the argument words that
may point into managed memory, tells the feed, and, where launches are gated, first makes the
stream wait until the conductor has opened the launch's gate. Afterwards the stream writes the
launch's number to host memory: that is how completion is followed.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup, strlen

from deepum._core.cuda_completions cimport Completions
from deepum._core.feed cimport (
    Feed, deepum_add, deepum_load, deepum_load32, deepum_now, deepum_sleep, deepum_store32,
    enter_driver, leave_driver, mix, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
    pthread_mutex_unlock,
)
from deepum._core.tensor_lists cimport (
    MAX_POINTERS, TensorLists, find_lists, scan, scan_lists, tensors_used,
)

# The driver takes about 1,020 entries behind a closed gate; a launch is three: the wait, the
# kernel, the mark. A thread that finds the queue full spins in the driver, holding what moves
# need, so it must never come to that.
cdef uint64_t RUN_AHEAD = 200              # launches, unless told otherwise

cdef enum:
    NAMES = 1 << 16        # kernels whose names are kept
    API_ENTER = 0
    DRIVER_DOMAIN = 1

# What is kept from the entry of a launch to its exit: its number, these, and its stream's place.
cdef enum:
    PLACE = 1023
    FIRST = 1 << 10        # of its kernel: no other launch may come until it is submitted
    SURELY = 1 << 11       # its completion is to be seen at once
    NUMBER = 12            # bits that all that takes

# Callback numbers of the driver's functions (stable: new functions get new ones).
cdef enum Call:
    LAUNCH_KERNEL = 307
    LAUNCH_KERNEL_PTSZ = 442
    LAUNCH_COOPERATIVE = 477
    LAUNCH_COOPERATIVE_PTSZ = 478
    LAUNCH_KERNEL_EX = 652
    LAUNCH_KERNEL_EX_PTSZ = 653
    GRAPH_LAUNCH = 514
    GRAPH_LAUNCH_PTSZ = 515
    MEMSET_D8 = 216
    MEMSET_D8_PTSZ = 428
    MEMSET_D32 = 220
    MEMSET_D32_PTSZ = 430
    MEMCPY_ASYNC = 306
    MEMCPY_ASYNC_PTSZ = 418
    MEMCPY_HTOD = 277
    MEMCPY_HTOD_PTSZ = 421
    MEMCPY_DTOH = 279
    MEMCPY_DTOH_PTSZ = 422
    MEMCPY_DTOD = 281
    MEMCPY_DTOD_PTSZ = 423
    # These return when it is done, or as good as.
    MEMSET_D8_SYNC = 249
    MEMSET_D8_SYNC_PTDS = 411
    MEMSET_D32_SYNC = 251
    MEMSET_D32_SYNC_PTDS = 413
    MEMCPY_SYNC = 305
    MEMCPY_SYNC_PTDS = 408
    MEMCPY_HTOD_SYNC = 276
    MEMCPY_HTOD_SYNC_PTDS = 397
    MEMCPY_DTOH_SYNC = 278
    MEMCPY_DTOH_SYNC_PTDS = 398
    MEMCPY_DTOD_SYNC = 280
    MEMCPY_DTOD_SYNC_PTDS = 399
    BEGIN_CAPTURE = 495
    BEGIN_CAPTURE_PTSZ = 496
    BEGIN_CAPTURE_V2 = 539
    BEGIN_CAPTURE_V2_PTSZ = 540
    BEGIN_CAPTURE_TO = 720
    BEGIN_CAPTURE_TO_PTSZ = 721
    END_CAPTURE = 497
    END_CAPTURE_PTSZ = 498
    MODULE_LOAD = 19
    MODULE_LOAD_EX = 20
    LIBRARY_LOAD = 678
    MODULE_UNLOAD = 22
    LIBRARY_UNLOAD = 680
    MEM_ALLOC = 243
    MEM_FREE = 245
    HOST_ALLOC = 39
    HOST_FREE = 38
    CONTEXT_SYNC = 17
    STREAM_DESTROY = 127
    STREAM_DESTROY_V2 = 326

CALLS = (
    LAUNCH_KERNEL, LAUNCH_KERNEL_PTSZ, LAUNCH_COOPERATIVE, LAUNCH_COOPERATIVE_PTSZ,
    LAUNCH_KERNEL_EX, LAUNCH_KERNEL_EX_PTSZ, GRAPH_LAUNCH, GRAPH_LAUNCH_PTSZ, MEMSET_D8,
    MEMSET_D8_PTSZ, MEMSET_D32, MEMSET_D32_PTSZ, MEMCPY_ASYNC, MEMCPY_ASYNC_PTSZ, MEMCPY_HTOD,
    MEMCPY_HTOD_PTSZ, MEMCPY_DTOH, MEMCPY_DTOH_PTSZ, MEMCPY_DTOD, MEMCPY_DTOD_PTSZ,
    MEMSET_D8_SYNC, MEMSET_D8_SYNC_PTDS, MEMSET_D32_SYNC, MEMSET_D32_SYNC_PTDS, MEMCPY_SYNC,
    MEMCPY_SYNC_PTDS, MEMCPY_HTOD_SYNC, MEMCPY_HTOD_SYNC_PTDS, MEMCPY_DTOH_SYNC,
    MEMCPY_DTOH_SYNC_PTDS, MEMCPY_DTOD_SYNC, MEMCPY_DTOD_SYNC_PTDS, BEGIN_CAPTURE,
    BEGIN_CAPTURE_PTSZ, BEGIN_CAPTURE_V2, BEGIN_CAPTURE_V2_PTSZ, BEGIN_CAPTURE_TO,
    BEGIN_CAPTURE_TO_PTSZ, END_CAPTURE, END_CAPTURE_PTSZ, MODULE_LOAD, MODULE_LOAD_EX,
    LIBRARY_LOAD, MODULE_UNLOAD, LIBRARY_UNLOAD, MEM_ALLOC, MEM_FREE, HOST_ALLOC, HOST_FREE,
    CONTEXT_SYNC, STREAM_DESTROY, STREAM_DESTROY_V2,
)
"""Numbers of the driver calls that `cupti` is to report."""

# Further calls, rare ones: those that load functions or wait for the device, and those that use
# memory. Where memory is found by faulting too, nobody needs to know of these. How it is found in
# their parameters:
cdef enum Form:
    FORM_NONE = 0
    FORM_WORDS = 1         # they point to it
    FORM_STRUCT = 2        # the first one points to a struct that does
    FORM_BATCH = 3         # the first two point to arrays of such pointers, the fourth counts them
    FORM_LIST = 4          # the second points to as many structs as the first says
    FORM_QUERY = 5         # words; nothing runs
    FORM_FUNCTION = 6      # of a function, which may have to be loaded for it
    FORM_BLOCKING = 7      # none: the call waits for the device

cdef struct Further:
    uint8_t form
    uint8_t bytes          # of parameters or struct; FORM_LIST: in words; FORM_FUNCTION: its place
    uint8_t stream         # where the stream is among the parameters, in words; 0: there is none

cdef enum:
    FURTHER = 1024

cdef Further _further[FURTHER]
memset(_further, 0, sizeof(_further))

cdef tuple note_further(list calls, Form form, uint8_t size, uint8_t stream):
    for call in calls:
        _further[<int>call].form = form
        _further[<int>call].bytes = size
        _further[<int>call].stream = stream
    return tuple(calls)

LOADING_CALLS = (
    # cuFuncSetAttribute, SetCacheConfig, FuncLoad, KernelSetCacheConfig
    note_further([481, 86, 742, 700], FORM_FUNCTION, 0, 0)
    # cuOccupancy..., cuKernelGetFunction, cuKernelSetAttribute
    + note_further([374, 451, 543, 675, 676, 683, 687], FORM_FUNCTION, 1, 0)
    + note_further([85, 686], FORM_FUNCTION, 2, 0)             # cuFuncGetAttribute, KernelGet...
    # cuModuleLoad, LoadFatBinary, LibraryLoadFromFile, ...GetModule, ...GetGlobal, cuLinkComplete
    + note_further([18, 21, 679, 682, 241, 684, 365], FORM_BLOCKING, 0, 0)
    # cuMemAllocPitch, AllocHost, HostRegister, HostUnregister, PoolTrimTo, cuCtxSetLimit
    + note_further([244, 294, 301, 379, 302, 602, 136], FORM_BLOCKING, 0, 0)
    # cuCtxSynchronize's second version, cuGraphInstantiate..., Upload, ExecDestroy
    + note_further([800, 513, 578, 643, 656, 657, 580, 581, 516], FORM_BLOCKING, 0, 0)
)
"""Numbers of further driver calls that load functions or wait for the device: in the midst of
them, a launch behind a closed gate would be waited for while nothing can move."""

FURTHER_CALLS = LOADING_CALLS + (
    note_further([250, 412, 252, 414, 253, 415, 254, 416], FORM_WORDS, 8, 0)   # cuMemsetD16, D2D*
    + note_further([218, 429], FORM_WORDS, 8, 3)                               # cuMemsetD16Async
    + note_further([222, 431, 224, 432, 226, 433], FORM_WORDS, 8, 5)           # cuMemsetD2D*Async
    + note_further([318, 409], FORM_WORDS, 32, 0)                              # cuMemcpyPeer
    + note_further([319, 426], FORM_WORDS, 32, 5)                              # cuMemcpyPeerAsync
    + note_further([284, 401, 285, 400], FORM_WORDS, 32, 0)                    # cuMemcpyAtoD, DtoA
    + note_further([837, 838], FORM_WORDS, 16, 4)              # cuMemcpyWithAttributesAsync
    + note_further([287, 405, 288, 406], FORM_STRUCT, 128, 0)                  # cuMemcpy2D
    + note_further([289, 424], FORM_STRUCT, 128, 1)                            # cuMemcpy2DAsync
    + note_further([290, 407, 320, 410], FORM_STRUCT, 200, 0)                  # cuMemcpy3D, 3DPeer
    + note_further([291, 425, 321, 427], FORM_STRUCT, 200, 1)                  # their Async
    + note_further([776, 777], FORM_BATCH, 0, 8)                               # cuMemcpyBatchAsync
    + note_further([796, 797], FORM_BATCH, 0, 7)                               # its second version
    + note_further([778, 779], FORM_LIST, 23, 4)               # cuMemcpy3DBatchAsync
    + note_further([798, 799], FORM_LIST, 23, 3)                               # its second version
    + note_further([310], FORM_QUERY, 24, 0)                   # cuPointerGetAttribute
    + note_further([450], FORM_QUERY, 32, 0)                   # cuPointerGetAttributes
)
"""These, and those that use memory: for sessions whose memory is not found by faulting."""


# What CUPTI hands over, as its documentation lays it out.
cdef struct CallData:
    int site
    const char* function
    const void* parameters
    void* result
    const char* symbol
    void* context
    uint32_t context_id
    uint64_t* kept         # the caller's own, from the entry of a call to its exit
    uint32_t correlation

cdef struct LaunchKernel:
    void* function
    uint32_t grid[3]
    uint32_t block[3]
    uint32_t shared
    void* stream
    void** arguments
    void** extra

cdef struct LaunchCooperative:
    void* function
    uint32_t grid[3]
    uint32_t block[3]
    uint32_t shared
    void* stream
    void** arguments

cdef struct LaunchConfig:
    uint32_t grid[3]
    uint32_t block[3]
    uint32_t shared
    void* stream

cdef struct LaunchKernelEx:
    const LaunchConfig* config
    void* function
    void** arguments
    void** extra

cdef struct GraphLaunch:
    void* graph
    void* stream

cdef struct Memset:
    uint64_t to
    uint32_t value
    size_t count
    void* stream

cdef struct Memcpy:
    uint64_t to
    uint64_t source
    size_t size
    void* stream


cdef struct Function:
    void* handle
    uint64_t name          # hash
    uint32_t number        # of its name
    uint32_t count
    uint32_t* sizes        # bytes of each parameter
    bint sure              # the driver told of them
    bint fresh             # this is the first launch of it
    TensorLists lists      # what the first one holds, if that is known


# What launches without a kernel of their own are called.
cdef enum:
    UNNAMED = 0
    GRAPH = 1
    MEMSET = 2
    MEMCPY = 3

cdef char* _names[NAMES]       # one list for the process: kernels outlive sessions
cdef uint32_t _named = 4


def names():
    """Return the names of launches by number, a list."""
    cdef uint32_t i
    return ["unnamed", "graph", "memset", "memcpy"] + [
        _names[i].decode("utf-8", "replace") for i in range(4, deepum_load32(&_named))]


cdef class Launches:
    """The state of the callback; one for each process.

    Parameters
    ----------
    feed
        Who is told.
    """

    cdef Feed feed
    cdef pthread_mutex_t lock      # the functions
    cdef Function* functions       # open addressing, by handle
    cdef uint32_t mask, known
    cdef readonly Completions completions
    cdef uint64_t flag             # device address: open gates
    cdef public uint64_t ahead     # launches that the program may submit before their gates open
    cdef uint64_t side             # stream for what runs in none
    cdef readonly uint64_t impatient       # waits given up
    cdef readonly uint64_t no_parameters   # launches whose parameters the driver would not tell
    cdef readonly uint64_t callback_ns, callbacks
    cdef bint timing

    def __cinit__(self, Feed feed not None):
        self.feed = feed
        self.completions = Completions(feed)
        pthread_mutex_init(&self.lock, NULL)
        self.ahead = RUN_AHEAD
        self.mask = 1023
        self.functions = <Function*>calloc(self.mask + 1, sizeof(Function))
        if self.functions == NULL:
            raise MemoryError()

    def use_host_words(self, uint64_t host, uint64_t flag, uint64_t done):
        """Set where completions lie on the host, and gates and completions on the device."""
        self.flag = flag
        self.completions.use(host, done)

    def forget_host_words(self):
        """Stop looking at the completions on the host."""
        self.completions.forget()

    def use_side_stream(self, uint64_t stream):
        """Set a stream that is the session's own."""
        self.side = stream

    def time_callbacks(self, bint on):
        """Measure the callback's own time, for benchmarks."""
        self.timing = on
        self.callback_ns = self.callbacks = 0

    cdef void forget_functions(self) noexcept nogil:
        # A module goes: its handles may come again for other kernels.
        # Their few bytes stay: another thread may be reading them.
        pthread_mutex_lock(&self.lock)
        memset(self.functions, 0, (self.mask + 1) * sizeof(Function))
        self.known = 0
        pthread_mutex_unlock(&self.lock)

    cdef Function look_up(self, void* handle) noexcept nogil:
        cdef Function found
        pthread_mutex_lock(&self.lock)
        found = self.functions[self.place_of(handle)]
        pthread_mutex_unlock(&self.lock)
        return found if found.handle != NULL else self.learn(handle)

    cdef Function learn(self, void* handle) noexcept nogil:
        cdef Function f = self.learn_once(handle)
        # Where memory is exact, a kernel whose parameters are not known finds none of it.
        for _ in range(3):
            if f.sure or not self.feed.exact:
                break
            deepum_sleep(1000000)
            f = self.learn_once(handle)
        f.fresh = True
        return f

    cdef Function learn_once(self, void* handle) noexcept nogil:
        # First launch of a kernel: its name and parameters, and load it. Loading waits for the
        # device and must not do so behind a closed gate.
        cdef Function f
        cdef const char* name = NULL
        cdef size_t offset, size
        cdef uint32_t sizes[1024]
        cdef bint library
        cdef int status = 0
        cdef cydriver.CUfunction function = <cydriver.CUfunction>handle
        memset(&f, 0, sizeof(f))
        f.handle = handle
        # No other thread's launch may come in between, to wait for its memory behind the loading.
        self.feed.block(1)
        self.settle()
        # A handle may be a CUkernel, which only some calls take.
        library = cydriver.cuFuncGetName(&name, function) != cydriver.CUDA_SUCCESS
        if library:
            if cydriver.cuKernelGetName(&name, <cydriver.CUkernel>handle) != cydriver.CUDA_SUCCESS:
                name = NULL
            if cydriver.cuKernelGetFunction(
                    &function, <cydriver.CUkernel>handle) != cydriver.CUDA_SUCCESS:
                function = NULL
        if function != NULL:
            cydriver.cuFuncLoad(function)
        self.feed.block(-1)
        f.name = hash_bytes(name, strlen(name)) if name != NULL else <uint64_t>handle
        while f.count < 1024:
            if library:
                status = cydriver.cuKernelGetParamInfo(
                    <cydriver.CUkernel>handle, f.count, &offset, &size)
            else:
                status = cydriver.cuFuncGetParamInfo(function, f.count, &offset, &size)
            if status:
                break
            sizes[f.count] = <uint32_t>size
            f.count += 1
        # It has none if the driver says so, and has told which kind of handle it is.
        f.sure = f.count > 0 or (
            name != NULL and status == cydriver.CUDA_ERROR_INVALID_VALUE)
        if f.count == 0:
            deepum_add(&self.no_parameters, 1)
        elif name != NULL:
            f.lists = find_lists(name, sizes[0])
        if name != NULL:
            f.number = self.note_name(name)
        f.sizes = <uint32_t*>malloc(f.count * sizeof(uint32_t) + 1)
        if f.sizes == NULL:
            f.count = 0
            return f
        memcpy(f.sizes, sizes, f.count * sizeof(uint32_t))
        if f.sure or not self.feed.exact:
            self.keep(&f)
        return f

    cdef void keep(self, const Function* f) noexcept nogil:
        cdef uint32_t place
        pthread_mutex_lock(&self.lock)
        if self.known * 2 >= self.mask:
            self.grow()
        place = self.place_of(f.handle)
        if self.functions[place].handle == NULL and self.known < self.mask:
            self.functions[place] = f[0]
            self.known += 1
        pthread_mutex_unlock(&self.lock)

    cdef void grow(self) noexcept nogil:
        # With the lock held. Without memory for more, functions that are not kept are learnt anew
        # at each launch.
        cdef Function* old = self.functions
        cdef uint32_t size = self.mask + 1, i
        cdef Function* more = <Function*>calloc(2 * size, sizeof(Function))
        if more == NULL:
            return
        self.functions = more
        self.mask = 2 * size - 1
        for i in range(size):
            if old[i].handle != NULL:
                self.functions[self.place_of(old[i].handle)] = old[i]
        free(old)

    cdef uint32_t place_of(self, void* handle) noexcept nogil:
        # Where a function is, or would be. Called with the lock held.
        cdef uint32_t place = (
            <uint32_t>((<uint64_t>handle * <uint64_t>0x9E3779B97F4A7C15) >> 40) & self.mask)
        while self.functions[place].handle != NULL and self.functions[place].handle != handle:
            place = (place + 1) & self.mask
        return place

    cdef bint knows(self, void* handle) noexcept nogil:
        # Whether a function was learnt, and so loaded; or a graph was launched before.
        cdef bint known
        pthread_mutex_lock(&self.lock)
        known = self.functions[self.place_of(handle)].handle != NULL
        pthread_mutex_unlock(&self.lock)
        return known

    cdef bint is_new_graph(self, void* handle) noexcept nogil:
        cdef Function f
        if self.knows(handle):
            return False
        memset(&f, 0, sizeof(f))
        f.handle = handle
        self.keep(&f)
        return True

    cdef uint32_t note_name(self, const char* name) noexcept nogil:
        cdef char* copy = strdup(name)
        cdef uint32_t number = UNNAMED
        if copy == NULL:
            return UNNAMED
        pthread_mutex_lock(&self.lock)
        if _named < NAMES:
            number = _named
            _names[number] = copy
            deepum_store32(&_named, number + 1)
        pthread_mutex_unlock(&self.lock)
        if not number:
            free(copy)
        return number

    cdef void settle(self) noexcept nogil:
        if not self.feed.settle():
            deepum_add(&self.impatient, 1)

    cdef void hold_back(self) noexcept nogil:
        # The driver's queue must not fill up behind a closed gate.
        cdef uint64_t submitted = deepum_load(&self.feed.submitted)
        if submitted > self.ahead and not self.feed.wait_open(submitted - self.ahead):
            deepum_add(&self.impatient, 1)


cdef Launches _launches = None
cdef bint _on = False


cdef uint64_t hash_bytes(const char* data, size_t size) noexcept nogil:
    cdef uint64_t h = 0x243F6A8885A308D3, word
    cdef size_t at = 0
    while at < size:
        word = 0
        memcpy(&word, data + at, min(<size_t>8, size - at))
        h = mix(h, word)
        at += 8
    return mix(h, size)


cdef uint32_t scan_further(
    uint32_t id, const uint64_t* words, uint64_t low, uint64_t span, uint64_t* pointers
) noexcept nogil:
    # What the parameters of a further call point to.
    cdef Further* f = &_further[id]
    cdef uint32_t count = 0
    if f.form == FORM_STRUCT:
        return scan(<const char*>words[0], f.bytes, low, span, pointers, 0)
    if f.form == FORM_BATCH:
        count = scan(<const char*>words[0], 8 * words[3], low, span, pointers, 0)
        return scan(<const char*>words[1], 8 * words[3], low, span, pointers, count)
    if f.form == FORM_LIST:
        return scan(<const char*>words[1], 8 * f.bytes * words[0], low, span, pointers, 0)
    return scan(<const char*>words, f.bytes, low, span, pointers, 0)


cdef void enter_launch(uint32_t id, const CallData* data) noexcept nogil:
    cdef const void* p = data.parameters
    cdef void* handle = NULL
    cdef void* stream = NULL
    cdef void** arguments = NULL
    cdef void** extra = NULL
    cdef uint32_t* shape = NULL      # grid and block, then shared bytes
    cdef const LaunchKernelEx* ex
    cdef const Memset* fill = NULL
    cdef const Memcpy* copy = NULL
    cdef uint64_t pointers[MAX_POINTERS]
    cdef uint32_t count = 0, used = 0, i, slot = 0
    cdef uint64_t low = deepum_load(&_launches.feed.map.low)
    cdef uint64_t high = deepum_load(&_launches.feed.map.high), span = high - low
    cdef uint64_t exec_id, seq, kernel
    cdef bint waits = False, per_thread = False, captured = False, fresh = False
    cdef bint graph = id in (GRAPH_LAUNCH, GRAPH_LAUNCH_PTSZ)
    cdef const Further* further = NULL
    cdef Function f
    cdef const char* buffer = NULL
    cdef size_t size = 0
    cdef cydriver.CUstreamCaptureStatus status
    if high == 0:
        span = 0
    if id < FURTHER and _further[id].form != FORM_NONE:
        further = &_further[id]
        if further.form == FORM_FUNCTION:
            handle = (<void**>p)[further.bytes]
            if (handle != NULL and not _launches.knows(handle)
                    and not deepum_load32(&_launches.feed.free_run)):
                _launches.learn(handle)
            return
        count = scan_further(id, <const uint64_t*>p, low, span, pointers)
        if not count:
            return
        if further.form == FORM_QUERY:
            stream = <void*>_launches.side
        elif further.stream:
            stream = (<void**>p)[further.stream]
        waits = True
    elif id in (LAUNCH_KERNEL, LAUNCH_KERNEL_PTSZ):
        handle = (<const LaunchKernel*>p).function
        stream = (<const LaunchKernel*>p).stream
        shape = (<LaunchKernel*>p).grid
        arguments = (<const LaunchKernel*>p).arguments
        extra = (<const LaunchKernel*>p).extra
        per_thread = id == LAUNCH_KERNEL_PTSZ
    elif id in (LAUNCH_KERNEL_EX, LAUNCH_KERNEL_EX_PTSZ):
        ex = <const LaunchKernelEx*>p
        handle = ex.function
        stream = ex.config.stream
        shape = (<LaunchConfig*>ex.config).grid
        arguments = ex.arguments
        extra = ex.extra
        per_thread = id == LAUNCH_KERNEL_EX_PTSZ
    elif id in (LAUNCH_COOPERATIVE, LAUNCH_COOPERATIVE_PTSZ):
        handle = (<const LaunchCooperative*>p).function
        stream = (<const LaunchCooperative*>p).stream
        shape = (<LaunchCooperative*>p).grid
        arguments = (<const LaunchCooperative*>p).arguments
        per_thread = id == LAUNCH_COOPERATIVE_PTSZ
    elif id in (GRAPH_LAUNCH, GRAPH_LAUNCH_PTSZ):
        stream = (<const GraphLaunch*>p).stream
        per_thread = id == GRAPH_LAUNCH_PTSZ
    elif id in (MEMSET_D8, MEMSET_D8_PTSZ, MEMSET_D32, MEMSET_D32_PTSZ):
        fill = <const Memset*>p
        stream = fill.stream
        per_thread = id in (MEMSET_D8_PTSZ, MEMSET_D32_PTSZ)
    elif id in (MEMSET_D8_SYNC, MEMSET_D8_SYNC_PTDS, MEMSET_D32_SYNC, MEMSET_D32_SYNC_PTDS):
        fill = <const Memset*>p            # but for the stream, which they do not have
        waits = True
        per_thread = id in (MEMSET_D8_SYNC_PTDS, MEMSET_D32_SYNC_PTDS)
    elif id in (MEMCPY_SYNC, MEMCPY_SYNC_PTDS, MEMCPY_HTOD_SYNC, MEMCPY_HTOD_SYNC_PTDS,
                MEMCPY_DTOH_SYNC, MEMCPY_DTOH_SYNC_PTDS, MEMCPY_DTOD_SYNC, MEMCPY_DTOD_SYNC_PTDS):
        copy = <const Memcpy*>p            # likewise
        waits = True
        per_thread = id in (MEMCPY_SYNC_PTDS, MEMCPY_HTOD_SYNC_PTDS, MEMCPY_DTOH_SYNC_PTDS,
                            MEMCPY_DTOD_SYNC_PTDS)
    else:
        copy = <const Memcpy*>p
        stream = copy.stream
        # The driver may copy on the host, holding locks that moves need.
        waits = id not in (MEMCPY_DTOD, MEMCPY_DTOD_PTSZ)
        per_thread = id in (MEMCPY_ASYNC_PTSZ, MEMCPY_HTOD_PTSZ, MEMCPY_DTOH_PTSZ, MEMCPY_DTOD_PTSZ)
    if per_thread and stream == NULL:
        stream = <void*>2                  # CU_STREAM_PER_THREAD
    if _launches.feed.capturing:
        # What is captured does not run now.
        if (cydriver.cuStreamIsCapturing(<cydriver.CUstream>stream, &status)
                == cydriver.CUDA_SUCCESS and status != cydriver.CU_STREAM_CAPTURE_STATUS_NONE):
            if not _launches.feed.exact:
                return
            captured = True
    if further != NULL:
        exec_id = id
        kernel = <uint64_t>MEMCPY << 32 | id
    elif handle != NULL:
        f = _launches.look_up(handle)
        fresh = f.fresh
        exec_id = f.name
        for i in range(7):
            exec_id = mix(exec_id, shape[i])
        kernel = <uint64_t>f.number << 32 | <uint32_t>exec_id
        if arguments != NULL:
            if f.lists.lists:
                used = tensors_used(&f.lists, <const char*>arguments[0], shape)
            if used:
                count = scan_lists(
                    &f.lists, <const char*>arguments[0], used, low, span, pointers)
            for i in range(1 if used else 0, f.count):
                count = scan(<const char*>arguments[i], f.sizes[i], low, span, pointers, count)
        elif extra != NULL:
            i = 0
            while i < 8 and extra[i] != NULL:
                if <uintptr_t>extra[i] == 1:       # CU_LAUNCH_PARAM_BUFFER_POINTER
                    buffer = <const char*>extra[i + 1]
                elif <uintptr_t>extra[i] == 2:     # CU_LAUNCH_PARAM_BUFFER_SIZE
                    size = (<size_t*>extra[i + 1])[0]
                i += 2
            if buffer != NULL:
                count = scan(buffer, size, low, span, pointers, count)
    elif graph:
        fresh = _launches.is_new_graph((<const GraphLaunch*>p).graph)
        exec_id = mix(id, <uint64_t>(<const GraphLaunch*>p).graph)
        kernel = <uint64_t>GRAPH << 32 | <uint32_t>exec_id
    elif fill != NULL:
        count = scan(<const char*>&fill.to, 8, low, span, pointers, 0)
        exec_id = mix(id, fill.count)
        kernel = <uint64_t>MEMSET << 32 | <uint32_t>exec_id
    else:
        count = scan(<const char*>&copy.to, 16, low, span, pointers, 0)
        exec_id = mix(id, copy.size)
        kernel = <uint64_t>MEMCPY << 32 | <uint32_t>exec_id
    if captured:
        _launches.feed.capture(pointers, count)
        return
    if deepum_load32(&_launches.feed.gating):
        _launches.hold_back()
    seq = _launches.feed.launch(<uint64_t>stream, exec_id, kernel, pointers, count, &slot, graph)
    while not seq and _launches.feed.exact and deepum_load32(&_launches.feed.gating):
        deepum_sleep(20000)        # it must not go untold
        seq = _launches.feed.launch(
            <uint64_t>stream, exec_id, kernel, pointers, count, &slot, graph)
    if not seq:
        return
    if _launches.feed.exact and not graph and handle == NULL:
        waits = True               # the driver checks on the host that the memory is there
    data.kept[0] = seq << NUMBER | slot
    # What the host may wait for is to be known as soon as it has happened; and a thread's own
    # stream can be asked later by that thread alone.
    if handle == NULL or stream == <void*>2:
        data.kept[0] |= SURELY
    if not deepum_load32(&_launches.feed.gating):
        return
    if fresh:
        data.kept[0] |= FIRST
        _launches.feed.block(1)
        _launches.settle()
    elif waits:
        if count and not _launches.feed.wait_open(seq):
            deepum_add(&_launches.impatient, 1)
    elif deepum_load(&_launches.feed.opened) < seq:
        # Behind the gate the mark of what came before it could keep the gate from opening.
        _launches.completions.catch_up(slot)
        if cydriver.cuStreamWaitValue32(
                <cydriver.CUstream>stream, <cydriver.CUdeviceptr>_launches.flag, <uint32_t>seq,
                cydriver.CU_STREAM_WAIT_VALUE_GEQ) and _launches.feed.exact:
            _launches.feed.wait_open(seq)      # then it is this thread that waits


cdef void leave_launch(uint32_t id, const CallData* data) noexcept nogil:
    cdef uint64_t seq = data.kept[0] >> NUMBER
    cdef uint32_t slot = <uint32_t>(data.kept[0] & PLACE)
    cdef bint surely = data.kept[0] & SURELY != 0
    if data.kept[0] & FIRST:
        _launches.feed.block(-1)
    data.kept[0] = 0
    if seq:
        _launches.completions.follow(slot, _launches.feed.submit(slot, seq, surely))


cdef void before_blocking(const CallData* data) noexcept nogil:
    data.kept[0] = 0
    if _launches.feed.exact:
        _launches.feed.block(1)
        data.kept[0] = 1
    _launches.settle()


cdef void after_blocking(const CallData* data) noexcept nogil:
    if data.kept[0]:
        data.kept[0] = 0
        _launches.feed.block(-1)


cdef void callback(void* user, int domain, uint32_t id, const CallData* data) noexcept nogil:
    cdef uint64_t began = 0
    if not _on or enter_driver():
        if _on:
            leave_driver()
        return
    if _launches.timing:
        began = deepum_now()
    if id in (BEGIN_CAPTURE, BEGIN_CAPTURE_PTSZ, BEGIN_CAPTURE_V2, BEGIN_CAPTURE_V2_PTSZ,
              BEGIN_CAPTURE_TO, BEGIN_CAPTURE_TO_PTSZ):
        if data.site == API_ENTER:
            _launches.settle()
            _launches.completions.begin_capture()
    elif id in (STREAM_DESTROY, STREAM_DESTROY_V2):
        if data.site == API_ENTER:
            _launches.completions.end_stream((<uint64_t*>data.parameters)[0])
    elif id in (END_CAPTURE, END_CAPTURE_PTSZ):
        if data.site != API_ENTER and _launches.feed.capturing:
            _launches.feed.capturing -= 1
    elif id in (MODULE_LOAD, MODULE_LOAD_EX, LIBRARY_LOAD, MEM_ALLOC, MEM_FREE, HOST_ALLOC,
                HOST_FREE, CONTEXT_SYNC, MODULE_UNLOAD, LIBRARY_UNLOAD):
        if data.site == API_ENTER:
            before_blocking(data)
            if id in (MODULE_UNLOAD, LIBRARY_UNLOAD):
                _launches.forget_functions()
        else:
            after_blocking(data)
    elif id < FURTHER and _further[id].form == FORM_BLOCKING:
        if data.site == API_ENTER:
            before_blocking(data)
        else:
            after_blocking(data)
    elif data.site == API_ENTER:
        data.kept[0] = 0
        enter_launch(id, data)
    else:
        leave_launch(id, data)
    if _launches.timing:
        deepum_add(&_launches.callback_ns, deepum_now() - began)
        deepum_add(&_launches.callbacks, 1)
    leave_driver()


def callback_address():
    """Return the address of the callback, for ``cuptiSubscribe``."""
    return <uintptr_t>&callback


def switch_on(Launches launches not None):
    """Let the callback tell of launches from now on."""
    global _launches, _on
    _launches = launches
    _on = True


def switch_off():
    """Let the callback do nothing."""
    global _on
    _on = False

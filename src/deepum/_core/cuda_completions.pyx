# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Lets streams write to host memory how far they have come: a mark.

DESIGN: a mark keeps the kernels on both its sides apart, and costs the launching thread a call of
the driver. Where memory moves, each launch is worth it. While all memory is on the device nothing
waits for completions, and the feed leaves out most marks. Where a stream then stops, the conductor
asks for the last one. That is a call of the driver for a stream that is the program's: so the
program's own calls that end or capture a stream see to its mark first, and wait while the
conductor asks.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.cuda_thread cimport join_context
from deepum._core.feed cimport (
    Feed, deepum_add, deepum_load, deepum_load32, deepum_store32, enter_driver, leave_driver,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)

from deepum.errors import BackendError


cdef class Completions:
    """Marks of all streams.

    Parameters
    ----------
    feed : Feed
        Whose launches they are of.
    """

    def __cinit__(self, Feed feed not None):
        self.feed = feed
        pthread_mutex_init(&self.lock, NULL)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.lock)

    def use(self, uint64_t host, uint64_t words):
        """Set where streams write, as the host and as the device sees it.

        Call it with the session's context current.
        """
        cdef int status = cydriver.cuCtxGetCurrent(&self.context)
        if status or self.context == NULL:
            raise BackendError(f"this thread has no CUDA context (CUDA error {status})")
        self.words = words
        self.feed.done = <uint32_t*>host
        self.feed.asker = &ask_streams
        self.feed.asked = <void*>self

    def forget(self):
        """Look there no longer; the conductor has ended."""
        self.feed.asker = NULL
        self.feed.asked = NULL
        self.feed.done = self.feed.nothing

    cdef void follow(self, uint32_t slot, uint64_t marked) noexcept nogil:
        # Let a stream write that; 0: nothing.
        cdef uint64_t done = 0
        while marked > done:           # another thread may have told the stream to write more
            done = marked
            self.mark(slot, done)
            marked = deepum_load(&self.feed.streams[slot].marked)

    cdef void mark(self, uint32_t slot, uint64_t done) noexcept nogil:
        cdef cydriver.CUstream stream = <cydriver.CUstream>self.feed.streams[slot].handle
        if not cydriver.cuStreamWriteValue32(
                stream, <cydriver.CUdeviceptr>(self.words + 4 * slot), <uint32_t>done, 0):
            return
        if self.feed.exact and not cydriver.cuStreamSynchronize(stream):
            deepum_store32(&self.feed.done[slot], <uint32_t>done)
            return
        # Its completion will never be seen: follow none.
        deepum_add(&self.failed, 1)
        deepum_store32(&self.feed.blind, 1)

    cdef void catch_up(self, uint32_t slot) noexcept nogil:
        # Let a stream write what it was not told to.
        self.follow(slot, self.feed.owe(slot))

    cdef void catch_up_all(self) noexcept nogil:
        cdef uint32_t slot
        for slot in range(deepum_load32(&self.feed.stream_count)):
            self.catch_up(slot)

    cdef void ask(self) noexcept nogil:
        # For the conductor.
        enter_driver()
        pthread_mutex_lock(&self.lock)
        # Not into a stream that is being captured.
        if not self.feed.capturing and not join_context(self.context):
            self.catch_up_all()
        pthread_mutex_unlock(&self.lock)
        leave_driver()

    cdef void begin_capture(self) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        self.feed.capturing += 1       # from now on no launch goes without a mark
        self.catch_up_all()
        pthread_mutex_unlock(&self.lock)

    cdef void end_stream(self, uint64_t handle) noexcept nogil:
        # The program is about to destroy it.
        cdef uint32_t slot
        pthread_mutex_lock(&self.lock)
        for slot in range(deepum_load32(&self.feed.stream_count)):
            if self.feed.streams[slot].handle == handle:
                self.catch_up(slot)
        pthread_mutex_unlock(&self.lock)


cdef void ask_streams(void* completions) noexcept nogil:
    (<Completions>completions).ask()

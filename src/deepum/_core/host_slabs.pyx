# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Host memory for slabs, in huge pages, made before it is needed.

Before memory can be pinned its pages have to be there, and that is most of what pinning costs:
the kernel clears them one after the other, in the one thread that asks. So threads of a session
make slabs ahead of the need. They call no driver: nothing waits for them that they wait for.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.feed cimport (
    deepum_store32, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init,
    pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock,
)

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void*, size_t, int, int, int, long)
    int munmap(void*, size_t)
    int madvise(void*, size_t, int)
    int PROT_READ
    int PROT_WRITE
    int MAP_PRIVATE
    int MAP_ANONYMOUS
    int MADV_HUGEPAGE
    int MADV_DONTFORK

cdef extern from "<errno.h>" nogil:
    int errno
    int EINVAL

cdef enum:
    POPULATE_WRITE = 23    # MADV_POPULATE_WRITE, of Linux 5.14

cdef uint64_t HUGE = 1 << 21
cdef uint64_t PAGE = 4096


@cython.final
cdef class HostSlabs:
    """Slabs of one size, each at a multiple of 2 MiB.

    Parameters
    ----------
    size : int
        Bytes of a slab, a multiple of 2 MiB.
    """

    def __cinit__(self, uint64_t size):
        if size == 0 or size % HUGE:
            raise ValueError(f"size must be a multiple of 2 MiB, not {size}")
        self.size = size
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.work, NULL)
        pthread_cond_init(&self.done, NULL)

    def __dealloc__(self):
        self.clear()
        pthread_cond_destroy(&self.done)
        pthread_cond_destroy(&self.work)
        pthread_mutex_destroy(&self.lock)

    cdef void want(self, uint64_t slabs) noexcept nogil:
        # So many should be ready or taken.
        pthread_mutex_lock(&self.lock)
        if slabs > self.wanted:
            self.wanted = slabs
            pthread_cond_broadcast(&self.work)
        pthread_mutex_unlock(&self.lock)

    cdef uint64_t take(self) noexcept nogil:
        # A slab, for the caller to keep; 0 if the host has no memory for one.
        cdef uint64_t address = 0
        pthread_mutex_lock(&self.lock)
        while not self.ready_count and self.busy:
            pthread_cond_wait(&self.done, &self.lock)
        if self.ready_count:
            self.ready_count -= 1
            address = self.ready[self.ready_count]
        self.given += 1
        pthread_mutex_unlock(&self.lock)
        if not address:
            address = self.populate()
        if not address:
            pthread_mutex_lock(&self.lock)
            self.given -= 1
            pthread_mutex_unlock(&self.lock)
        return address

    cdef void give(self, uint64_t address) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        self.given -= 1
        pthread_mutex_unlock(&self.lock)
        self.unmap(address)

    cdef uint64_t populate(self) noexcept nogil:
        # Make a slab whose pages are there; 0 if that fails.
        cdef void* memory = mmap(
            NULL, self.size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        cdef uint64_t began = <uint64_t>memory, address, at
        if memory == <void*>-1:
            return 0
        address = (began + HUGE - 1) & ~(HUGE - 1)
        if address > began:
            munmap(memory, address - began)
        munmap(<void*>(address + self.size), began + HUGE - address)
        madvise(<void*>address, self.size, MADV_HUGEPAGE)      # if not, then small ones
        # A child that shared these pages could leave this process with copies of them, while the
        # device goes on with the pages themselves.
        madvise(<void*>address, self.size, MADV_DONTFORK)
        if madvise(<void*>address, self.size, POPULATE_WRITE):
            if errno != EINVAL:
                self.unmap(address)
                return 0
            at = address           # an older kernel
            while at < address + self.size:
                (<char*>at)[0] = 0
                at += PAGE
        return address

    cdef void unmap(self, uint64_t address) noexcept nogil:
        munmap(<void*>address, self.size)

    cdef void give_up(self) noexcept nogil:
        # What was made is of no use.
        pthread_mutex_lock(&self.lock)
        self.clear()
        pthread_mutex_unlock(&self.lock)

    cdef void clear(self) noexcept nogil:
        # With the lock held: let go of what lies ready, and want none.
        cdef uint32_t i
        for i in range(self.ready_count):
            self.unmap(self.ready[i])
        self.ready_count = 0
        self.wanted = 0

    def begin(self):
        """Let `run` do so until `end`."""
        deepum_store32(&self.stopping, 0)

    def run(self):
        """Make slabs that are wanted until `end`; any number of threads may call it."""
        cdef uint64_t address
        with nogil:
            pthread_mutex_lock(&self.lock)
            while not self.stopping:
                if (self.given + self.ready_count + self.busy >= self.wanted
                        or self.ready_count + self.busy == READY):
                    pthread_cond_wait(&self.work, &self.lock)
                    continue
                self.busy += 1
                pthread_mutex_unlock(&self.lock)
                address = self.populate()
                pthread_mutex_lock(&self.lock)
                self.busy -= 1
                if address:
                    self.ready[self.ready_count] = address
                    self.ready_count += 1
                else:              # who needs one has to hear of it
                    self.wanted = 0
                pthread_cond_broadcast(&self.done)
            pthread_mutex_unlock(&self.lock)

    def end(self):
        """Ask the threads to return, and give up what lies ready."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.stopping = 1
            pthread_cond_broadcast(&self.work)
            while self.busy:
                pthread_cond_wait(&self.done, &self.lock)
            self.clear()
            pthread_mutex_unlock(&self.lock)

    @property
    def counts(self):
        """Slabs that lie ready and slabs that are taken, a pair."""
        cdef uint64_t ready, given
        with nogil:
            pthread_mutex_lock(&self.lock)
            ready, given = self.ready_count, self.given
            pthread_mutex_unlock(&self.lock)
        return ready, given

    # -- for tests ---------------------------------------------------------------------------------

    def ask_for(self, uint64_t slabs):
        """Say how many should be ready or taken."""
        self.want(slabs)

    def get(self):
        """Take a slab; return its address, 0 if there is no memory for one."""
        cdef uint64_t address
        with nogil:
            address = self.take()
        return address

    def put(self, uint64_t address):
        """Give a slab back."""
        self.give(address)

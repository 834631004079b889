# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Digests of device memory, made on the device: see deepum/cuda/digest.py.

Each thread block leaves its sums in pinned memory, and whoever has waited for them adds them up.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from deepum._core.feed cimport deepum_store32, enter_driver, leave_driver


@cython.final
cdef class Digester:
    """Makes digests, several at a time.

    Parameters
    ----------
    image : bytes
        PTX.
    name : bytes
        Its kernel's.
    groups, threads : int
        Thread blocks of a launch and threads of each.
    places : int
        Digests that may be under way at once.
    """

    def __cinit__(
        self, bytes image, bytes name, uint32_t groups, uint32_t threads, uint32_t places
    ):
        self.image = image
        self.name = name
        self.groups = groups
        self.threads = threads
        self.places = places

    def begin(self, uint64_t stream):
        """Load the kernel into the thread's context and run it once; tell whether that worked.

        A kernel's first launch may have to wait for the device, so it is made here.
        """
        cdef const char* image = self.image
        cdef const char* name = self.name
        cdef void* memory = NULL
        cdef int status
        with nogil:
            enter_driver()
            status = cydriver.cuModuleLoadData(&self.module, image)
            if not status:
                status = cydriver.cuModuleGetFunction(&self.function, self.module, name)
            if not status:
                status = cydriver.cuMemHostAlloc(
                    &memory, self.places * self.groups * sizeof(Digest),
                    cydriver.CU_MEMHOSTALLOC_DEVICEMAP)
            if not status:
                self.sums = <Digest*>memory
                memset(memory, 0, self.places * self.groups * sizeof(Digest))
                status = cydriver.cuMemHostGetDevicePointer(&self.on_device, memory, 0)
            if not status:
                status = self.start(0, self.on_device, 0, <cydriver.CUstream>stream)
            if not status:
                status = cydriver.cuStreamSynchronize(<cydriver.CUstream>stream)
            leave_driver()
        deepum_store32(&self.works, not status)
        return not status

    cpdef void give_up(self) noexcept nogil:
        """Make no more: one failed, or does not end and may yet write to its place."""
        deepum_store32(&self.works, 0)

    cdef int start(
        self, uint32_t place, uint64_t address, uint64_t size, cydriver.CUstream stream
    ) noexcept nogil:
        # 0, or the driver's error. The size is a multiple of 16 bytes.
        cdef uint64_t pairs = size // 16
        cdef uint64_t sums = self.on_device + place * self.groups * sizeof(Digest)
        cdef void* params[3]
        params[0] = &address
        params[1] = &pairs
        params[2] = &sums
        return cydriver.cuLaunchKernel(
            self.function, self.groups, 1, 1, self.threads, 1, 1, 0, stream, params, NULL)

    cdef Digest read(self, uint32_t place) noexcept nogil:
        cdef Digest whole
        cdef uint32_t i
        whole.first = whole.second = 0
        for i in range(place * self.groups, (place + 1) * self.groups):
            whole.first += self.sums[i].first
            whole.second += self.sums[i].second
        return whole

    def end(self):
        """Give back what `begin` took; nothing may be under way."""
        with nogil:
            enter_driver()
            if self.sums != NULL:
                cydriver.cuMemFreeHost(self.sums)
            if self.module != NULL:
                cydriver.cuModuleUnload(self.module)
            leave_driver()
        self.sums = NULL
        self.module = NULL
        deepum_store32(&self.works, 0)

    def of(self, uint64_t address, uint64_t size, uint64_t stream):
        """Return the digest of device memory, a pair; for tests."""
        cdef int status
        cdef Digest whole
        with nogil:
            enter_driver()
            status = self.start(0, address, size, <cydriver.CUstream>stream)
            if not status:
                status = cydriver.cuStreamSynchronize(<cydriver.CUstream>stream)
            leave_driver()
        if status:
            raise RuntimeError(f"CUDA error {status}")
        whole = self.read(0)
        return whole.first, whole.second

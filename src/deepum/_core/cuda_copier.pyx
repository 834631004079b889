# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Copies to the host and digests of device memory, made by a kernel: see deepum/cuda/copier.py.

Each thread block leaves its sums in pinned memory, and whoever has waited for them adds them up.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from deepum._core.feed cimport deepum_store32, enter_driver, leave_driver


@cython.final
cdef class Copier:
    """Launches the kernel, several at a time.

    Parameters
    ----------
    image : bytes
        PTX.
    name : bytes
        Its kernel's.
    copying, both, reading : int
        Thread blocks of a launch that only copies, of one that makes a digest too, and of one that
        only makes a digest.
    threads : int
        Of each.
    places : int
        Launches that may be under way at once.
    """

    def __cinit__(
        self, bytes image, bytes name, uint32_t copying, uint32_t both, uint32_t reading,
        uint32_t threads, uint32_t places,
    ):
        self.image = image
        self.name = name
        self.copying = copying
        self.both = both
        self.reading = reading
        self.most = max(both, reading)
        self.threads = threads
        self.places = places
        self.groups = <uint32_t*>calloc(places, sizeof(uint32_t))
        if self.groups == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.groups)

    def begin(self, int device, uint64_t stream):
        """Load the kernel into the thread's context and run it once; tell whether that worked.

        A kernel's first launch may have to wait for the device, so it is made here. The device has
        to know pinned memory by the addresses that the host has for it.
        """
        cdef const char* image = self.image
        cdef const char* name = self.name
        cdef void* memory = NULL
        cdef int status, same = 0
        with nogil:
            enter_driver()
            status = cydriver.cuDeviceGetAttribute(
                &same, cydriver.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device)
            if not status and not same:
                status = cydriver.CUDA_ERROR_NOT_SUPPORTED
            if not status:
                status = cydriver.cuModuleLoadData(&self.module, image)
            if not status:
                status = cydriver.cuModuleGetFunction(&self.function, self.module, name)
            if not status:
                status = cydriver.cuMemHostAlloc(
                    &memory, self.places * self.most * sizeof(Digest),
                    cydriver.CU_MEMHOSTALLOC_DEVICEMAP)
            if not status:
                self.sums = <Digest*>memory
                memset(memory, 0, self.places * self.most * sizeof(Digest))
                status = self.start(0, <uint64_t>memory, 0, 0, True, <cydriver.CUstream>stream)
            if not status:
                status = cydriver.cuStreamSynchronize(<cydriver.CUstream>stream)
            leave_driver()
        deepum_store32(&self.works, not status)
        return not status

    cpdef void give_up(self) noexcept nogil:
        """Launch no more: one failed, or does not end and may yet write to its place."""
        deepum_store32(&self.works, 0)

    cdef int start(
        self, uint32_t place, uint64_t address, uint64_t size, uint64_t to, bint mixes,
        cydriver.CUstream stream
    ) noexcept nogil:
        # 0, or the driver's error. The size is a multiple of 16 bytes; `to` is 0 for no copy, and
        # then there has to be a digest.
        cdef uint64_t pairs = size // 16
        cdef uint64_t sums = <uint64_t>&self.sums[place * self.most] if mixes else 0
        cdef void* params[4]
        params[0] = &address
        params[1] = &pairs
        params[2] = &to
        params[3] = &sums
        self.groups[place] = self.reading if not to else self.both if mixes else self.copying
        return cydriver.cuLaunchKernel(
            self.function, self.groups[place], 1, 1, self.threads, 1, 1, 0, stream, params, NULL)

    cdef Digest read(self, uint32_t place) noexcept nogil:
        cdef Digest whole
        cdef uint32_t i
        whole.first = whole.second = 0
        for i in range(self.groups[place]):
            whole.first += self.sums[place * self.most + i].first
            whole.second += self.sums[place * self.most + i].second
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

    def run(self, uint64_t address, uint64_t size, uint64_t to, bint mixes, uint64_t stream):
        """Copy device memory unless `to` is 0; return its digest, a pair, or None. For tests."""
        cdef int status
        cdef Digest whole
        with nogil:
            enter_driver()
            status = self.start(0, address, size, to, mixes, <cydriver.CUstream>stream)
            if not status:
                status = cydriver.cuStreamSynchronize(<cydriver.CUstream>stream)
            leave_driver()
        if status:
            raise RuntimeError(f"CUDA error {status}")
        whole = self.read(0)
        if not mixes:
            return None
        return whole.first, whole.second

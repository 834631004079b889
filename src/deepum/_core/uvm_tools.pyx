# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Reads GPU faults from the event queue of NVIDIA's UVM driver.

The driver writes records into memory of ours; `deepum.cuda.faults` opens the queue. One thread
waits on its descriptor and passes faults on to the feed, within some microseconds.
"""

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from deepum._core.feed cimport Feed, deepum_load32, deepum_store32

cdef extern from "poll.h" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* descriptors, unsigned long count, int milliseconds)

cdef enum:
    GPU_FAULT = 3
    READ = 1

# A record and the queue's control words, as the driver lays them out (580 to 595).
cdef struct Record:
    uint8_t type
    uint8_t fault_type
    uint16_t gpu
    uint16_t gpc
    uint16_t client
    uint64_t address
    uint64_t time
    uint64_t gpu_time
    uint32_t batch
    uint8_t client_type
    uint8_t access
    uint8_t unused[34]

cdef struct Control:
    uint32_t get_ahead
    uint32_t get_behind
    uint32_t put_ahead
    uint32_t put_behind
    uint64_t dropped[64]


@cython.final
cdef class FaultQueue:
    """The queue's reader.

    Parameters
    ----------
    feed
        Who is told.
    descriptor : int
        What to wait on.
    records, control : int
        Addresses of the queue's two pieces of memory.
    entries : int
        Records that fit, a power of two.
    """

    cdef Feed feed
    cdef int descriptor
    cdef Record* records
    cdef Control* control
    cdef uint32_t entries
    cdef uint32_t stopping

    def __cinit__(
        self, Feed feed not None, int descriptor, uint64_t records, uint64_t control,
        uint32_t entries
    ):
        self.feed = feed
        self.descriptor = descriptor
        self.records = <Record*><uintptr_t>records
        self.control = <Control*><uintptr_t>control
        self.entries = entries

    def run(self):
        """Read until `stop`; call it in a thread of its own."""
        cdef pollfd wait
        cdef uint32_t get, put
        cdef Record* record
        wait.fd = self.descriptor
        wait.events = POLLIN
        with nogil:
            get = self.control.get_ahead
            while not deepum_load32(&self.stopping):
                poll(&wait, 1, 50)
                put = deepum_load32(&self.control.put_behind)
                while get != put:
                    record = &self.records[get]
                    if record.type == GPU_FAULT:
                        self.feed.fault(record.address, record.access != READ)
                    get = (get + 1) & (self.entries - 1)
                    # Each is given back at once: a full queue loses records.
                    deepum_store32(&self.control.get_ahead, get)
                    deepum_store32(&self.control.get_behind, get)
                    if get == put:
                        put = deepum_load32(&self.control.put_behind)

    def stop(self):
        """Ask `run` to return."""
        deepum_store32(&self.stopping, 1)

    @property
    def dropped(self):
        """Fault records that the driver could not keep."""
        return self.control.dropped[GPU_FAULT]

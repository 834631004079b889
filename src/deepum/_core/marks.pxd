# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

from deepum._core.feed cimport pthread_mutex_t

# Marks of what the program did have the numbers of its events; these are the others.
cdef enum MarkKind:
    MARK_STEP = 32         # a step ended with launch `seq`; `what` changes where those before it
    #                        are found to have been none, `amount`: the program said so
    MARK_COMPLETE = 33     # launches up to `seq` were seen to have finished; `amount` ns since the
    #                        look before
    MARK_OPEN = 34         # gates up to `seq` were opened
    MARK_FAULT = 35        # `amount` fault records since the look before, the first at `what`
    MARK_IN = 36           # `amount` blocks from block `what` on moved to the device
    MARK_OUT = 37          # or to the host
    MARK_DROP = 38         # or were dropped
    MARK_RESIDENT = 39     # `amount` blocks have a frame


cdef struct Mark:
    uint64_t time          # ns, CLOCK_MONOTONIC
    uint64_t until         # its end, where it lasts
    uint64_t what          # execution ID, address or first block
    uint64_t amount        # bytes, blocks or records
    uint64_t seq           # launch
    uint32_t kind
    uint32_t name          # number of the function's name


cdef class Marks:
    cdef pthread_mutex_t lock      # writers: the conductor and the movers
    cdef Mark* marks
    cdef uint64_t mask
    cdef uint64_t head, tail       # taken, put
    cdef uint64_t missing
    cdef uint32_t closed

    cdef void put(
        self, uint32_t kind, uint64_t time, uint64_t until, uint64_t what, uint64_t amount,
        uint64_t seq, uint32_t name
    ) noexcept nogil

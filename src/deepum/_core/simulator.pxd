# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine
from deepum._core.lowering cimport Program

cdef enum:
    FIFO = 256                 # blocks on their way in: more than any window


cdef struct Rates:
    # A machine profile, in seconds.
    double block_in, block_out              # one block, this direction alone
    double block_in_both, block_out_both    # while the other direction is busy
    double move_in, move_out                # fixed cost of a run
    double fault_batch, fault_page
    double populate, discard
    uint32_t fault_window, evict_ahead


cdef struct Tally:
    double time, compute, host
    double stall_fault, stall_evict, stall_late
    uint64_t page_faults
    uint64_t bytes_in, bytes_out, bytes_dropped


cdef struct Move:
    uint32_t slot
    uint32_t opens             # first block of its run: pays the fixed cost
    double ready               # when the kernels that may still use it have ended


cdef class Simulator:
    cdef readonly Engine engine
    cdef readonly Program program
    cdef Rates rates
    cdef Tally tally
    cdef readonly double now
    cdef double kernels_done               # plain memory: when the kernels submitted have ended
    cdef const uint64_t[::1] exec_id
    cdef const int64_t[::1] touch_start
    cdef const uint16_t[::1] touch_faults
    cdef const uint16_t[::1] touch_moved
    cdef const uint8_t[::1] touch_flags
    cdef const uint32_t[::1] touch_bytes   # that cross the bus where it is used in place
    cdef const double[::1] gather_share
    cdef uint32_t[::1] touch_slot
    cdef uint32_t[::1] shuffled            # touches of a launch with gathers
    cdef uint16_t[::1] shuffled_faults
    cdef uint16_t[::1] shuffled_moved
    cdef int64_t[::1] shuffled_touch
    cdef uint64_t random_state
    cdef const double[::1] kernel_time
    cdef const uint8_t[::1] event_op
    cdef const uint64_t[::1] event_arg
    cdef const uint64_t[::1] tensor_address
    cdef const uint64_t[::1] tensor_bytes
    cdef const uint8_t[::1] tensor_kind
    cdef const uint32_t[::1] operand_start
    cdef const uint32_t[::1] operand_tensor
    # the way in: what is moving, and what waits
    cdef bint in_busy, out_busy, servicing
    cdef bint in_copy              # what is moving in has its contents on the host as well
    cdef double in_done, out_done, next_done
    cdef uint32_t in_slot, out_slot
    cdef Move in_fifo[FIFO]
    cdef uint32_t in_head, in_size
    cdef Move* out_fifo
    cdef uint32_t out_head, out_size, out_capacity
    cdef uint32_t out_urgent               # evictions at the front that stand on a fault's path
    cdef bint sampling
    cdef list samples
    cdef bint names_ranges

    cdef int run_kernel(self, uint64_t kernel) except -1 nogil
    cdef int pause(self, double seconds) except -1 nogil
    cdef int finish(self) except -1 nogil
    cdef int name_tensors(self, uint64_t kernel) except -1 nogil
    cdef int gate(self, uint64_t kernel) except -1 nogil
    cdef int submit(
        self, uint64_t kernel, const uint32_t* slots, int64_t count
    ) except -1 nogil
    cdef int64_t shuffle(self, uint64_t kernel) noexcept nogil
    cdef int sample(self) except -1
    cdef int miss(
        self, const uint32_t* slots, const uint16_t* faults, const uint16_t* moved, int64_t j,
        int64_t count
    ) except -1 nogil
    cdef int wait_late(self, uint32_t slot) except -1 nogil
    cdef int hurry(self, uint32_t slot) except -1 nogil
    cdef int clear_ahead(self, uint32_t frames) except -1 nogil
    cdef void use_in_place(
        self, uint32_t slot, uint32_t size, bint writes, double each
    ) noexcept nogil
    cdef int take_frame(self, uint32_t slot, bint queued) except -1 nogil
    cdef int serve(self, uint32_t slot, uint16_t faults, uint16_t moved) except -1 nogil
    cdef int advance(self, double t) except -1 nogil
    cdef int settle(self, double t) except -1 nogil
    cdef int route(self, double t) except -1 nogil
    cdef int push_out(self, uint32_t slot, bint opens, bint urgent) except -1 nogil
    cdef void start_in(self, double t) noexcept nogil
    cdef void start_out(self, double t) noexcept nogil
    cdef double share(self, uint32_t slot) noexcept nogil
    cdef void set_next(self) noexcept nogil

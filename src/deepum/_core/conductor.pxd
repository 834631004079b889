# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t

from deepum._core.engine cimport Engine
from deepum._core.feed cimport Feed, pthread_mutex_t
from deepum._core.marks cimport Marks
from deepum._core.records cimport deepum_command, deepum_event
from deepum._core.steps cimport Steps


cdef class Mover:
    # Carries commands out, in threads of its own.
    cdef int submit(self, Feed feed, const deepum_command* command) except -1 nogil
    cdef int report(self, Engine engine) except -1 nogil
    cdef bint idle(self) noexcept nogil


cdef struct Gate:
    uint64_t seq           # launch
    uint64_t first         # its part of the waiting slots
    uint32_t count


cdef class Conductor:
    cdef readonly Engine engine
    cdef readonly Feed feed
    cdef readonly Mover mover
    cdef readonly Steps steps      # the program's
    cdef Marks marks               # None: nothing is recorded
    cdef uint64_t now, looked      # ns: this look at everything, and the one before
    cdef uint64_t submitted        # launches, when they were looked at last ...
    cdef uint64_t paused           # ... and since when there are no more, ns
    cdef uint64_t resident         # blocks, as recorded last
    cdef pthread_mutex_t lock      # the engine
    cdef readonly bint gated       # launches that name their memory wait for it
    cdef readonly bint strict      # launches wait while faults have brought in too much
    cdef bint names                # launches name their memory
    cdef public bint alone         # launches run one at a time, gated even if all fits: to try out
    cdef bint holds                # gates stay as they are when it is told to stop
    cdef uint32_t stopping
    cdef uint32_t* flag            # the device waits for this: low half of the last open launch
    cdef Gate* gates               # launches that are not open, in order
    cdef uint64_t gate_head, gate_tail, gate_mask
    cdef uint32_t* slots           # blocks they wait for
    cdef uint64_t slot_head, slot_tail, slot_mask
    cdef uint64_t progress         # when a gate opened last, ns
    cdef readonly uint64_t squeezed        # gates opened since their launch could not have it all
    cdef readonly uint64_t overdue         # gates opened since they took too long
    cdef int64_t stuck[12]         # how things stood when a gate was overdue last
    cdef readonly uint64_t rounds, busy_rounds
    cdef readonly str failure      # why the engine was left

    cdef int round(self) except -1 nogil
    cdef int hear_of_completions(self, uint64_t done, bint* busy) except -1 nogil
    cdef void see_to_marks(self, bint rarely) noexcept nogil
    cdef bint end_step(self, const deepum_event* event) noexcept nogil
    cdef int listen(self, bint* busy) except -1 nogil
    cdef void note(self, const deepum_event* event) noexcept nogil
    cdef void note_step(self, uint64_t seq) noexcept nogil
    cdef void note_look(self, uint64_t faults, uint64_t address) noexcept nogil
    cdef bint may_go(self) noexcept nogil
    cdef int note_needs(self, uint64_t seq) except -1 nogil
    cdef int grow_gates(self) except -1 nogil
    cdef int grow_slots(self) except -1 nogil
    cdef void open_gates(self) noexcept nogil
    cdef void note_stuck(self) noexcept nogil
    cdef bint still(self) noexcept nogil
    cdef uint64_t last_ready(self) noexcept nogil
    cdef void open(self, uint64_t seq) noexcept nogil
    cdef int dispatch(self) except -1 nogil

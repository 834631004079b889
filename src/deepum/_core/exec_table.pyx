# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The execution-ID table: which kernel follows which.

An entry for each execution ID holds a record for every (three predecessors, next) ever seen after
it; none is dropped. Lookups do not scan records: every context of three, two and one predecessors
also leads, through one open-addressing hash table, to the kernel that most recently followed it.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    # Finaliser of SplitMix64: every input bit reaches every output bit.
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t mix4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) noexcept nogil:
    return mix((<uint64_t>a | (<uint64_t>b << 32))
               + <uint64_t>0x9E3779B97F4A7C15 * (<uint64_t>c | (<uint64_t>d << 32)))


@cython.final
cdef class ExecTable:
    """Predicts the next execution ID from the last ones.

    A context is a sequence of execution IDs, oldest first, whose last is the current kernel: at
    most three predecessors and the kernel itself. Longer sequences count by their last four.
    """

    def __cinit__(self):
        self.entry_mask = 15
        self.context_mask = 31
        self.record_mask = 15
        self.entry_index = <uint32_t*>malloc(16 * sizeof(uint32_t))
        self.contexts = <Context*>malloc(32 * sizeof(Context))
        self.record_index = <uint32_t*>malloc(16 * sizeof(uint32_t))
        if not self.entry_index or not self.contexts or not self.record_index:
            raise MemoryError()
        memset(self.entry_index, 0xFF, 16 * sizeof(uint32_t))
        memset(self.contexts, 0xFF, 32 * sizeof(Context))
        memset(self.record_index, 0xFF, 16 * sizeof(uint32_t))

    def __dealloc__(self):
        free(self.entries)
        free(self.entry_index)
        free(self.contexts)
        free(self.records)
        free(self.record_index)

    # -- entries ------------------------------------------------------------------------------

    cdef uint32_t find(self, uint64_t exec_id) noexcept nogil:
        cdef uint32_t slot = <uint32_t>mix(exec_id) & self.entry_mask
        cdef uint32_t index
        while True:
            index = self.entry_index[slot]
            if index == NONE or self.entries[index].exec_id == exec_id:
                return index
            slot = (slot + 1) & self.entry_mask

    cdef uint32_t intern(self, uint64_t exec_id) except? NONE nogil:
        # The entry's index, made if new.
        cdef uint32_t index = self.find(exec_id)
        cdef uint32_t slot
        if index != NONE:
            return index
        if self.entry_count == self.entry_capacity or self.entry_count * 2 > self.entry_mask:
            self.grow_entries()
        index = self.entry_count
        self.entries[index].exec_id = exec_id
        self.entries[index].records = NONE
        self.entries[index].latest = NONE
        self.entries[index].record_count = 0
        self.entry_count += 1
        slot = <uint32_t>mix(exec_id) & self.entry_mask
        while self.entry_index[slot] != NONE:
            slot = (slot + 1) & self.entry_mask
        self.entry_index[slot] = index
        return index

    cdef int grow_entries(self) except -1 nogil:
        cdef uint32_t capacity = self.entry_capacity * 2 if self.entry_capacity else 8
        cdef uint32_t size, slot, i
        cdef void* memory
        if self.entry_count == self.entry_capacity:
            memory = realloc(self.entries, capacity * sizeof(Entry))
            if not memory:
                with gil:
                    raise MemoryError()
            self.entries = <Entry*>memory
            self.entry_capacity = capacity
        if self.entry_count * 2 > self.entry_mask:
            size = (self.entry_mask + 1) * 2
            memory = malloc(size * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            free(self.entry_index)
            self.entry_index = <uint32_t*>memory
            self.entry_mask = size - 1
            memset(self.entry_index, 0xFF, size * sizeof(uint32_t))
            for i in range(self.entry_count):
                slot = <uint32_t>mix(self.entries[i].exec_id) & self.entry_mask
                while self.entry_index[slot] != NONE:
                    slot = (slot + 1) & self.entry_mask
                self.entry_index[slot] = i
        return 0

    # -- contexts -----------------------------------------------------------------------------

    cdef int put_context(
        self, uint32_t c, uint32_t p1, uint32_t p2, uint32_t p3, uint32_t following
    ) except -1 nogil:
        cdef uint32_t slot
        cdef Context* node
        if self.context_count * 3 > self.context_mask * 2:
            self.grow_contexts()
        slot = <uint32_t>mix4(c, p1, p2, p3) & self.context_mask
        while True:
            node = &self.contexts[slot]
            if node.following == NONE:
                node.current = c
                node.before[0] = p1
                node.before[1] = p2
                node.before[2] = p3
                node.following = following
                self.context_count += 1
                return 0
            if (node.current == c and node.before[0] == p1 and node.before[1] == p2
                    and node.before[2] == p3):
                node.following = following
                return 0
            slot = (slot + 1) & self.context_mask

    cdef uint32_t get_context(
        self, uint32_t c, uint32_t p1, uint32_t p2, uint32_t p3
    ) noexcept nogil:
        cdef uint32_t slot = <uint32_t>mix4(c, p1, p2, p3) & self.context_mask
        cdef Context* node
        while True:
            node = &self.contexts[slot]
            if node.following == NONE:
                return NONE
            if (node.current == c and node.before[0] == p1 and node.before[1] == p2
                    and node.before[2] == p3):
                return node.following
            slot = (slot + 1) & self.context_mask

    cdef int grow_contexts(self) except -1 nogil:
        cdef uint32_t old_size = self.context_mask + 1
        cdef uint32_t size = old_size * 2
        cdef Context* old = self.contexts
        cdef Context* fresh = <Context*>malloc(size * sizeof(Context))
        cdef uint32_t i, slot
        if not fresh:
            with gil:
                raise MemoryError()
        memset(fresh, 0xFF, size * sizeof(Context))
        self.contexts = fresh
        self.context_mask = size - 1
        for i in range(old_size):
            if old[i].following == NONE:
                continue
            slot = <uint32_t>mix4(old[i].current, old[i].before[0], old[i].before[1],
                                  old[i].before[2]) & self.context_mask
            while fresh[slot].following != NONE:
                slot = (slot + 1) & self.context_mask
            fresh[slot] = old[i]
        free(old)
        return 0

    # -- records ------------------------------------------------------------------------------

    cdef int grow_records(self) except -1 nogil:
        cdef uint32_t capacity = self.record_capacity * 2 if self.record_capacity else 8
        cdef uint32_t size, slot, i
        cdef Record* r
        cdef void* memory
        if self.record_count == self.record_capacity:
            memory = realloc(self.records, capacity * sizeof(Record))
            if not memory:
                with gil:
                    raise MemoryError()
            self.records = <Record*>memory
            self.record_capacity = capacity
        if self.record_count * 2 > self.record_mask:
            size = (self.record_mask + 1) * 2
            memory = malloc(size * sizeof(uint32_t))
            if not memory:
                with gil:
                    raise MemoryError()
            free(self.record_index)
            self.record_index = <uint32_t*>memory
            self.record_mask = size - 1
            memset(self.record_index, 0xFF, size * sizeof(uint32_t))
            for i in range(self.record_count):
                r = &self.records[i]
                slot = <uint32_t>(
                    mix4(r.current, r.before[0], r.before[1], r.before[2]) + mix(r.following)
                ) & self.record_mask
                while self.record_index[slot] != NONE:
                    slot = (slot + 1) & self.record_mask
                self.record_index[slot] = i
        return 0

    # -- the table ----------------------------------------------------------------------------

    cdef int learn(self, const uint32_t* context, uint32_t following) except -1 nogil:
        # `context`: the current kernel, then its three predecessors, nearest first (NONE: none).
        cdef uint32_t c = context[0], p1 = context[1], p2 = context[2], p3 = context[3]
        cdef uint32_t slot, index
        cdef Record* r
        self.clock += 1
        # The same record again: every context it belongs to still leads to `following`.
        if self.entries[c].latest != NONE:
            r = &self.records[self.entries[c].latest]
            if (r.before[0] == p1 and r.before[1] == p2 and r.before[2] == p3
                    and r.following == following):
                r.count += 1
                r.recency = self.clock
                return 0
        self.put_context(c, p1, p2, p3, following)
        self.put_context(c, p1, p2, ANY, following)
        self.put_context(c, p1, ANY, ANY, following)
        slot = <uint32_t>(mix4(c, p1, p2, p3) + mix(following)) & self.record_mask
        while True:
            index = self.record_index[slot]
            if index == NONE:
                break
            r = &self.records[index]
            if (r.current == c and r.before[0] == p1 and r.before[1] == p2 and r.before[2] == p3
                    and r.following == following):
                r.count += 1
                r.recency = self.clock
                self.entries[c].latest = index
                return 0
            slot = (slot + 1) & self.record_mask
        if self.record_count == self.record_capacity or self.record_count * 2 > self.record_mask:
            self.grow_records()
            slot = <uint32_t>(mix4(c, p1, p2, p3) + mix(following)) & self.record_mask
            while self.record_index[slot] != NONE:
                slot = (slot + 1) & self.record_mask
        index = self.record_count
        r = &self.records[index]
        r.current = c
        r.before[0] = p1
        r.before[1] = p2
        r.before[2] = p3
        r.following = following
        r.count = 1
        r.recency = self.clock
        r.sibling = self.entries[c].records
        self.entries[c].records = index
        self.entries[c].record_count += 1
        self.entries[c].latest = index
        self.record_index[slot] = index
        self.record_count += 1
        return 0

    cdef uint32_t guess(self, const uint32_t* context) noexcept nogil:
        cdef uint32_t c = context[0], p1 = context[1], p2 = context[2], p3 = context[3]
        cdef uint32_t following
        if c == NONE:
            return NONE
        following = self.get_context(c, p1, p2, p3)
        if following == NONE:
            following = self.get_context(c, p1, p2, ANY)
            if following == NONE:
                following = self.get_context(c, p1, ANY, ANY)
        return following

    cdef uint64_t bytes_used(self) noexcept nogil:
        return (self.entry_capacity * sizeof(Entry)
                + (<uint64_t>self.entry_mask + 1) * sizeof(uint32_t)
                + (<uint64_t>self.context_mask + 1) * sizeof(Context)
                + self.record_capacity * sizeof(Record)
                + (<uint64_t>self.record_mask + 1) * sizeof(uint32_t))

    # -- from Python --------------------------------------------------------------------------

    cdef int known(self, object context, uint32_t* out, bint make) except -1:
        # Translate IDs, oldest first, into entry indices, nearest first. Return 0 if the current
        # kernel is unknown. An unknown predecessor matches nothing, so it becomes ANY - 1.
        cdef Py_ssize_t size = len(context)
        cdef uint64_t exec_id
        cdef uint32_t index
        cdef int k
        for k in range(4):
            if k >= size:
                out[k] = NONE
                continue
            exec_id = context[size - 1 - k]
            index = self.intern(exec_id) if make else self.find(exec_id)
            if index == NONE:
                if k == 0:
                    return 0
                index = ANY - 1
            out[k] = index
        return size > 0

    def update(self, context, exec_id):
        """Record that `exec_id` followed `context`.

        Parameters
        ----------
        context : sequence of int
            Execution IDs (64 bits), oldest first, the last one the kernel before `exec_id`.
            Fewer than three predecessors are recorded as such.
        exec_id : int
            The kernel that followed.
        """
        cdef uint32_t indices[4]
        if not self.known(context, indices, True):
            self.intern(exec_id)
            return
        self.learn(indices, self.intern(exec_id))

    def predict(self, context):
        """Return the execution ID expected after `context`, or None.

        The longest match decides: three predecessors, then two, then one; with none matching
        there is no prediction. Where several kernels followed equally long matches, the one seen
        most recently is returned.
        """
        cdef uint32_t indices[4]
        cdef uint32_t following
        if not self.known(context, indices, False):
            return None
        following = self.guess(indices)
        return None if following == NONE else self.entries[following].exec_id

    def predict_chain(self, context, Py_ssize_t depth):
        """Return up to `depth` execution IDs, each predicted from the ones before it.

        Raises
        ------
        ValueError
            `depth` is negative.
        """
        cdef uint32_t indices[4]
        cdef uint32_t following
        if depth < 0:
            raise ValueError("depth must not be negative")
        chain = []
        if not self.known(context, indices, False):
            return chain
        while len(chain) < depth:
            following = self.guess(indices)
            if following == NONE:
                break
            chain.append(self.entries[following].exec_id)
            indices[3] = indices[2]
            indices[2] = indices[1]
            indices[1] = indices[0]
            indices[0] = following
        return chain

    def records_of(self, exec_id):
        """Return the records of an entry, latest first.

        Each is ``(predecessors, next, count, recency)``; predecessors are oldest first and leave
        out those that did not exist; a larger recency is later.
        """
        cdef uint32_t index = self.find(exec_id)
        cdef Record* r
        found = []
        if index == NONE:
            return found
        index = self.entries[index].records
        while index != NONE:
            r = &self.records[index]
            before = tuple(
                self.entries[r.before[k]].exec_id for k in (2, 1, 0) if r.before[k] != NONE
            )
            found.append((before, self.entries[r.following].exec_id, r.count, r.recency))
            index = r.sibling
        found.sort(key=_recency, reverse=True)
        return found

    def __len__(self):
        return self.entry_count

    def __contains__(self, exec_id):
        return self.find(exec_id) != NONE

    @property
    def record_total(self):
        """Number of records in all entries."""
        return self.record_count

    @property
    def nbytes(self):
        """Bytes of memory the table takes."""
        return self.bytes_used()


def _recency(record):
    return record[3]

# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""The UM-block table of one execution ID: which block faults after which.

The table is set-associative: a block belongs to the row ``block % rows``, a row holds `ways`
blocks in least-recently-used order, and each way keeps, for every level, the last `successors`
blocks that came that many faults later, most recent first. A row takes memory only when it is
first used, so a kernel that touches three blocks pays for three.

DESIGN: the paper sets the start and the end block anew at every kernel transition. Once
prefetching works, only the odd block still faults, and taking that one for both ends would throw
the rest of the kernel away. Here the start is the first block that ever faulted, and a fault that
opens a later launch is linked after the end if the block is new. Everything learnt stays
reachable from the start.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from deepum._core.exec_table cimport NONE


cdef int geometry_set(
    Geometry* g, uint32_t rows, uint32_t ways, uint32_t successors, uint32_t levels
) except -1:
    if not 1 <= rows <= 1 << 24:
        raise ValueError(f"rows must be between 1 and {1 << 24}, not {rows}")
    if not 1 <= ways <= 64:
        raise ValueError(f"ways must be between 1 and 64, not {ways}")
    if not 1 <= successors <= 64:
        raise ValueError(f"successors must be between 1 and 64, not {successors}")
    if not 1 <= levels <= MAX_LEVELS:
        raise ValueError(f"levels must be between 1 and {MAX_LEVELS}, not {levels}")
    g.rows = rows
    g.ways = ways
    g.successors = successors
    g.levels = levels
    g.stride = 2 + successors * levels
    return 0


cdef void table_init(Table* t) noexcept nogil:
    memset(t, 0, sizeof(Table))
    t.start = NONE
    t.end = NONE


cdef void table_free(Table* t) noexcept nogil:
    free(t.ways)
    free(t.index)
    table_init(t)


cdef inline uint32_t home(uint32_t row, uint32_t mask) noexcept nogil:
    # Fibonacci hashing spreads runs of rows over an index smaller than `rows`.
    return ((row * <uint32_t>2654435769) >> 7) & mask


cdef inline uint32_t find_row(const Table* t, const Geometry* g, uint32_t row) noexcept nogil:
    # Slot of the row in the index, or the free slot where it would go. The index has one.
    cdef uint32_t slot = home(row, t.mask)
    cdef uint32_t way
    while True:
        way = t.index[slot]
        if way == NONE or t.ways[way * g.stride] % g.rows == row:
            return slot
        slot = (slot + 1) & t.mask


cdef uint32_t* table_find(const Table* t, const Geometry* g, uint32_t block) noexcept nogil:
    # The block's way, or NULL; its row's order stays as it is.
    cdef uint32_t way
    cdef uint32_t* words
    if t.count == 0:
        return NULL
    way = t.index[find_row(t, g, block % g.rows)]
    while way != NONE:
        words = &t.ways[way * g.stride]
        if words[0] == block:
            return words
        way = words[1]
    return NULL


cdef uint32_t table_row(const Table* t, const Geometry* g, uint32_t block) noexcept nogil:
    # Ways in use in the block's row.
    cdef uint32_t way, filled = 0
    if t.count == 0:
        return 0
    way = t.index[find_row(t, g, block % g.rows)]
    while way != NONE:
        filled += 1
        way = t.ways[way * g.stride + 1]
    return filled


cdef int grow_index(Table* t, const Geometry* g) except -1 nogil:
    cdef uint32_t size = 4 if t.index == NULL else (t.mask + 1) * 2
    cdef uint32_t* old = t.index
    cdef uint32_t old_size = 0 if old == NULL else t.mask + 1
    cdef uint32_t i, slot
    cdef uint32_t* fresh = <uint32_t*>malloc(size * sizeof(uint32_t))
    if not fresh:
        with gil:
            raise MemoryError()
    memset(fresh, 0xFF, size * sizeof(uint32_t))
    t.index = fresh
    t.mask = size - 1
    for i in range(old_size):
        if old[i] != NONE:
            slot = home(t.ways[old[i] * g.stride] % g.rows, t.mask)
            while fresh[slot] != NONE:
                slot = (slot + 1) & t.mask
            fresh[slot] = old[i]
    free(old)
    return 0


cdef int grow_ways(Table* t, const Geometry* g) except -1 nogil:
    # By a half: tables are many and small, so slack costs more than copying.
    cdef uint32_t capacity = t.capacity + (t.capacity >> 1) + 2
    cdef void* memory = realloc(t.ways, <size_t>capacity * g.stride * sizeof(uint32_t))
    if not memory:
        with gil:
            raise MemoryError()
    t.ways = <uint32_t*>memory
    t.capacity = capacity
    return 0


cdef uint32_t* table_touch(Table* t, const Geometry* g, uint32_t block) except NULL nogil:
    # The block's way, made the most recent of its row; in a full row it replaces the oldest.
    cdef uint32_t row = block % g.rows
    cdef uint32_t slot, way, before = NONE, filled = 0
    cdef uint32_t* words
    if t.index == NULL:
        grow_index(t, g)
    slot = find_row(t, g, row)
    way = t.index[slot]
    if way == NONE:
        if t.row_count * 4 >= (t.mask + 1) * 3:
            grow_index(t, g)
            slot = find_row(t, g, row)
        t.row_count += 1
    while way != NONE:
        words = &t.ways[way * g.stride]
        filled += 1
        if words[0] == block or (words[1] == NONE and filled == g.ways):
            if words[0] != block:
                words[0] = block
                memset(words + 2, 0xFF, (g.stride - 2) * sizeof(uint32_t))
            if before != NONE:
                t.ways[before * g.stride + 1] = words[1]
                words[1] = t.index[slot]
                t.index[slot] = way
            return words
        before = way
        way = words[1]
    if t.count == t.capacity:
        grow_ways(t, g)
    way = t.count
    t.count += 1
    words = &t.ways[way * g.stride]
    words[0] = block
    words[1] = t.index[slot]
    memset(words + 2, 0xFF, (g.stride - 2) * sizeof(uint32_t))
    t.index[slot] = way
    return words


cdef void table_link(
    Table* t, const Geometry* g, uint32_t block, uint32_t follower, uint32_t level
) noexcept nogil:
    # Make `follower` the most recent successor of `block`, if the block is still in the table.
    cdef uint32_t* words = table_find(t, g, block)
    cdef uint32_t* successors
    cdef uint32_t i, carried, held
    if words == NULL:
        return
    successors = words + 2 + level * g.successors
    carried = follower
    for i in range(g.successors):
        held = successors[i]
        successors[i] = carried
        if held == follower or held == NONE:
            return
        carried = held


cdef int table_record(
    Table* t, const Geometry* g, uint32_t* last, uint32_t block
) except -1 nogil:
    # Record a fault. `last`: the launch's last faults, nearest first, NONE where there was none.
    cdef bint opening = last[0] == NONE
    cdef uint32_t level
    if t.start == NONE:
        t.start = block
        t.end = block
    elif opening:
        if block != t.end and table_find(t, g, block) == NULL:
            table_link(t, g, t.end, block, 0)
            t.end = block
    else:
        if table_find(t, g, block) == NULL:
            t.end = block
        for level in range(g.levels):
            if last[level] == NONE:
                break
            table_link(t, g, last[level], block, level)
    table_touch(t, g, block)
    for level in range(g.levels - 1, 0, -1):
        last[level] = last[level - 1]
    last[0] = block
    return 0


cdef uint64_t table_bytes(const Table* t, const Geometry* g) noexcept nogil:
    cdef uint64_t index = 0 if t.index == NULL else <uint64_t>t.mask + 1
    return sizeof(Table) + (index + <uint64_t>t.capacity * g.stride) * sizeof(uint32_t)


# -- walks --------------------------------------------------------------------------------------


cdef void walk_free(Walk* w) noexcept nogil:
    free(w.stack)
    free(w.seen)
    memset(w, 0, sizeof(Walk))


cdef int push(Walk* w, uint32_t block) except -1 nogil:
    cdef uint32_t capacity
    cdef void* memory
    if w.depth == w.capacity:
        capacity = w.capacity * 2 if w.capacity else 64
        memory = realloc(w.stack, capacity * sizeof(uint32_t))
        if not memory:
            with gil:
                raise MemoryError()
        w.stack = <uint32_t*>memory
        w.capacity = capacity
    w.stack[w.depth] = block
    w.depth += 1
    return 0


cdef int walk_room(Walk* w, uint32_t ways) except -1 nogil:
    # The table may have grown while the walk was paused.
    cdef uint32_t words = (ways + 63) >> 6
    cdef void* memory
    if words > w.seen_words:
        words = words * 2
        memory = realloc(w.seen, words * sizeof(uint64_t))
        if not memory:
            with gil:
                raise MemoryError()
        w.seen = <uint64_t*>memory
        memset(w.seen + w.seen_words, 0, (words - w.seen_words) * sizeof(uint64_t))
        w.seen_words = words
    return 0


cdef int walk_begin(Walk* w, const Table* t, uint32_t block, bint whole) except -1 nogil:
    # Start at `block`; the walk visits every block reachable from it, then, if it is to be
    # `whole`, what else the table holds, and ends.
    w.depth = 0
    w.rest = 0 if whole else NONE
    walk_room(w, t.count)
    # All of it: the table may grow into what an earlier walk of a larger one has marked.
    memset(w.seen, 0, w.seen_words * sizeof(uint64_t))
    if block != NONE:
        push(w, block)
    return 0


cdef uint32_t walk_next(Walk* w, const Table* t, const Geometry* g) except? 0 nogil:
    # The next block, most recent successor first, or NONE at the end.
    #
    # It ends whatever the table holds: only an unseen way is expanded, which happens once for
    # each way. A block without a way (its row was full) is visited but leads nowhere.
    cdef uint32_t block, way
    cdef uint32_t* words
    cdef int i
    while True:
        if not w.depth:
            # A successor list is short: what it no longer names is still worth a visit.
            if w.rest != NONE:
                walk_room(w, t.count)
            while w.rest < t.count and w.seen[w.rest >> 6] >> (w.rest & 63) & 1:
                w.rest += 1
            if w.rest >= t.count:
                return NONE
            push(w, t.ways[w.rest * g.stride])
        w.depth -= 1
        block = w.stack[w.depth]
        words = table_find(t, g, block)
        if words == NULL:
            return block
        way = <uint32_t>((words - t.ways) // g.stride)
        walk_room(w, way + 1)
        if w.seen[way >> 6] >> (way & 63) & 1:
            continue
        w.seen[way >> 6] |= <uint64_t>1 << (way & 63)
        for i in range(<int>g.stride - 1, 1, -1):
            if words[i] != NONE:
                push(w, words[i])
        return block


@cython.final
cdef class BlockTable:
    """A UM-block table by itself, for tests, studies and custom policies.

    Parameters
    ----------
    rows, ways, successors, levels : int
        Geometry; the paper's choice is 2048 rows, 2 ways, 4 successors and 1 level.
    """

    def __cinit__(
        self, uint32_t rows=2048, uint32_t ways=2, uint32_t successors=4, uint32_t levels=1
    ):
        geometry_set(&self.geometry, rows, ways, successors, levels)
        table_init(&self.table)
        memset(self.last, 0xFF, sizeof(self.last))

    def __dealloc__(self):
        table_free(&self.table)

    def begin(self):
        """Begin a launch: the next fault recorded does not follow the ones before it."""
        memset(self.last, 0xFF, sizeof(self.last))

    def record(self, uint32_t block):
        """Record a fault on `block` (a block number, address >> 21)."""
        if block >= NONE - 2:
            raise ValueError(f"block number {block} is out of range")
        table_record(&self.table, &self.geometry, self.last, block)

    def successors(self, uint32_t block, uint32_t level=0):
        """Return what followed `block`, most recent first; level 0 is the next fault."""
        cdef uint32_t* words = table_find(&self.table, &self.geometry, block)
        cdef uint32_t i
        if level >= self.geometry.levels:
            raise ValueError(f"the table has {self.geometry.levels} level(s)")
        if words == NULL:
            return []
        words += 2 + level * self.geometry.successors
        return [words[i] for i in range(self.geometry.successors) if words[i] != NONE]

    def row(self, uint32_t block):
        """Return the blocks in the row of `block`, most recently used first."""
        cdef uint32_t way
        cdef Table* t = &self.table
        blocks = []
        if t.count == 0:
            return blocks
        way = t.index[find_row(t, &self.geometry, block % self.geometry.rows)]
        while way != NONE:
            blocks.append(t.ways[way * self.geometry.stride])
            way = t.ways[way * self.geometry.stride + 1]
        return blocks

    def walk(self, block=None):
        """Return the blocks that a prefetch visits, in order.

        From a given `block`, those reachable from it. By default from the start, and then what
        else the table holds: with random fault orders the short successor lists lose links.
        """
        cdef Walk w
        cdef uint32_t found
        memset(&w, 0, sizeof(Walk))
        blocks = []
        try:
            walk_begin(&w, &self.table, self.table.start if block is None else block,
                       block is None)
            while True:
                found = walk_next(&w, &self.table, &self.geometry)
                if found == NONE:
                    return blocks
                blocks.append(found)
        finally:
            walk_free(&w)

    def __contains__(self, uint32_t block):
        return table_find(&self.table, &self.geometry, block) != NULL

    def __len__(self):
        return self.table.count

    @property
    def start(self):
        """First block of the walk, or None."""
        return None if self.table.start == NONE else self.table.start

    @property
    def end(self):
        """Block after which the next new one is linked, or None."""
        return None if self.table.end == NONE else self.table.end

    @property
    def nbytes(self):
        """Bytes of memory the table takes."""
        return table_bytes(&self.table, &self.geometry)

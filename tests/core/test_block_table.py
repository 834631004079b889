# SPDX-License-Identifier: Apache-2.0
"""UM-block tables against lists, under every small geometry, and by example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deepum._core.block_table import BlockTable
from how_many import examples

from .models import BlockModel

GEOMETRIES = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 8),
        "ways": st.integers(1, 3),
        "successors": st.integers(1, 4),
        "levels": st.integers(1, 3),
    }
)
# A dozen neighbours collide in small tables; the far ones have the same rows.
BLOCKS = st.one_of(st.integers(0, 11), st.sampled_from([1 << 20, (1 << 32) - 4]))


class BlockMachine(RuleBasedStateMachine):
    """The same faults to the table and to its model."""

    @initialize(geometry=GEOMETRIES)
    def make(self, geometry: dict[str, int]) -> None:
        self.geometry = geometry
        self.table, self.model = BlockTable(**geometry), BlockModel(**geometry)
        self.seen: set[int] = set()

    @rule()
    def begin(self) -> None:
        self.table.begin()
        self.model.begin()

    @rule(blocks=st.lists(BLOCKS, min_size=1, max_size=8))
    def record(self, blocks: list[int]) -> None:
        for block in blocks:
            self.table.record(block)
            self.model.record(block)
            self.seen.add(block)

    @rule(block=BLOCKS)
    def walk_from(self, block: int) -> None:
        assert self.table.walk(block) == [*self.model.walk(block)]

    @rule(block=BLOCKS)
    def look(self, block: int) -> None:
        way = self.model.find(block)
        assert (block in self.table) == (way is not None)
        assert self.table.row(block) == [other.block for other in self.model.row(block)]
        for level in range(self.geometry["levels"]):
            successors = [] if way is None else way.successors[level]
            assert self.table.successors(block, level) == successors

    @invariant()
    def same(self) -> None:
        assert len(self.table) == len(self.model)
        assert (self.table.start, self.table.end) == (self.model.start, self.model.end)
        walk = self.table.walk()
        assert walk == [*self.model.walk()]
        assert {*walk} <= self.seen
        # Everything that has a way is visited, and once.
        held = [block for block in walk if block in self.table]
        assert len(held) == len({*held}) == len(self.table)


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = examples(100, stateful_step_count=30)


@given(GEOMETRIES, st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=10))
@examples(60)
def test_longer_programs(geometry, launches):
    table, model = BlockTable(**geometry), BlockModel(**geometry)
    for launch in launches:
        table.begin()
        model.begin()
        for block in launch:
            table.record(block)
            model.record(block)
        for block in (None, *range(41)):
            assert table.walk(block) == [*model.walk(block)]


def test_an_empty_table():
    table = BlockTable()
    assert table.start is None
    assert table.end is None
    assert table.walk() == []
    assert table.walk(3) == [3]
    assert len(table) == 0
    assert 3 not in table
    assert table.row(3) == []
    assert table.successors(3) == []
    assert table.nbytes < 400


def test_a_kernel_of_three_blocks_is_small():
    table = BlockTable()
    for block in (100, 101, 102):
        table.record(block)
    assert table.walk() == [100, 101, 102]
    small = table.nbytes
    assert small < 400
    for _ in range(50):
        table.begin()
        for block in (100, 101, 102):
            table.record(block)
    assert table.nbytes == small  # nothing new, nothing more


def test_memory_follows_what_is_stored():
    for count in (1, 10, 100, 1000, 4000):
        table = BlockTable()
        for block in range(count):
            table.record(block)
        assert len(table) == count
        # Six words a way with half of them spare at most; rows hold two and the index four words
        # for each three rows at least.
        assert table.nbytes <= 64 + count * 6 * 4 * 1.5 + 3 * 24 + max(16, count * 4 * 8 / 3)
    assert table.nbytes < 2048 * 2 * 6 * 4 * 2
    full = None
    for block in range(4096, 100_000, 7):
        table.record(block)
        full = full or (table.nbytes if len(table) == 4096 else None)
    assert len(table) == 4096
    assert table.nbytes == full  # a full table replaces


def test_rows_replace_the_least_recently_used_way():
    table = BlockTable(rows=4, ways=2, successors=4, levels=1)
    table.record(0)
    table.record(4)
    assert table.row(8) == [4, 0]
    table.record(0)
    assert table.row(0) == [0, 4]
    table.record(8)
    assert table.row(0) == [8, 0]
    assert 4 not in table
    assert 0 in table
    assert table.successors(4) == []
    table.record(4)  # back, and without what it had led to
    assert table.row(0) == [4, 8]
    assert table.successors(4) == []


def test_successors_are_most_recent_first_and_limited():
    table = BlockTable(rows=64, ways=2, successors=3, levels=1)
    for follower in (1, 2, 3, 2, 4):
        table.begin()
        table.record(0)
        table.record(follower)
    assert table.successors(0) == [4, 2, 3]
    table.begin()
    table.record(0)
    table.record(3)
    assert table.successors(0) == [3, 4, 2]


def test_levels_look_further_ahead():
    table = BlockTable(rows=64, ways=1, successors=2, levels=3)
    for block in (1, 2, 3, 4, 5):
        table.record(block)
    assert [table.successors(1, level) for level in range(3)] == [[2], [3], [4]]
    assert [table.successors(4, level) for level in range(3)] == [[5], [], []]
    with pytest.raises(ValueError, match="3 level"):
        table.successors(1, 3)
    table.begin()
    table.record(9)  # a new launch: no history, linked after the end
    assert table.successors(5, 0) == [9]
    assert table.successors(4, 1) == []


def test_start_and_end():
    table = BlockTable()
    for block in (1, 2, 3):
        table.record(block)
    assert (table.start, table.end) == (1, 3)
    table.begin()
    table.record(2)  # known: the ends stay, nothing is linked
    assert (table.start, table.end) == (1, 3)
    assert table.successors(3) == []
    table.record(7)  # new inside a launch: linked to the fault before it
    assert (table.start, table.end) == (1, 7)
    assert table.successors(2) == [7, 3]
    table.begin()
    table.record(9)  # new and first: linked after the end
    assert (table.start, table.end) == (1, 9)
    assert table.successors(7) == [9]
    assert table.walk() == [1, 2, 7, 9, 3]


def test_a_walk_from_the_start_misses_nothing():
    table = BlockTable(successors=1)
    for follower in (1, 2, 3, 4):
        table.begin()
        table.record(0)
        table.record(follower)
    assert table.walk() == [0, 4, 1, 2, 3]  # links were lost; the blocks are in the table
    assert table.walk(0) == [0, 4]
    assert table.walk(2) == [2]


def test_walks_end_on_self_loops_and_cycles():
    table = BlockTable()
    for block in (1, 1, 2, 2, 1, 3, 1):
        table.record(block)
    assert table.walk() == [1, 3, 2]
    assert table.walk(3) == [3, 1, 2]
    table = BlockTable(rows=1, ways=1)
    for block in (1, 2, 1, 2, 3):
        table.record(block)
    assert len(table) == 1
    assert table.start == 1  # stale: its way went to others
    assert table.walk() == [1, 3]  # what is left comes after what is reachable
    assert table.walk(1) == [1]


@pytest.mark.slow
def test_a_long_walk_does_not_recurse():
    table = BlockTable(rows=1 << 17)
    for block in range(100_000):
        table.record(block)
    assert table.walk() == [*range(100_000)]


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("rows", 1, 1 << 24), ("ways", 1, 64), ("successors", 1, 64), ("levels", 1, 8)],
)
def test_geometry_has_limits(name, least, most):
    for fine in (least, most):
        table = BlockTable(**{name: fine})
        table.record(1)
        table.record(2)
        assert table.walk() == [1, 2]
    for wrong in (least - 1, most + 1):
        with pytest.raises(ValueError, match=f"{name} must be between {least} and {most}"):
            BlockTable(**{name: wrong})


def test_block_numbers_have_limits():
    table = BlockTable()
    largest = (1 << 32) - 4
    table.record(largest)
    assert table.walk() == [largest]
    for wrong in range(largest + 1, 1 << 32):
        with pytest.raises(ValueError, match="out of range"):
            table.record(wrong)
    for wrong in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            table.record(wrong)
    assert len(table) == 1

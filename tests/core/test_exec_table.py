# SPDX-License-Identifier: Apache-2.0
"""The execution-ID table against a dict, and by example."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deepum._core.exec_table import ExecTable
from how_many import examples

from .models import ExecModel

# Few IDs, so that contexts meet again; both ends of the 64 bits among them.
IDS = st.sampled_from([0, 1, 2, 3, 1 << 32, (1 << 64) - 1])
CONTEXTS = st.lists(IDS, max_size=6)


class ExecMachine(RuleBasedStateMachine):
    """The same updates and questions to the table and to its model."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.model = ExecTable(), ExecModel()
        self.history: list[int] = []

    @rule(context=CONTEXTS, exec_id=IDS)
    def update(self, context: list[int], exec_id: int) -> None:
        self.table.update(context, exec_id)
        self.model.update(context, exec_id)

    @rule(sequence=st.lists(IDS, min_size=1, max_size=12))
    def run(self, sequence: list[int]) -> None:
        """A program: each kernel follows the ones before it."""
        for exec_id in sequence:
            self.table.update(self.history, exec_id)
            self.model.update(self.history, exec_id)
            self.history.append(exec_id)

    @rule(context=CONTEXTS)
    def predict(self, context: list[int]) -> None:
        assert self.table.predict(context) == self.model.predict(context)

    @rule(context=CONTEXTS, depth=st.integers(0, 9))
    def predict_chain(self, context: list[int], depth: int) -> None:
        chain = self.table.predict_chain(context, depth)
        assert chain == self.model.predict_chain(context, depth)

    @rule(length=st.integers(1, 5), depth=st.integers(0, 9))
    def predict_from_history(self, length: int, depth: int) -> None:
        context = self.history[-length:]
        assert self.table.predict(context) == self.model.predict(context)
        assert self.table.predict_chain(context, depth) == self.model.predict_chain(context, depth)

    @rule(exec_id=IDS)
    def records_of(self, exec_id: int) -> None:
        assert self.table.records_of(exec_id) == self.model.records_of(exec_id)
        assert (exec_id in self.table) == (exec_id in self.model.known)

    @invariant()
    def counts(self) -> None:
        assert len(self.table) == len(self.model.known)
        assert self.table.record_total == len(self.model.records)


TestExecMachine = ExecMachine.TestCase
TestExecMachine.settings = examples(60, stateful_step_count=40)


def test_an_empty_table_knows_nothing():
    table = ExecTable()
    assert len(table) == 0
    assert table.record_total == 0
    assert 7 not in table
    assert table.predict([]) is None
    assert table.predict([7]) is None
    assert table.predict_chain([7], 3) == []
    assert table.records_of(7) == []


def test_the_longest_context_decides_and_ties_go_to_the_most_recent():
    table = ExecTable()
    table.update([1, 2, 3, 4], 50)
    table.update([9, 2, 3, 4], 51)
    table.update([9, 9, 3, 4], 52)
    assert table.predict([1, 2, 3, 4]) == 50  # three predecessors
    assert table.predict([9, 2, 3, 4]) == 51
    assert table.predict([8, 2, 3, 4]) == 51  # two: the later of the two records
    assert table.predict([8, 8, 3, 4]) == 52  # one
    assert table.predict([3, 4]) == 52
    assert table.predict([8, 8, 8, 4]) is None  # none is not enough
    assert table.predict([4]) is None
    table.update([1, 2, 3, 4], 50)
    assert table.predict([8, 2, 3, 4]) == 50
    assert table.predict([8, 8, 3, 4]) == 50


def test_a_program_just_begun_has_fewer_predecessors():
    table = ExecTable()
    table.update([], 1)
    assert 1 in table
    assert table.record_total == 0
    table.update([1], 2)
    table.update([1, 2], 3)
    assert table.predict([1]) == 2
    assert table.predict([1, 2]) == 3
    assert table.predict([2]) is None  # it never ran first
    assert table.predict([5, 1, 2]) == 3  # one predecessor matches
    assert table.records_of(1) == [((), 2, 1, 1)]
    assert table.records_of(2) == [((1,), 3, 1, 2)]


def test_all_records_are_kept_with_count_and_recency():
    table = ExecTable()
    for following in (10, 11, 10, 10, 12):
        table.update([1, 2, 3, 4], following)
    assert table.records_of(4) == [
        ((1, 2, 3), 12, 1, 5),
        ((1, 2, 3), 10, 3, 4),
        ((1, 2, 3), 11, 1, 2),
    ]
    assert table.record_total == 3


def test_a_chain_follows_its_own_predictions():
    table = ExecTable()
    loop = [1, 2, 3, 1, 4]
    history: list[int] = []
    for exec_id in loop * 3:
        table.update(history, exec_id)
        history.append(exec_id)
    assert table.predict_chain(history, 12) == (loop * 3)[:12]
    assert table.predict_chain(history, 0) == []
    assert table.predict_chain(history[:-1], 1) == [4]
    with pytest.raises(ValueError, match="negative"):
        table.predict_chain(history, -1)


def test_only_64_bit_ids():
    table = ExecTable()
    for wrong in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            table.update([], wrong)
        with pytest.raises(OverflowError):
            table.predict([wrong])
    with pytest.raises(TypeError):
        table.update(["a"], 1)  # type: ignore[list-item]
    assert len(table) == 0


def test_twelve_thousand_kernels():
    table, model = ExecTable(), ExecModel()
    count = 12_000
    ids = [k * 0x9E3779B97F4A7C15 % (1 << 64) for k in range(count)]
    for begin in range(count):
        context = ids[max(0, begin - 4) : begin]
        table.update(context, ids[begin])
        model.update(context, ids[begin])
    assert len(table) == count
    assert table.record_total == count - 1
    assert table.predict_chain(ids[:1], count) == ids[1:]
    for k in range(0, count, 97):
        context = ids[max(0, k - 3) : k + 1]
        assert table.predict(context) == model.predict(context)
        assert table.records_of(ids[k]) == model.records_of(ids[k])
        assert ids[k] in table
        assert ids[k] + 1 not in table
    # The hash tables are at least a third full; the arrays, half.
    assert table.nbytes < count * (2 * 24 + 4 * 4 + 3 * 3 * 20 + 2 * 48 + 4 * 4)


def test_many_records_in_one_entry():
    table, model = ExecTable(), ExecModel()
    for k in range(3000):
        context, following = [k % 7, k % 11, k % 13, 5], k % 17
        table.update(context, following)
        model.update(context, following)
    assert table.records_of(5) == model.records_of(5)
    assert table.record_total == len(model.records)
    for k in range(1001):
        context = [k % 7, k % 11, k % 13, 5]
        assert table.predict(context) == model.predict(context)


def test_memory_is_reported_and_grows_with_content():
    table = ExecTable()
    empty = table.nbytes
    # Two indices of 16 words and 32 contexts of five.
    assert empty == 2 * 16 * 4 + 32 * 5 * 4
    for _ in range(100):
        table.update([1, 2], 3)
    three = table.nbytes
    assert three < 2048
    for k in range(100):
        table.update([k, k + 1], k + 2)
    assert table.nbytes > three
    full = table.nbytes
    for k in range(100):
        table.update([k, k + 1], k + 2)
    assert table.nbytes == full


def test_memory_grows_when_the_arrays_are_full_and_the_hash_tables_nearly():
    # Entries of 24 bytes and records of 40 from 8 up; contexts of 20 from 32 up, at two thirds
    # full; indices of 4 from 16 up, at half full. Everything doubles.
    def doubled(start, enough):
        while not enough(start):
            start *= 2
        return start

    table = ExecTable()
    for last in range(300):
        table.update([last], last + 1)  # two new entries at first, then one; three contexts
        entries, records, contexts = last + 2, last + 1, 3 * (last + 1)
        assert table.nbytes == (
            24 * doubled(8, lambda size, n=entries: n <= size)
            + 4 * doubled(16, lambda size, n=entries: (n - 1) * 2 <= size - 1)
            + 20 * doubled(32, lambda size, n=contexts: (n - 1) * 3 <= (size - 1) * 2)
            + 40 * doubled(8, lambda size, n=records: n <= size)
            + 4 * doubled(16, lambda size, n=records: (n - 1) * 2 <= size - 1)
        )

# SPDX-License-Identifier: Apache-2.0
"""The map of active PT blocks against a list of them."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepum._core.memory_map import MemoryMap

BLOCK = 1 << 21
UNIT = BLOCK // 4
BASE = 3 << 40
SPAN = 12  # blocks of each of two segments, far apart
SEGMENTS = (BASE, BASE + (1 << 34))


class MapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.map = MemoryMap()
        self.tensors: dict[int, int] = {}
        self.due: set[int] = set()
        for segment in SEGMENTS:
            self.map.add(segment, SPAN * BLOCK)

    def overlaps(self, start: int, size: int) -> bool:
        return any(s < start + size and start < s + n for s, n in self.tensors.items())

    @rule(
        segment=st.sampled_from(SEGMENTS), unit=st.integers(0, 4 * SPAN - 1),
        units=st.integers(1, 24), less=st.sampled_from([0, 0, 512]),
    )  # fmt: skip
    def alloc(self, segment: int, unit: int, units: int, less: int) -> None:
        start = segment + unit * UNIT
        size = min(units, 4 * SPAN - unit) * UNIT - less
        if self.overlaps(start, size):
            return
        assert self.map.alloc(start, size)
        self.tensors[start] = size
        self.due -= {*range(start // BLOCK, (start + size - 1) // BLOCK + 1)}

    @precondition(lambda self: self.tensors)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.tensors)))
        assert self.map.free(start) == self.tensors.pop(start)
        assert self.map.free(start) == 0

    @rule(segment=st.sampled_from(SEGMENTS))
    def give_back(self, segment: int) -> None:
        self.map.remove(segment, SPAN * BLOCK)
        inside = range(segment, segment + SPAN * BLOCK)
        self.tensors = {s: n for s, n in self.tensors.items() if s not in inside}
        self.due = {block for block in self.due if block * BLOCK not in inside}
        self.map.add(segment, SPAN * BLOCK)

    @rule(segment=st.sampled_from(SEGMENTS), block=st.integers(0, SPAN - 1))
    def ask_to_drop(self, segment: int, block: int) -> None:
        number = segment // BLOCK + block
        self.map.drop(number)
        if not self.active(number):
            self.due.add(number)

    @rule(segment=st.sampled_from(SEGMENTS), block=st.integers(0, SPAN - 1))
    def carry_out(self, segment: int, block: int) -> None:
        # What has come to life since must not be dropped.
        number = segment // BLOCK + block
        assert self.map.take_drop(number) == (number in self.due)
        self.due.discard(number)

    def active(self, number: int) -> int:
        first, end = number * BLOCK, (number + 1) * BLOCK
        return sum(
            max(0, min(end, start + size) - max(first, start))
            for start, size in self.tensors.items()
        )

    @invariant()
    def agrees(self) -> None:
        for segment in SEGMENTS:
            for number in range(segment // BLOCK, segment // BLOCK + SPAN):
                assert self.map.active(number) == self.active(number)
            for unit in range(4 * SPAN):
                address = segment + unit * UNIT + 256
                found = [
                    (start, size)
                    for start, size in self.tensors.items()
                    if start <= address < start + size
                ]
                assert self.map.at(address) == (found[0] if found else None)


TestMemoryMap = MapMachine.TestCase


@pytest.mark.parametrize("address", [BASE - 1, BASE + 4 * BLOCK, 0, (1 << 64) - 1])
def test_nothing_is_found_outside(address: int) -> None:
    memory = MemoryMap()
    assert memory.at(address) is None
    memory.add(BASE, 4 * BLOCK)
    assert memory.alloc(BASE, 4 * BLOCK)
    assert memory.at(address) is None
    assert memory.active(address // BLOCK) is None


@pytest.mark.parametrize(
    ("start", "size"),
    [(BASE - UNIT, 2 * UNIT), (BASE + 4 * BLOCK - UNIT, 2 * UNIT), (BASE, 0), (BASE + UNIT, BLOCK)],
)
def test_what_cannot_be_active(start: int, size: int) -> None:
    memory = MemoryMap()
    memory.add(BASE, 4 * BLOCK)
    assert memory.alloc(BASE + UNIT, 3 * UNIT)
    assert not memory.alloc(start, size)
    assert [memory.active(BASE // BLOCK + k) for k in range(4)] == [3 * UNIT, 0, 0, 0]


def test_it_grows() -> None:
    memory = MemoryMap()
    memory.add(BASE, 5000 * BLOCK)
    for k in range(0, 5000, 5):
        assert memory.alloc(BASE + k * BLOCK, 4 * BLOCK)
    for k in range(0, 5000, 5):
        assert memory.at(BASE + (k + 3) * BLOCK) == (BASE + k * BLOCK, 4 * BLOCK)
        assert memory.at(BASE + (k + 4) * BLOCK) is None


def test_many_small_blocks_in_one() -> None:
    memory = MemoryMap()
    memory.add(BASE, BLOCK)
    order = [(k * 7919) % 4096 for k in range(4096)]
    for k in order:
        assert memory.alloc(BASE + 512 * k, 512)
    assert memory.active(BASE // BLOCK) == BLOCK
    for k in order[::2]:
        assert memory.free(BASE + 512 * k) == 512
    gone = set(order[::2])
    for k in range(4096):
        expected = None if k in gone else (BASE + 512 * k, 512)
        assert memory.at(BASE + 512 * k + 511) == expected

# SPDX-License-Identifier: Apache-2.0
"""The ring of marks."""

import pytest

from deepum._core.marks import MARK_DTYPE, MARKS, Marks


def test_marks_come_out_as_they_went_in() -> None:
    ring = Marks(8)
    assert ring.take().dtype == MARK_DTYPE
    for turn in range(5):  # round the end several times
        for k in range(6):
            ring.add("in", time=turn, until=turn + 1, what=k, amount=2, seq=3, name=4)
        taken = ring.take()
        assert taken["what"].tolist() == list(range(6))
        assert set(taken["kind"]) == {MARKS["in"]}
        assert taken[0].item() == (turn, turn + 1, 0, 2, 3, MARKS["in"], 4)
    assert ring.lost == 0


def test_what_does_not_fit_ends_the_record() -> None:
    ring = Marks(4)
    for k in range(6):
        ring.add("launch", seq=k)
    assert ring.take()["seq"].tolist() == [0, 1, 2, 3]
    ring.add("launch", seq=6)  # there is room again, but it would leave a gap
    assert len(ring.take()) == 0
    assert ring.lost == 3


def test_a_closed_ring_takes_nothing() -> None:
    ring = Marks(4)
    ring.close()
    ring.add("launch")
    assert len(ring.take()) == ring.lost == 0


@pytest.mark.parametrize("size", [0, 3])
def test_sizes(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Marks(size)

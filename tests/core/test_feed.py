# SPDX-License-Identifier: Apache-2.0
"""How far streams have come, when several threads submit to one at once."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.how_many import examples

Feed = pytest.importorskip("deepum._core.feed").Feed


class Thread:
    """Submits launches as the callback does, one call of the driver at a time."""

    def __init__(self, feed, streams) -> None:
        self.feed, self.streams = feed, streams
        self.next = self.enter

    def enter(self, stream: int) -> None:
        self.stream = self.streams[stream]
        self.seq, self.slot = self.feed.enter(stream + 1)
        self.next = self.submit

    def submit(self, _: int) -> None:
        self.stream.append(("kernel", self.seq, self.slot))
        self.next = self.leave

    def leave(self, _: int) -> None:
        self.value = self.feed.leave(self.slot, self.seq)
        self.next = self.mark

    def mark(self, _: int) -> None:
        self.stream.append(("mark", self.value, self.slot))
        self.next = self.look

    def look(self, _: int) -> None:
        marked = self.feed.marked(self.slot)
        if marked > self.value:
            self.value = marked
            self.next = self.mark
        else:
            self.next = self.enter


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=120))
def test_nothing_counts_as_finished_before_it_is(turns) -> None:
    feed = Feed()
    feed.attach()
    streams: list[deque] = [deque(), deque()]
    threads = [Thread(feed, streams) for _ in range(4)]
    ran: set[int] = set()

    def device(stream: int) -> None:
        if streams[stream]:
            what, number, slot = streams[stream].popleft()
            if what == "kernel":
                ran.add(number)
            else:
                feed.write(slot, number)

    for who, stream in turns:
        threads[who].next(stream) if who < 4 else device(stream)
        done = feed.finished_to()
        assert {*range(1, done + 1)} <= ran
    for thread in threads:
        while thread.next != thread.enter:
            thread.next(0)
    for stream in (0, 1):
        while streams[stream]:
            device(stream)
    assert feed.finished_to() == feed.counts["launches"] == len(ran)


def test_a_launch_that_is_still_being_submitted_holds_back_those_after_it() -> None:
    feed = Feed()
    feed.attach()
    first, slot = feed.enter(1)
    second, _ = feed.enter(1)
    assert feed.leave(slot, second) == first - 1  # the kernel of `first` may come behind this mark
    assert feed.leave(slot, first) == second

# SPDX-License-Identifier: Apache-2.0
"""How far streams have come, several threads submitting to one, marked always or rarely."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.how_many import examples

Feed = pytest.importorskip("deepum._core.feed").Feed


class Thread:
    """Submits launches as the callback does, one call of the driver at a time."""

    def __init__(self, feed, streams, places) -> None:
        self.feed, self.streams, self.places = feed, streams, places
        self.next = self.rest = self.enter

    def enter(self, stream: int) -> None:
        self.seq, self.slot = self.feed.enter(stream + 1)
        self.stream = self.places[self.slot] = self.streams[stream]
        self.next = self.submit

    def submit(self, _: int) -> None:
        self.stream.append(("kernel", self.seq, self.slot))
        self.next = self.leave

    def leave(self, _: int) -> None:
        self.value = self.feed.leave(self.slot, self.seq)
        self.next = self.mark if self.value else self.rest

    def mark(self, _: int) -> None:
        self.stream.append(("mark", self.value, self.slot))
        self.next = self.look

    def look(self, _: int) -> None:
        marked = self.feed.marked(self.slot)
        if marked > self.value:
            self.value = marked
            self.next = self.mark
        else:
            self.next = self.rest


class Asker(Thread):
    """Lets streams write what they were not told to, as the conductor does."""

    def __init__(self, feed, streams, places) -> None:
        super().__init__(feed, streams, places)
        self.next = self.rest = self.ask

    def ask(self, slot: int) -> None:
        if slot in self.places:
            self.slot, self.stream = slot, self.places[slot]
            self.value = self.feed.owed(slot)
            self.next = self.mark if self.value else self.rest


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), max_size=150), st.booleans())
def test_nothing_counts_as_finished_before_it_is(turns, rarely) -> None:
    feed = Feed()
    feed.attach()
    feed.mark_rarely(rarely)
    streams: list[deque] = [deque(), deque()]
    places: dict[int, deque] = {}
    threads = [Thread(feed, streams, places) for _ in range(4)]
    threads.append(Asker(feed, streams, places))
    ran: set[int] = set()

    def device(stream: int) -> None:
        if streams[stream]:
            what, number, slot = streams[stream].popleft()
            if what == "kernel":
                ran.add(number)
            else:
                feed.write(slot, number)

    def settle() -> None:
        for thread in threads:
            while thread.next != thread.rest:
                thread.next(0)
        for stream in (0, 1):
            while streams[stream]:
                device(stream)

    for who, stream in turns:
        threads[who].next(stream) if who < len(threads) else device(stream)
        done = feed.finished_to()
        assert {*range(1, done + 1)} <= ran
    settle()
    launches = feed.counts["launches"]
    done = feed.finished_to()
    assert feed.owes == (done < launches)
    for slot in places:
        threads[-1].next(slot)
        settle()
    assert (feed.finished_to(), feed.owes) == (launches, False)
    assert len(ran) == launches


def test_a_launch_that_is_still_being_submitted_holds_back_those_after_it() -> None:
    feed = Feed()
    feed.attach()
    first, slot = feed.enter(1)
    second, _ = feed.enter(1)
    assert feed.leave(slot, second) == first - 1  # the kernel of `first` may come behind this mark
    assert feed.leave(slot, first) == second


def test_one_launch_in_sixteen_is_marked_where_few_will_do() -> None:
    feed = Feed()
    feed.attach()
    feed.mark_rarely(True)
    marks = []
    for _ in range(40):
        seq, slot = feed.enter(1)
        marks.append(feed.leave(slot, seq))
    assert [mark for mark in marks if mark] == [16, 32]
    feed.write(slot, 16)
    assert (feed.finished_to(), feed.owes) == (16, False)  # 32 is on its way
    feed.write(slot, 32)
    assert (feed.finished_to(), feed.owes) == (32, True)
    assert (feed.owed(slot), feed.owed(slot)) == (40, 0)
    feed.write(slot, 40)
    assert (feed.finished_to(), feed.owes) == (40, False)
    feed.mark_rarely(False)
    seq, slot = feed.enter(1)
    assert feed.leave(slot, seq) == seq

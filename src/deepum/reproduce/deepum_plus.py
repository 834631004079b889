# SPDX-License-Identifier: Apache-2.0
"""G10's model of DeepUM, "DeepUM+", as a policy of ours.

It is an oracle with a short sight: no tables, no learning, no misprediction. As in the artifact
(``scheduling_prefetch`` and the eviction policy ``DEEPUM``), a kernel's start asks for all tensors
of the kernel `distance` further on, and the least recently migrated block goes that none of the
next `distance` kernels needs; what is dead vanishes without traffic.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum.errors import PolicyError
from deepum.policy import Policy

if TYPE_CHECKING:
    import os

    from deepum._core.python_policy import Fault, Launch, View
    from deepum.trace import Trace

LOT = 16
"""Blocks asked for at a time: no more than these are refused when the queue is full."""

Run = tuple[int, int]
"""Neighbouring blocks: the first one, how many."""


class DeepUMPlus(Policy):
    """G10's DeepUM+: knows the trace, asks for all that the kernel 8 further on touches.

    Parameters
    ----------
    trace
        The trace that will run, or where it is: the future.
    distance
        How many kernels further on.
    """

    name = "g10-deepum+"
    learns = False
    defaults = {"trace": None, "distance": 8}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._distance = self.options["distance"]
        if not isinstance(self._distance, int) or self._distance < 1:
            raise PolicyError(f"distance must be a number of kernels, not {self._distance!r}")
        if self.options["trace"] is None:
            raise PolicyError("g10-deepum+ has to be told the trace that will run")
        self._future = _blocks(self.options["trace"])
        self._needed: dict[int, int] = {}  # block -> the last launch it was asked for
        self._wanted: deque[tuple[int, Run]] = deque()  # launch, what it needs
        self._running = 0
        self._full_at = -1  # the launch at which the window filled the memory

    def on_launch(self, view: View, launch: Launch) -> None:
        """Ask for what the kernel further on touches."""
        self._running = launch.seq
        later = launch.seq + self._distance
        for first, count in self._future[(later - 1) % len(self._future)]:
            self._needed.update(dict.fromkeys(range(first, first + count), later))
            self._wanted.append((later, (first, count)))
        self._ask(view)

    def on_fault(self, view: View, fault: Fault) -> None:
        """Go on asking: the engine's queue may have had no room before."""
        self._ask(view)

    def _ask(self, view: View) -> None:
        while self._wanted:
            later, (first, count) = self._wanted[0]
            if later >= self._running:
                lot = min(count, LOT)
                accepted = view.prefetch(first, lot)
                if accepted < count:
                    self._wanted[0] = (later, (first + accepted, count - accepted))
                    if accepted < lot:
                        return
                    continue
            self._wanted.popleft()

    def victims(self, view: View, count: int) -> list[int]:
        """Choose the least recently migrated blocks outside the window of kernels.

        If the window fills the memory nothing is chosen, which leaves it to the engine's order;
        blocks leave the window with the next launch only, so till then it is not looked again.
        """
        chosen: list[int] = []
        if self._full_at == self._running:
            return chosen
        for block in view.resident_blocks:
            if self._needed.get(block, 0) < self._running:
                chosen.append(block)
                if len(chosen) == count:
                    return chosen
        self._full_at = self._running
        return chosen


def _blocks(trace: Trace | str | os.PathLike[str]) -> list[list[Run]]:
    """Return the runs of blocks that each kernel of the repeating iteration touches."""
    from deepum.trace import Trace

    if not isinstance(trace, Trace):
        trace = Trace.load(trace)
    if len(set(trace.schedule.tolist())) != 1:
        raise PolicyError(f"trace {trace.name} has iterations that differ: G10's have one")
    c = trace.columns()
    first = (c["tensor_address"][c["operand_tensor"]] + c["operand_offset"]) >> np.uint64(21)
    last = (
        c["tensor_address"][c["operand_tensor"]] + c["operand_offset"] + c["operand_length"]
    ) - np.uint64(1) >> np.uint64(21)
    start = c["kernel_operand_start"]
    rows = [
        [
            (int(first[o]), int(last[o] - first[o]) + 1)
            for o in range(start[k], start[k + 1])
            if c["operand_length"][o]
        ]
        for k in range(len(start) - 1)
    ]
    step = slice(*(int(n) for n in c["step_start"][trace.step_at(0) :][:2]))
    return [rows[k] for k in c["event_arg"][step][c["event_op"][step] == 0]]

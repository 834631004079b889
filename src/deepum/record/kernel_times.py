# SPDX-License-Identifier: Apache-2.0
"""How long kernels ran, from what a session sees of their launches, gates and completions.

DESIGN: each stream writes a launch's number to host memory when the launch has finished, and the
conductor looks at those words all the time. Kernel times come from these looks and not from
CUPTI's activity records: they cost nothing that is not there already, keep launches of every kind
in one order, and leave out the time a launch spent behind its gate. What is paid for that is
resolution. A completion is seen up to one look late, so the time of a single kernel is off by up
to the interval between two looks (`look_ns` in a recorded trace, some 10 us where the processor is
free); launches found finished in the same look share their time equally. The errors do not add up:
what one kernel gets too much its successor gets too little, and the sum over a step is right to
one look. Kernels that overlap on several streams count one after the other, as the trace runs
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Launches as they ran; times in nanoseconds of the session's clock.

    Attributes
    ----------
    begin, end
        When each ran.
    ready
        When it could have run but for its gate: submitted, and the launch before it finished.
    idle
        How long the device had had nothing to do by then.
    faulted
        Whether faults came while it ran: its time is not that of a kernel with all in memory.
    look
        Interval of the look that saw its end.
    """

    begin: Times
    end: Times
    ready: Times
    idle: Times
    faulted: NDArray[np.bool_]
    look: Times


def runs(
    seq: Times, submitted: Times, *, completed: Times, opened: Times, faults: Times, lag: int = 0
) -> Runs:
    """Work out when launches ran.

    Parameters
    ----------
    seq, submitted
        Numbers of the launches, rising without a gap, and when they were submitted.
    completed
        Rows of (number, time, interval of the look): up to this launch, all were seen finished.
    opened
        Rows of (number, time): up to this launch, gates were opened.
    faults
        Times at which faults were seen.
    lag
        How long after they happened that may have been, ns.
    """
    look = np.searchsorted(completed[:, 0], seq)
    seen = completed[look, 1]
    before = np.where(look > 0, completed[look - 1, 1], 0)
    last = np.where(look > 0, completed[look - 1, 0], seq[0] - 1)
    count = completed[look, 0] - last
    place = seq - last - 1
    at = np.searchsorted(opened[:, 0], seq)
    gate = np.append(opened[:, 1], 0)[at]
    gate[gate > seen] = 0  # opened for later launches: this one had no gate
    ready = np.minimum(np.maximum(before, submitted), seen)
    # All that a look found finished ran from when the first of it could.
    first = np.maximum.accumulate(np.where(place == 0, np.arange(len(seq)), 0))
    start = np.maximum(ready, gate)[first]
    share = (seen - start) / count
    begin = start + (share * place).astype(np.int64)
    end = np.where(place == count - 1, seen, start + (share * (place + 1)).astype(np.int64))
    heads = place == 0
    gap = np.where(heads & (before > 0), np.maximum(0, ready - before), 0)
    faults = np.sort(faults)
    hit = np.searchsorted(faults, seen + lag, "right") > np.searchsorted(faults, start)
    return Runs(
        begin=begin,
        end=end,
        ready=np.where(heads, ready, begin),
        idle=gap,
        faulted=hit,
        look=completed[look, 2],
    )


def typical(exec_id: NDArray[np.uint64], ran: Runs) -> tuple[Times, float]:
    """Return one time for all launches of an execution ID, ns, and what share of it is in doubt.

    The mean of its launches without faults, so that sums stay what they were; where every one had
    faults, the shortest, and its time is in doubt.
    """
    took = ran.end - ran.begin
    _, which = np.unique(exec_id, return_inverse=True)
    clean = ~ran.faulted
    launches = np.bincount(which[clean], minlength=which.max() + 1)
    total = np.bincount(which[clean], weights=took[clean], minlength=which.max() + 1)
    least = np.full(len(total), np.iinfo(np.int64).max)
    np.minimum.at(least, which, took)
    mean = np.where(launches > 0, total / np.maximum(launches, 1), least)
    each = np.maximum(1, np.rint(mean[which])).astype(np.int64)
    doubtful = launches[which] == 0
    return each, float(each[doubtful].sum() / each.sum())

# SPDX-License-Identifier: Apache-2.0
"""Notices when a step becomes slow for lack of memory."""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING, Any

from deepum.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMES = 3.0
"""So many times the median counts as slow."""
AFTER = 3
"""Steps that must have been seen before."""
SHARE = 0.5
"""Part of the additional time that memory must account for."""
FAULT_S = 250e-6
"""Seconds that a faulting block of 2 MiB takes: 250 to 300 us measured on an H200, PCIe 5.0."""
KEPT = 64

_COUNTS = ("bytes_in", "bytes_out", "faults", "busy_in_s", "busy_out_s")


class SlowSteps:
    """Compares each step with the ones before it; says once when memory makes one slow.

    What memory takes is estimated: the time that moves were under way, and for faults the bytes
    they brought. Moves and kernels overlap, so the estimate is high; it has to explain half of
    the additional time.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=KEPT)
        self._memory: deque[float] = deque(maxlen=KEPT)
        self._before: dict[str, float] = {}
        self._steps = 0
        self.said = False

    def look(self, stats: Mapping[str, Any]) -> str:
        """Take a session's counts; return the warning, or an empty text.

        Of several steps that ended between two looks the latest stands for all: none was long.
        """
        now = {name: float(stats.get(name) or 0) for name in _COUNTS}
        steps = int(stats["steps"])
        ended = steps - self._steps
        if ended <= 0:  # nothing new, or the count began anew
            self._steps = steps
            return ""
        moved = {name: (now[name] - self._before.get(name, 0.0)) / ended for name in now}
        self._before, self._steps = now, steps
        return self._compare(float(stats["last_step_s"]), moved, steps, stats)

    def _compare(
        self, time_s: float, moved: dict[str, float], step: int, stats: Mapping[str, Any]
    ) -> str:
        memory = moved["busy_in_s"] + moved["busy_out_s"] + moved["faults"] * FAULT_S
        text = ""
        if len(self._times) >= AFTER and not self.said:
            usual = statistics.median(self._times)
            more = time_s - usual
            additional = memory - statistics.median(self._memory)
            if usual and time_s > TIMES * usual and additional > SHARE * more:
                self.said = True
                text = _text(step, time_s, usual, moved, stats)
        self._times.append(time_s)
        self._memory.append(memory)
        return text


def _text(
    step: int, time_s: float, usual: float, moved: dict[str, float], stats: Mapping[str, Any]
) -> str:
    return (
        f"step {step} took {time_s:.3g} s, {time_s / usual:.1f} times the {usual:.3g} s of those "
        f"before, for lack of GPU memory: {format_bytes(int(moved['bytes_in']))} came in, "
        f"{format_bytes(int(moved['bytes_out']))} went out, {moved['faults']:,.0f} blocks faulted, "
        f"with {format_bytes(int(stats['limit_bytes']))} to use. Use a smaller batch, activation "
        "checkpointing or a higher memory_limit if the card has more; said once"
    )

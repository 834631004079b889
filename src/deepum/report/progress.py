# SPDX-License-Identifier: Apache-2.0
"""One line about a running session: live on a terminal, now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from deepum.report.numbers import count, percent, seconds
from deepum.report.tables import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

EVERY_S = 10.0
"""Seconds between two lines where standard error is no terminal."""
_GIB = 2**30


def line(stats: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Return what there is to say of a session's counts.

    Bytes and faults are those of a step, since `before` if that is given: counts of the last line.
    """
    steps = stats["steps"]
    ended = steps - (before["steps"] if before else 0)
    parts = [f"step {count(steps)}"]
    if stats["last_step_s"] is not None:
        parts.append(f"{seconds(stats['last_step_s'])} a step")
    each, unit = (ended, " a step") if ended > 0 else (1, "")

    def since(name: str) -> float:
        return float(stats[name] - (before[name] if before else 0)) / each

    parts.append(f"{count(since('faults'))} faults")
    parts.append(
        f"in {since('bytes_in') / _GIB:.2f}, out {since('bytes_out') / _GIB:.2f} GiB{unit}"
    )
    parts.append(
        f"resident {stats['resident_bytes'] / _GIB:.2f} of {stats['limit_bytes'] / _GIB:.2f} GiB"
    )
    if stats["prefetch_accuracy"] is not None:
        parts.append(f"prefetches used {percent(stats['prefetch_accuracy'])}")
    return "deepum: " + " · ".join(parts)


class ProgressLine:
    """Shows how a session goes, on standard error.

    Parameters
    ----------
    every_s
        Seconds between two lines where there is no terminal.
    """

    def __init__(self, every_s: float = EVERY_S, *, out: Console | None = None) -> None:
        self._console = out or console(stderr=True)
        self._every = every_s
        self._said = time.monotonic()
        self._before: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._live: Live | None = None
        if self._console.is_terminal:
            # The program's own output must not be touched: it goes where it went.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def show(self, stats: dict[str, Any]) -> None:
        """Take counts; write a line if one is due."""
        if self._last is None or stats["steps"] != self._last["steps"]:
            self._before, self._last = self._last, stats
        text = line({**self._last, "resident_bytes": stats["resident_bytes"]}, self._before)
        if self._live is not None:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write the last line and end."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._last is not None:
            print(line(self._last), file=sys.stderr, flush=True)

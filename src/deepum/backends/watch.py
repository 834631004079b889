# SPDX-License-Identifier: Apache-2.0
"""The thread that watches a live session: its record, its progress, its slow steps.

Everything that people are told of while a session runs happens here, in a thread that the program
never waits for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.backends.slow import SlowSteps
from deepum.errors import DeepUMError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepum.record.live import Recording
    from deepum.report.progress import ProgressLine

RECORDING_S = 0.02
"""How often marks are taken: the ring holds what a busy program does in several times as long."""
RING = 1 << 18
"""Marks that fit."""
WATCHING_S = 0.25
"""How often counts are looked at."""


class Recorder:
    """Records a session into a trace file.

    Parameters
    ----------
    path
        The file.
    steps
        How many steps.

    Raises
    ------
    RecordError
        The file cannot be written; said before the program starts.
    """

    def __init__(self, path: str | os.PathLike[str], steps: int) -> None:
        from deepum._core.marks import Marks
        from deepum.record.live import LiveRecorder

        self.path = Path(path)
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            raise RecordError(f"a trace cannot be written to {self.path}: no such folder")
        self.marks = Marks(RING)
        self._collected = LiveRecorder(steps)
        self._ended = False
        self.recording: Recording | None = None

    def take(self) -> bool:
        """Take what happened since the last call; tell whether there is enough."""
        if not self._ended:
            self._collected.take(self.marks.take())
        return self._collected.done

    def finish(self, names: Callable[[], list[str]], facts: Callable[[], dict[str, Any]]) -> None:
        """Write the file, and say so; may be called again."""
        if self._ended:
            return
        self.marks.close()
        self.take()
        self._ended = True
        try:
            made = self._collected.finish(self.path.stem, names(), facts(), self.marks.lost)
            made.save(self.path)
        except DeepUMError as error:
            warnings.warn(f"deepum: {error}", stacklevel=2)
            return
        self.recording = made
        count = made.trace.iterations
        say(f"deepum: wrote {self.path}, {count} step{'s' * (count != 1)}")
        for note in made.notes:
            warnings.warn(f"deepum: {self.path}: {note}", stacklevel=2)


def say(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


class Watch:
    """Watches until stopped.

    Parameters
    ----------
    counts
        The session's counts.
    facts
        What a trace notes about the session; called when it is written.
    names
        Names of functions by number, likewise.
    recorder
        What records, if anything.
    progress
        What shows progress, if anything.
    """

    def __init__(
        self,
        counts: Callable[[], dict[str, Any]],
        *,
        facts: Callable[[], dict[str, Any]] = dict,
        names: Callable[[], list[str]] = list,
        recorder: Recorder | None = None,
        progress: ProgressLine | None = None,
    ) -> None:
        self._counts = counts
        self._facts = facts
        self._names = names
        self.recorder = recorder
        self._progress = progress
        self._slow = SlowSteps()
        self._ending = threading.Event()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch in a thread, until `end`."""
        self._thread = threading.Thread(target=self.run, name="deepum-watch", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Watch until `end`."""
        looked = 0.0
        recording = self.recorder is not None
        while not self._ending.wait(RECORDING_S if recording else WATCHING_S):
            if self.recorder is not None and recording and self.recorder.take():
                recording = False
                self._write()
            if time.monotonic() - looked >= WATCHING_S:
                looked = time.monotonic()
                self.look()

    def look(self) -> None:
        """Look at the counts once."""
        counts = self._counts()
        if text := self._slow.look(counts):
            say(f"deepum: {text}")
        if self._progress is not None:
            self._progress.show(counts)

    def _write(self) -> None:
        if self.recorder is not None:
            self.recorder.finish(self._names, self._facts)

    def end(self) -> None:
        """Stop watching, and write what is to be written; nothing in a child process."""
        if os.getpid() != self._pid:
            return
        self._ending.set()
        if self._thread is not None:
            self._thread.join(10)
        self.look()
        if self._progress is not None:
            self._progress.close()
        self._write()

# SPDX-License-Identifier: Apache-2.0
"""Does many simulations: several at once, none twice, and goes on where it was interrupted."""

from __future__ import annotations

import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from deepum import errors
from deepum.errors import BudgetError, DeepUMError, PolicyError
from deepum.reproduce.cache import key_of
from deepum.reproduce.plan import BOUND, FACTS
from deepum.workers import work_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deepum.reproduce.cache import Cache
    from deepum.reproduce.plan import Job
    from deepum.trace import Trace

OUT_OF_MEMORY = "out of memory"
UNAVAILABLE = "not available"
SET_ASIDE = "set aside"
KEPT = "what was done is kept, so try again with --jobs 1"


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    figures: dict[str, float] = field(default_factory=dict)
    """Means over the steady iterations of a run, or what a bound or a trace says; empty if it
    did not run."""
    failure: str = ""
    """Why not: `OUT_OF_MEMORY`, `UNAVAILABLE` (no such policy or option) or `SET_ASIDE`."""
    reason: str = ""
    """The same in a sentence."""
    warnings: tuple[str, ...] = ()


def perform(job: Job) -> Outcome:
    """Do a job. Running out of memory and a policy that is not there are outcomes.

    Raises
    ------
    DeepUMError
        Anything else that goes wrong, such as a trace that cannot be read.
    """
    from deepum.policy import find

    if job.what not in {BOUND, FACTS}:
        try:
            find(job.policy)
        except PolicyError as error:
            return Outcome(failure=UNAVAILABLE, reason=str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            figures, set_aside = _figures(job)
        except _OUT_OF_MEMORY as error:
            return Outcome(failure=OUT_OF_MEMORY, reason=str(error))
        except PolicyError as error:
            return Outcome(failure=UNAVAILABLE, reason=str(error))
    if set_aside:
        return Outcome(failure=SET_ASIDE, reason=set_aside)
    return Outcome(figures, warnings=tuple(dict.fromkeys(str(w.message) for w in caught)))


_OUT_OF_MEMORY: tuple[type[DeepUMError], ...] = (
    BudgetError,
    getattr(errors, "OutOfMemoryError", BudgetError),
)


def _figures(job: Job) -> tuple[dict[str, float], str]:
    from deepum.backends.sim import bound, simulate
    from deepum.report.study import steady

    trace = _trace(job.trace)
    if job.what == FACTS:
        return _facts(trace), ""
    if job.what == BOUND:
        return asdict(bound(trace, job.machine, job.memory, job.iterations)), ""
    run = simulate(
        trace,
        job.machine,
        job.policy,
        memory=job.memory,
        depth=job.depth,
        iterations=job.iterations,
        without=job.without,
        options=dict(job.options),
    )
    figures = asdict(steady(run))
    del figures["policy"]
    return figures, run.set_aside


def _facts(trace: Trace) -> dict[str, float]:
    from deepum._core.lowering import Program
    from deepum.machine import BLOCK_BYTES

    sizes = Program(trace.columns()).working_set
    return {
        "peak_bytes": int(trace.peak_bytes),
        "segment_bytes": int(trace.segment_bytes.sum()),
        "working_set_bytes": int(sizes.max()) * BLOCK_BYTES if len(sizes) else 0,
        "kernels": trace.kernels_per_step,
    }


@lru_cache(maxsize=1)
def _trace(name: str) -> Trace:
    from deepum.trace import Trace

    return Trace.load(name)


class Runner:
    """Does jobs and remembers their outcomes.

    Parameters
    ----------
    processes
        Jobs at the same time.
    cache
        Where outcomes are kept; None keeps them in memory only.
    show
        Makes the progress display: a context manager, called with the number of jobs, that gives
        what to call with each finished one.

    Attributes
    ----------
    done, reused
        Jobs worked on, and jobs whose outcome was found in the cache.
    seconds
        Time spent in `run`.
    """

    def __init__(
        self,
        processes: int = 1,
        cache: Cache | None = None,
        show: Callable[[int], Any] | None = None,
    ) -> None:
        self.processes = processes
        self.cache = cache
        self.done = 0
        self.reused = 0
        self.seconds = 0.0
        self._show = show or _quietly
        self._known: dict[Job, Outcome] = {}

    def run(self, jobs: Iterable[Job]) -> dict[Job, Outcome]:
        """Return the outcome of each job. Each is stored as soon as it is there.

        Raises
        ------
        DeepUMError
            A job failed, or a process was killed; what was done before is kept.
        """
        began = time.perf_counter()
        wanted = list(dict.fromkeys(jobs))
        missing = [job for job in wanted if job not in self._known]
        keys = {job: key_of(job) for job in missing} if self.cache is not None else {}
        try:
            with self._show(len(wanted)) as step:
                for job in wanted:
                    if job in self._known or self._recall(job, keys.get(job)):
                        step(job)
                missing = [job for job in missing if job not in self._known]
                for place, outcome in work_off(perform, missing, self.processes, KEPT):
                    job = missing[place]
                    self._known[job] = outcome
                    self.done += 1
                    if self.cache is not None and outcome.failure not in (UNAVAILABLE, SET_ASIDE):
                        self.cache.put(keys[job], asdict(outcome))
                    step(job)
        finally:
            self.seconds += time.perf_counter() - began
        return {job: self._known[job] for job in wanted}

    def _recall(self, job: Job, key: str | None) -> bool:
        entry = self.cache.get(key) if self.cache is not None and key is not None else None
        if entry is None:
            return False
        try:
            outcome = Outcome(**{**entry, "warnings": tuple(entry["warnings"])})
        except (TypeError, KeyError):
            return False
        self._known[job] = outcome
        self.reused += 1
        return True


@contextmanager
def _quietly(total: int) -> Iterator[Callable[[Job], None]]:
    yield lambda job: None


@contextmanager
def progress(total: int) -> Iterator[Callable[[Job], None]]:
    """Show a progress bar on standard error if that is a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from deepum.report.tables import console

    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda job: None
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=shown,
        transient=True,
    ) as bar:
        running = bar.add_task("simulating", total=total)

        def step(job: Job) -> None:
            what = job.policy if job.what not in {BOUND, FACTS} else job.what
            bar.update(running, advance=1, description=f"{job.trace}: {what}")

        yield step

# SPDX-License-Identifier: Apache-2.0
"""What a set of simulations gave: tables, plots, pages and JSON are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepum.backends.results import Bound, Run
    from deepum.machine import Machine

T = TypeVar("T")

BASELINE = "noop"
"""The policy that others are compared with: plain demand paging."""

ORACLE = "oracle"
"""The policy that knows the trace; no advice to anybody, so it is never called the best."""


def in_mode(policy: str, memory_mode: str) -> str:
    """Return what a policy's runs are called in a memory mode."""
    return policy if memory_mode == "managed" else f"{policy}, {memory_mode}"


@dataclass(frozen=True)
class Steady:
    """Means over the last iterations of a run, once tables have been filled.

    Counts are means too, so they need not be whole.
    """

    policy: str
    table_bytes: int
    time_s: float
    compute_s: float
    stall_fault_s: float
    stall_evict_s: float
    stall_late_s: float
    host_s: float
    faults: float
    page_faults: float
    bytes_in: float
    bytes_out: float
    bytes_dropped: float
    prefetched: float
    prefetch_used: float
    late: float

    @property
    def accuracy(self) -> float | None:
        """Share of the prefetched blocks that were used; None when nothing was prefetched."""
        return self.prefetch_used / self.prefetched if self.prefetched else None


_MEANS = (
    "time_s",
    "compute_s",
    "stall_fault_s",
    "stall_evict_s",
    "stall_late_s",
    "host_s",
    "faults",
    "page_faults",
    "bytes_in",
    "bytes_out",
    "bytes_dropped",
    "prefetched",
    "prefetch_used",
    "late",
)


def steady_iterations(iterations: Sequence[T]) -> Sequence[T]:
    """Return the iterations that count as steady state: the last third, at least one.

    More than the last alone, so that a program whose steps alternate (gradient accumulation, an
    evaluation now and then) is judged by both kinds; no more than a third, since the first
    steps of a program differ (an optimizer makes its state) and tables are filled after that.
    """
    return iterations[len(iterations) - max(1, len(iterations) // 3) :]


def steady(run: Run) -> Steady:
    """Average the steady-state iterations of a run."""
    last = steady_iterations(run.iterations)
    means = {name: sum(getattr(it, name) for it in last) / len(last) for name in _MEANS}
    return Steady(policy=run.policy, table_bytes=run.table_bytes, **means)


@dataclass(frozen=True)
class TraceResult:
    """All runs over one trace, with its limits."""

    trace: str
    model: str
    batch: str
    peak_bytes: int
    kernels_per_step: int
    estimated: bool
    """True when the kernel times in the trace are estimates, not measurements."""
    bound: Bound
    runs: Sequence[Run]
    warnings: Sequence[str] = ()
    other_bounds: dict[str, Bound] = field(default_factory=dict)
    """By memory mode, where runs of several are compared: `bound` is the first one's."""

    def run(self, policy: str) -> Run | None:
        """Return the run of a policy, or None."""
        return next((run for run in self.runs if run.policy == policy), None)

    def steady(self) -> list[Steady]:
        """Return the steady state of every run, in the order of the runs."""
        return [steady(run) for run in self.runs]

    @property
    def baseline_s(self) -> float | None:
        """Steady time a step under plain demand paging, or None when it was not run."""
        run = self.run(BASELINE)
        return None if run is None else steady(run).time_s

    @property
    def title(self) -> str:
        """Model and batch where the trace tells them, else its name."""
        if not self.model:
            return self.trace
        return f"{self.model}, batch {self.batch}" if self.batch else self.model

    def best(self) -> Steady | None:
        """Return the fastest policy that does not know the future, the baseline apart."""
        real = [row for row in self.steady() if row.policy.split(", ")[0] not in {BASELINE, ORACLE}]
        return min(real, key=lambda row: row.time_s, default=None)


@dataclass(frozen=True)
class Study:
    """Runs over one or more traces on one machine."""

    machine: Machine
    memory_bytes: int
    results: Sequence[TraceResult]
    iterations: int
    depth: int
    without: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    memory_modes: Sequence[str] = ("managed",)

    def to_json(self) -> dict[str, Any]:
        """Return what ``deepum simulate --json`` writes."""
        return {
            "machine": self.machine.name,
            "memory_bytes": self.memory_bytes,
            "traces": [
                {
                    "trace": result.trace,
                    "peak_bytes": result.peak_bytes,
                    "ideal_s": result.bound.ideal_s,
                    "bound_s": result.bound.bound_s,
                    **{
                        f"bound_{mode}_s": bound.bound_s
                        for mode, bound in result.other_bounds.items()
                    },
                    "runs": [run.to_json() for run in result.runs],
                }
                for result in self.results
            ],
        }

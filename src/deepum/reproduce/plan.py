# SPDX-License-Identifier: Apache-2.0
"""Which simulations make up the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deepum.reproduce import paper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deepum.machine import Machine

DEPTH = 32
"""Prefetch distance of every run that does not say otherwise: the paper's best."""

ITERATIONS = 6
"""Simulated steps of a run; the mean of the last third counts."""

LEARNING_ITERATIONS = 30
"""Steps of the paper's policy: here and there it still learns a block in the twentieth."""

OPTION_ITERATIONS = 9
"""Steps of its variants."""

SWAPPER_ITERATIONS = 100
"""Steps of the swappers, as many as the paper timed: memory falls to pieces only slowly."""

PAST_PAPER_OPTIONS: dict[str, Any] = {
    "next_use": True,
    "auto_depth": True,
    "ranges": True,
    "drop_clean": True,
    "ways": 8,
}
"""Options of `chained`, or of the engine, that go past the paper."""

_NO_GATE = {**PAST_PAPER_OPTIONS, "gate": False}

PAST_PAPER_TRIALS: dict[str, dict[str, Any]] = {
    "as deep as memory holds": {"auto_depth": True},
    "victims by next use": {"next_use": True},
    "memory named by launches": {"ranges": True},
    "clean blocks not copied": {"drop_clean": True},
    "eight ways in a row": {"ways": 8},
    "all of these, but nothing held back": _NO_GATE,
    "neighbours moved one by one": {"max_run": 1},
    "fresh memory learnt by faults only": {"learn_allocations": False},
}
"""Name -> options: each measured on every row of the 32 GB card. The last two take something away
that plain `chained` has beyond the paper."""

MACHINES = {"32 GB": "v100-pcie3-32g", "16 GB": "v100-pcie3-16g"}

_TRACES = {
    "GPT-2 XL": "gpt2-xl",
    "GPT-2 L": "gpt2-l",
    "BERT Large": "bert-large",
    "BERT Base": "bert-base",
    "DLRM": "dlrm",
    "ResNet-152": "resnet152",
    "ResNet-200": "resnet200",
    "ResNet-200 CIFAR-10": "resnet200-cifar",
    "BERT Large CoLA": "bert-large-cola",
    "DCGAN": "dcgan",
    "MobileNet": "mobilenet",
}

TRANSFORMERS = ("GPT-2 XL", "GPT-2 L", "BERT Large", "BERT Base")

_BATCHES_16GB = {
    "ResNet-200 CIFAR-10": (4200, 5700, 6400),
    "BERT Large CoLA": (25, 28, 64),
    "DCGAN": (1400, 2500, 3500),
    "MobileNet": (1200, 3200, 5100),
}

RUN, BOUND, FACTS = "run", "bound", "facts"


@dataclass(frozen=True)
class Job:
    """One piece of work: a simulation, or the limits or the size of a trace."""

    trace: str
    """Shipped name or path."""
    machine: str | Machine = MACHINES["32 GB"]
    policy: str = "noop"
    options: tuple[tuple[str, Any], ...] = ()
    depth: int = DEPTH
    without: tuple[str, ...] = ()
    iterations: int = ITERATIONS
    memory: int | None = None
    """Budget in bytes; the machine's memory if None."""
    what: str = RUN
    """`RUN`, `BOUND` (what no policy can beat) or `FACTS` (how much memory the trace needs)."""


def options_of(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return options in the form in which a `Job` holds them."""
    return tuple(sorted(options.items()))


def batch_text(batch: int) -> str:
    """Return a batch size as the paper prints it: 98304 is 96K."""
    return f"{batch // 1024}K" if batch % 1024 == 0 and batch >= 32 * 1024 else f"{batch}"


@dataclass(frozen=True)
class Point:
    """One model at one batch size on one card."""

    model: str
    batch: int
    memory: str
    """``"32 GB"`` or ``"16 GB"``."""

    @property
    def name(self) -> str:
        """Model and batch, as tables show them."""
        return f"{self.model} {batch_text(self.batch)}"

    @property
    def trace(self) -> str:
        """Name of the shipped trace."""
        size = f"{self.batch // 1024}k" if self.model == "DLRM" else f"{self.batch}"
        return f"{_TRACES[self.model]}-b{size}"

    @property
    def paper(self) -> paper.Row | None:
        """What the paper reports of it."""
        if self.memory != "32 GB":
            return None
        return next(r for r in paper.ROWS if (r.model, r.batch) == (self.model, self.batch))

    def job(self, policy: str = "noop", **changes: Any) -> Job:
        """Return a job on this point."""
        return Job(self.trace, MACHINES[self.memory], policy, **changes)


POINTS_32GB = tuple(Point(row.model, row.batch, "32 GB") for row in paper.ROWS)
POINTS_16GB = tuple(
    Point(model, batch, "16 GB") for model, batches in _BATCHES_16GB.items() for batch in batches
)


def runs_of(point: Point) -> dict[str, Job]:
    """Return the jobs of a point that every row has, by the name of their column."""
    jobs = {
        "um": point.job(),
        "lms": point.job("lms", iterations=SWAPPER_ITERATIONS),
        "chained": point.job("chained", iterations=LEARNING_ITERATIONS),
        "bound": point.job(what=BOUND),
        "past_paper": trial_job(point, PAST_PAPER_OPTIONS),
        "facts": point.job(what=FACTS),
        "single_level": point.job("single-level"),
        "oracle": point.job("oracle"),
        "hints": point.job("hints"),
    }
    if point.memory == "32 GB":
        jobs["lms_mod"] = point.job("lms-mod", iterations=SWAPPER_ITERATIONS)
        jobs["lms15"] = point.job(
            "lms", options=(("patch", "1.5"),), iterations=LEARNING_ITERATIONS
        )
        jobs["levels3"] = point.job("single-level", options=(("levels", 3),))
        for name, without in (
            ("prefetch", ("invalidate", "pre-evict")),
            ("pre_evict", ("invalidate",)),
        ):
            jobs[name] = point.job("chained", without=without, iterations=OPTION_ITERATIONS)
    return jobs


def trial_job(point: Point, options: Mapping[str, Any]) -> Job:
    """Return the run of the paper's policy with options past the paper."""
    return point.job("chained", options=options_of(options), iterations=OPTION_ITERATIONS)


def depth_job(point: Point, depth: int) -> Job:
    """Return the run of the paper's policy with another prefetch distance."""
    return point.job("chained", depth=depth)


def geometry_job(point: Point, geometry: tuple[int, int, int]) -> Job:
    """Return the run with another shape (ways, successors, rows) of the UM-block tables."""
    if geometry == paper.GEOMETRY_USED:
        return point.job("chained")
    ways, successors, rows = geometry
    return point.job(
        "chained", options=options_of({"ways": ways, "successors": successors, "rows": rows})
    )


@dataclass(frozen=True)
class Plan:
    """An evaluation: the points, and what is swept over which of them."""

    points: Sequence[Point]
    depths: Sequence[int]
    """Prefetch distances, `paper.DEPTH_BASE` among them."""
    geometries: Sequence[tuple[int, int, int]]
    swept: Sequence[Point]
    """Points that the sweeps run on."""
    sized: Sequence[Point] = ()
    """Points whose memory needs are read, for the largest batch; beside `points`."""
    quick: bool = False

    @cached_property
    def jobs(self) -> list[Job]:
        """Every job once, those of one trace together."""
        jobs = [job for point in self.points for job in runs_of(point).values()]
        jobs += [depth_job(point, depth) for point in self.swept for depth in self.depths]
        jobs += [geometry_job(point, shape) for point in self.swept for shape in self.geometries]
        jobs += [
            trial_job(point, options)
            for point in self.points
            for options in ({}, *PAST_PAPER_TRIALS.values())
            if PAST_PAPER_TRIALS and point.memory == "32 GB"
        ]
        jobs += [point.job(what=FACTS) for point in self.sized]
        return _grouped(dict.fromkeys(jobs))


def _grouped(jobs: Iterable[Job]) -> list[Job]:
    # A worker keeps the trace that it read last.
    traces: dict[str, list[Job]] = {}
    for job in jobs:
        traces.setdefault(job.trace, []).append(job)
    return [job for group in traces.values() for job in group]


def full() -> Plan:
    """Return the whole evaluation."""
    return Plan(
        points=POINTS_32GB + POINTS_16GB,
        depths=(paper.DEPTH_BASE, *paper.DEPTH),
        geometries=tuple(paper.GEOMETRY),
        swept=_smallest(POINTS_32GB, 2),
    )


def _smallest(points: Iterable[Point], count: int) -> tuple[Point, ...]:
    # The smallest batches of each model.
    seen: dict[str, list[Point]] = {}
    for point in points:
        seen.setdefault(point.model, []).append(point)
    return tuple(point for batches in seen.values() for point in batches[:count])


def quick() -> Plan:
    """Return the smallest batch of every model, and small sweeps over the shortest traces."""
    seen: dict[tuple[str, str], Point] = {}
    for point in POINTS_32GB + POINTS_16GB:
        seen.setdefault((point.model, point.memory), point)
    points = tuple(seen.values())
    return Plan(
        points=points,
        depths=(paper.DEPTH_BASE, 32, 128),
        geometries=(paper.GEOMETRY_BASE, (4, 4, 512), paper.GEOMETRY_USED),
        swept=tuple(p for p in points if p.memory == "32 GB" and p.model in _SHORT),
        sized=POINTS_32GB + POINTS_16GB,
        quick=True,
    )


_SHORT = ("BERT Large", "BERT Base", "DLRM")

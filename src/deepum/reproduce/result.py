# SPDX-License-Identifier: Apache-2.0
"""From outcomes to the figures that are compared: what ``deepum reproduce --json`` writes.

Seconds are for 100 iterations, as in the paper: steady-state seconds of one, times 100.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from deepum.reproduce import energy, paper, targets
from deepum.reproduce import plan as plans
from deepum.reproduce.largest import largest_batches
from deepum.reproduce.plan import depth_job, geometry_job, runs_of, trial_job
from deepum.reproduce.statistics import gmean, ratio, spearman

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deepum.reproduce.plan import Job, Plan, Point
    from deepum.reproduce.runner import Outcome

Row = dict[str, Any]

_TIMED = {
    "um_s": "um",
    "lms_s": "lms",
    "lms_mod_s": "lms_mod",
    "lms15_s": "lms15",
    "chained_s": "chained",
    "past_paper_s": "past_paper",
    "single_level_s": "single_level",
    "levels3_s": "levels3",
    "hints_s": "hints",
    "oracle_s": "oracle",
    "prefetch_s": "prefetch",
    "pre_evict_s": "pre_evict",
}
"""Figure of a row -> its run."""

_PARTS = ("compute_s", "stall_fault_s", "stall_evict_s", "stall_late_s", "host_s")


def build(
    plan: Plan, outcomes: Mapping[Job, Outcome], g10: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the result of an evaluation as plain data for JSON.

    Parameters
    ----------
    g10
        One entry for each of G10's traces: ``trace``, the seconds ``ideal_s``, ``oracle_s``,
        ``chained_s`` and ``noop_s``, and ``published``, what G10's authors report of ``noop``
        (plain UVM), ``deepum_plus`` and ``g10`` as times over the ideal.
    """
    import deepum

    rows = [_row(point, outcomes) for point in plan.points]
    big = [row for row in rows if row["memory"] == "32 GB"]
    small = [row for row in rows if row["memory"] != "32 GB"]
    depth, depth_rows = _sweep(
        plan.swept,
        {str(value): partial(depth_job, depth=value) for value in plan.depths},
        str(paper.DEPTH_BASE),
        outcomes,
    )
    del depth[str(paper.DEPTH_BASE)]
    geometry, geometry_rows = _sweep(
        plan.swept,
        {
            ",".join(map(str, shape)): partial(geometry_job, geometry=shape)
            for shape in plan.geometries
        },
        ",".join(map(str, paper.GEOMETRY_BASE)),
        outcomes,
    )
    data: dict[str, Any] = {
        "gmean": _gmeans(big),
        "rank_correlation": spearman(
            [(speedup(row["paper"], "chained_s"), speedup(row["ours"], "chained_s")) for row in big]
        ),
        "rows": rows,
        "ablation": {
            stage: gmean(ratio(row["ours"][name], row["ours"]["um_s"]) for row in big)
            for stage, name in zip(
                paper.STAGES, ("prefetch_s", "pre_evict_s", "chained_s"), strict=True
            )
        },
        "depth": depth,
        "geometry": geometry,
        "g10": [dict(entry) for entry in g10],
        "depth_rows": depth_rows,
        "geometry_rows": geometry_rows,
        "gmean_16gb": _gmeans(small),
        "lms_compared": _compared(big),
        "energy": {
            "lms": gmean(row["ours"]["lms_energy"] for row in big),
            "chained": gmean(row["ours"]["energy"] for row in big),
            "past_paper": gmean(row["ours"]["past_paper_energy"] for row in big),
            "power": asdict(energy.POWER),
        },
        "largest_batch": largest_batches(outcomes),
        "past_paper_options": dict(plans.PAST_PAPER_OPTIONS),
        "past_paper_trials": _trials(plan, outcomes),
        "made": {
            "deepum": deepum.__version__,
            "quick": plan.quick,
            "runs": len(plan.jobs),
            "swept": len(plan.swept),
        },
    }
    data = _rounded(data)
    data["targets"] = targets.judge(data)
    return data


def speedup(figures: Mapping[str, Any], name: str) -> float | None:
    """Return how much faster than naive UM a column of a row is."""
    return ratio(figures.get("um_s"), figures.get(name))


def _gmeans(rows: Sequence[Row]) -> dict[str, float | None]:
    return {
        name: gmean(speedup(row["ours"], column) for row in rows)
        for name, column in (
            ("chained", "chained_s"),
            ("lms", "lms_s"),
            ("ideal", "ideal_s"),
            ("chained_past_paper", "past_paper_s"),
        )
    }


def _row(point: Point, outcomes: Mapping[Job, Outcome]) -> Row:
    found = {name: outcomes[job] for name, job in runs_of(point).items() if job in outcomes}
    ours: Row = {
        name: paper.PER * found[run].figures["time_s"]
        if run in found and found[run].figures
        else None
        for name, run in _TIMED.items()
    }
    limits = found["bound"].figures
    ours["ideal_s"] = paper.PER * limits["ideal_s"] if limits else None
    ours["bound_s"] = paper.PER * limits["bound_s"] if limits else None
    um, chained, past = (found[name].figures for name in ("um", "chained", "past_paper"))
    ours["faults_um"] = round(um["page_faults"]) if um else None
    ours["faults_chained"] = round(chained["page_faults"]) if chained else None
    oracle, hints = found["oracle"].figures, found["hints"].figures
    ours["faults_oracle"] = round(oracle["page_faults"]) if oracle else None
    ours["faults_past_paper"] = round(past["page_faults"]) if past else None
    ours["faults_hints"] = round(hints["page_faults"]) if hints else None
    ours["table_mb"] = chained["table_bytes"] / 1e6 if chained else None
    ours["past_paper_table_mb"] = past["table_bytes"] / 1e6 if past else None
    for column, run in (("", "chained"), ("lms_", "lms"), ("past_paper_", "past_paper")):
        ours[f"{column}energy"] = _energy(found[run], found["um"])
    ours["time"] = {
        run: {part: paper.PER * found[run].figures[part] for part in _PARTS}
        for run in ("um", "chained", "past_paper")
        if found[run].figures
    }
    ours["traffic_gb"] = {
        run: {way: found[run].figures[f"bytes_{way}"] / 1e9 for way in ("in", "out")}
        for run in ("um", "chained", "past_paper", "bound")
        if found[run].figures
    }
    facts = found["facts"].figures
    ours["peak_gb"] = facts["peak_bytes"] / 1e9 if facts else None
    ours["failures"] = {
        name: {"what": outcome.failure, "reason": outcome.reason}
        for name, outcome in found.items()
        if outcome.failure
    }
    return {
        "model": point.model,
        "batch": point.batch,
        "memory": point.memory,
        "trace": point.trace,
        "paper": _paper(point.paper),
        "ours": ours,
    }


def _paper(row: paper.Row | None) -> Row:
    if row is None:
        return {}
    figures = asdict(row)
    del figures["model"], figures["batch"]
    return {**figures, "ideal_s": ratio(row.um_s, row.ideal_speedup)}


def _energy(run: Outcome, um: Outcome) -> float | None:
    if not run.figures or not um.figures:
        return None
    return energy.joules(run.figures) / energy.joules(um.figures)


def _compared(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the mean speedups of the swappers over the rows on which the paper's ran as well."""
    made: dict[str, Row] = {}
    for column, theirs in (("lms_s", "lms_s"), ("lms15_s", "lms_s"), ("lms_mod_s", "lms_mod_s")):
        both = [
            row
            for row in rows
            if row["paper"][theirs] is not None and row["ours"][column] is not None
        ]
        made[column.removesuffix("_s")] = {
            "rows": len(both),
            "paper": gmean(speedup(row["paper"], theirs) for row in both),
            "ours": gmean(speedup(row["ours"], column) for row in both),
        }
    return made


def _sweep(
    points: Sequence[Point],
    jobs: Mapping[str, Callable[[Point], Job]],
    base: str,
    outcomes: Mapping[Job, Outcome],
) -> tuple[Row, Row]:
    """Return the speed over `base` for each value: the geometric means, and row by row."""
    rows: Row = {
        point.name: {
            value: ratio(
                outcomes[jobs[base](point)].figures.get("time_s"),
                outcomes[job(point)].figures.get("time_s"),
            )
            for value, job in jobs.items()
        }
        for point in points
    }
    return {value: gmean(row[value] for row in rows.values()) for value in jobs}, rows


def _trials(plan: Plan, outcomes: Mapping[Job, Outcome]) -> Row:
    """Gain of each option past the paper over plain chained after as many iterations, and the rows
    that it slows down.
    """  # noqa: D205
    made = {}
    for name, options in plans.PAST_PAPER_TRIALS.items():
        gains: dict[str, float | None] = {
            point.name: ratio(
                outcomes[trial_job(point, {})].figures.get("time_s"),
                outcomes[trial_job(point, options)].figures.get("time_s"),
            )
            for point in plan.points
            if point.memory == "32 GB"
        }
        made[name] = {
            "options": dict(options),
            "gain": gmean(gains.values()),
            "slower": [
                row for row, gain in gains.items() if gain is not None and gain * targets.SLOWER < 1
            ],
            "gains": gains,
        }
    return made


def _rounded(value: Any) -> Any:
    """Keep six digits: more is noise in a file that people compare."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value

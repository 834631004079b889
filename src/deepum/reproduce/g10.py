# SPDX-License-Identifier: Apache-2.0
"""G10's public kernel traces, on G10's own machine constants, beside its published results.

G10 (Zhang et al., MICRO 2023) published its simulator with kernel traces measured on an A100 and
compared itself with plain UVM and with "DeepUM+", an oracle with a short sight. The traces are
not ours to ship: they are read from the folder that `FOLDER_VARIABLE` names.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.reproduce.plan import BOUND, Job, options_of
from deepum.reproduce.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER_VARIABLE = "DEEPUM_DATA"
"""Environment variable: the folder that holds ``g10/*.json.gz``."""

MACHINE = "g10-a100"

TRACES = ("BERT-256", "BERT-512", "VIT-1280", "Inceptionv3-1536", "ResNet152-1280")

CYCLE_HZ = 1.2e9

PUBLISHED: dict[str, Any] = {
    # Time over ideal of plain UVM and of DeepUM+; DeepUM+ over G10; one iteration under DeepUM+.
    "BERT-256": {"noop": 2.70, "deepum_plus": 1.257, "gain": 1.253, "cycles": 10992552904},
    "BERT-512": {"cycles": 18980722809},
    "VIT-1280": {"noop": 6.62, "deepum_plus": 2.034, "gain": 1.364, "cycles": 9069040214},
    "Inceptionv3-1536": {
        "noop": 4.71,
        "deepum_plus": 1.485,
        "gain": 1.452,
        "cycles": 106402260905,
    },
    "ResNet152-1280": {
        "noop": 4.17,
        "deepum_plus": 1.173,
        "gain": 1.154,
        "cycles": 158428482477,
    },
    # Geometric means of ideal / x over G10's models.
    "gmean": {"noop": 0.220, "flashneuron": 0.625, "deepum_plus": 0.688, "g10": 0.903},
}
"""What G10's artifact reports (its ``example_results`` and data)."""

HORIZONS = (128, 1024)
"""Launches that the oracle looks ahead: it knows the trace, so it also knows which is better. The
second one is the policy's default."""

CHAINED_ITERATIONS = 4  # two to learn, then two
ITERATIONS = 3

_DEEPUM_PLUS = "deepum.reproduce.deepum_plus:DeepUMPlus"
# Its prefetch queue has no limit in the artifact, and evicting in larger lots saves looking
# through the resident blocks each time.
_DEEPUM_PLUS_ENGINE = {"queue": 65536, "pre_evict_high": 256}


def folder() -> Path | None:
    """Return where the traces are, None if they are not there."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    path = Path(named)
    return path / "g10" if (path / "g10").is_dir() else path if path.is_dir() else None


def absence() -> str:
    """Return why G10's traces cannot be run, "" if they can."""
    if not os.environ.get(FOLDER_VARIABLE):
        return f"G10's traces are not part of deepum: set {FOLDER_VARIABLE} to where they are"
    where = folder()
    if where is None:
        return f"{FOLDER_VARIABLE}={os.environ[FOLDER_VARIABLE]} is not a folder"
    if not any((where / f"{name}.json.gz").is_file() for name in TRACES):
        return f"none of G10's traces ({TRACES[0]}.json.gz, ...) is in {where}"
    return ""


def published(name: str) -> dict[str, float]:
    """Return the published times over ideal of a trace, of ``noop``, ``deepum_plus``, ``g10``."""
    figures = PUBLISHED[name]
    ratios = {key: figures[key] for key in ("noop", "deepum_plus") if key in figures}
    if "gain" in figures:
        ratios["g10"] = figures["deepum_plus"] / figures["gain"]
    return ratios


def jobs(path: str) -> dict[str, Job]:
    """Return the simulations of one trace, by name."""
    runs = {
        "bound": Job(path, MACHINE, iterations=ITERATIONS, what=BOUND),
        "noop": Job(path, MACHINE, "noop", iterations=ITERATIONS),
        "chained": Job(path, MACHINE, "chained", iterations=CHAINED_ITERATIONS),
        "deepum_plus": Job(
            path,
            MACHINE,
            _DEEPUM_PLUS,
            options_of({"trace": path, **_DEEPUM_PLUS_ENGINE}),
            iterations=ITERATIONS,
        ),
    }
    for horizon in HORIZONS:
        runs[f"oracle_{horizon}"] = Job(
            path, MACHINE, "oracle", options_of({"horizon": horizon}), iterations=ITERATIONS
        )
    return runs


def results(
    runner: Runner | None = None, traces: Sequence[str] = TRACES, where: str | Path | None = None
) -> list[dict[str, Any]]:
    """Run the traces and return one row for each.

    Parameters
    ----------
    runner
        Does the simulations; by default one at a time, not cached.
    traces
        Which of `TRACES`.
    where
        Their folder; by default the one that `FOLDER_VARIABLE` names. If that is not there, a
        warning says so and there are no rows.

    Returns
    -------
    list of dict
        ``trace``; seconds of one steady iteration in ``ours`` (``noop``, ``chained``,
        ``deepum_plus``, ``oracle``, ``ideal``, ``bound``) and again as ``noop_s`` and so on;
        ``ratios``, the same over the ideal; ``published``, G10's times over the ideal;
        ``oracle_horizon``, which of `HORIZONS` did better, and ``oracle_default`` over ideal.
    """
    if where is None:
        reason = absence()
        if reason:
            warnings.warn(reason, stacklevel=2)
            return []
        where = folder()
    paths = {name: Path(str(where)) / f"{name}.json.gz" for name in traces}
    plans = {name: jobs(str(path)) for name, path in paths.items() if path.is_file()}
    outcomes = (runner or Runner()).run(job for plan in plans.values() for job in plan.values())
    rows = []
    for name, plan in plans.items():
        figures = {run: outcomes[job].figures for run, job in plan.items()}
        rows.append(_row(name, figures))
    return rows


def _row(name: str, figures: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    by_horizon = {
        horizon: figures[f"oracle_{horizon}"]["time_s"]
        for horizon in HORIZONS
        if figures[f"oracle_{horizon}"]
    }
    best = min(by_horizon, key=by_horizon.__getitem__, default=None)
    ours = {run: figures[run].get("time_s") for run in ("noop", "chained", "deepum_plus")}
    ours["oracle"] = by_horizon[best] if best is not None else None
    ideal = figures["bound"]["ideal_s"]
    ours["ideal"] = ideal
    ours["bound"] = figures["bound"]["bound_s"]
    ratios = {run: seconds / ideal for run, seconds in ours.items() if seconds is not None}
    default = by_horizon.get(HORIZONS[-1])
    return {
        "trace": name,
        **{f"{run}_s": seconds for run, seconds in ours.items()},
        "ours": ours,
        "ratios": ratios,
        "published": {
            "deepum_plus": PUBLISHED[name]["cycles"] / CYCLE_HZ / ideal,
            **published(name),
        },
        "oracle_horizon": best,
        "oracle_default": None if default is None else default / ideal,
    }

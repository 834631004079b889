# SPDX-License-Identifier: Apache-2.0
"""An evaluation without simulations: outcomes made up from the paper's own numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import deepum
import deepum.commands
from deepum.reproduce import document, paper, plan
from deepum.reproduce.plan import BOUND, FACTS, Job, Plan, Point
from deepum.reproduce.runner import OUT_OF_MEMORY, UNAVAILABLE, Outcome

GOLDEN = Path(__file__).parent / "golden"

STEADY = (
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
    "table_bytes",
)


def run_figures(time_s: float, compute_s: float, **values: float) -> dict[str, float]:
    """Return the means of a run whose stalls are what is left of its time."""
    stall = time_s - compute_s
    figures = dict.fromkeys(STEADY, 0.0)
    figures |= {"time_s": time_s, "compute_s": compute_s}
    figures |= {"stall_fault_s": 0.6 * stall, "stall_evict_s": 0.3 * stall}
    figures |= {"stall_late_s": 0.1 * stall, "bytes_in": 100e9, "bytes_out": 80e9}
    return figures | values


def made_up(point: Point, job: Job) -> Outcome:
    """Return what a simulator would say that agreed with the paper to a few percent."""
    row = point.paper
    if row is None:
        if point.model == "DCGAN" and job.what != FACTS:
            return Outcome(failure=OUT_OF_MEMORY, reason="memory of 15.26 GiB is too small")
        row = paper.Row("", 1, 800, 400, None, 200, 8.0, 0.3, 1000000, 100, 50)
    batch = point.batch
    ideal = row.um_s / (row.ideal_speedup or 9.0) / 100
    if job.what == FACTS:
        peak = 10e9 + 60e9 * batch / max(batch, 1000)
        return Outcome({"peak_bytes": peak, "segment_bytes": peak, "working_set_bytes": peak / 20})
    if job.what == BOUND:
        return Outcome(
            {"ideal_s": ideal, "bound_s": 1.2 * ideal, "bytes_in": 50e9, "bytes_out": 40e9}
        )
    if job.policy == "hints":
        return Outcome(failure=UNAVAILABLE, reason="no policy named 'hints'")
    if job.policy == "lms-mod":
        if row.lms_mod_s is None:
            return Outcome(failure=OUT_OF_MEMORY, reason="no room for 5.00 GB")
        return Outcome(run_figures(row.lms_mod_s / 100 * 1.2, ideal))
    if job.policy == "lms":
        if row.lms_s is None:
            return Outcome(failure=OUT_OF_MEMORY, reason="no room for 4.00 GB")
        return Outcome(run_figures(row.lms_s / 100 * 1.1, ideal))
    if job.policy == "noop":
        return Outcome(run_figures(row.um_s / 100, ideal, page_faults=row.faults_um * 1.2))
    seconds = row.chained_s / 100 * 1.04
    if job.policy == "oracle":
        seconds *= 0.9
    if job.policy == "single-level":
        seconds *= 2 - 0.1 * dict(job.options).get("levels", 1)
    if "pre-evict" in job.without:
        seconds *= paper.ABLATION["prefetch"] / paper.ABLATION["invalidate"]
    elif "invalidate" in job.without:
        seconds *= paper.ABLATION["pre_evict"] / paper.ABLATION["invalidate"]
    if dict(job.options).get("clever"):
        seconds *= 0.75
    if dict(job.options).get("depth_is"):
        seconds *= 1.02 if point.model == "BERT Base" else 0.9
    if job.depth != plan.DEPTH:
        seconds *= paper.DEPTH[32] / paper.DEPTH.get(job.depth, 1.0)
    return Outcome(
        run_figures(
            seconds, ideal, page_faults=row.faults_chained * 0.5, table_bytes=row.table_mb * 3e5
        )
    )


def outcomes_of(plan_: Plan) -> dict[Job, Outcome]:
    """Make up the outcome of every job of a plan."""
    points = {p.trace: p for p in (*plan.POINTS_32GB, *plan.POINTS_16GB)}
    return {job: made_up(points[job.trace], job) for job in plan_.jobs}


G10 = [
    {
        "trace": name,
        "ideal_s": 10.0,
        "oracle_s": 11.0,
        "chained_s": 13.0,
        "noop_s": noop,
        "published": {"noop": published, "deepum_plus": 1.257, "g10": 1.003},
    }
    for name, noop, published in (("BERT-256", 26.0, 2.70), ("VIT-1280", 50.0, 6.62))
]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin what the texts depend on and what others fill in."""
    monkeypatch.setattr(deepum, "__version__", "1.2.3")
    monkeypatch.setattr(plan, "PAST_PAPER_OPTIONS", {"clever": True})
    trials = {"nearer": {"depth_is": "time"}, "cleverer": {"clever": True}}
    monkeypatch.setattr(plan, "PAST_PAPER_TRIALS", trials)
    monkeypatch.setattr(document, "REMARKS", {"g10-ratio": "Because of this and that."})
    calibration = SimpleNamespace(
        CALIBRATED_ON=("GPT-2 XL 3", "resnet152-b1280"),
        TEXT="Two constants were fitted\non two rows.\n\nNothing else was.",
    )
    monkeypatch.setitem(sys.modules, "deepum.reproduce.calibration", calibration)


@pytest.fixture
def make() -> SimpleNamespace:
    """Return the functions that make up an evaluation."""
    return SimpleNamespace(outcomes_of=outcomes_of, g10=G10, run_figures=run_figures)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Make the quick plan one of two short traces and one of the 16 GB card."""
    by_name = {p.name: p for p in (*plan.POINTS_32GB, *plan.POINTS_16GB)}
    points = [by_name[name] for name in ("BERT Base 29", "DLRM 96K", "MobileNet 1200")]
    made = Plan(
        points=points,
        depths=(paper.DEPTH_BASE, 32),
        geometries=(paper.GEOMETRY_BASE, paper.GEOMETRY_USED),
        swept=points[:2],
        quick=True,
    )
    monkeypatch.setattr(plan, "quick", lambda: made)
    monkeypatch.setattr(plan, "PAST_PAPER_OPTIONS", {})
    monkeypatch.setattr(plan, "PAST_PAPER_TRIALS", {})
    return made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs ``deepum reproduce`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEPUM_TRACEBACK", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    verbs = tuple(dict.fromkeys((*deepum.commands.VERBS, "reproduce")))
    monkeypatch.setattr(deepum.commands, "VERBS", verbs)
    # The comparison with G10 has tests of its own.
    g10 = SimpleNamespace(results=lambda runner: [])
    monkeypatch.setitem(sys.modules, "deepum.reproduce.g10", g10)

    def call(*arguments: object, status: int = 0) -> Result:
        arguments = ("reproduce", *arguments)
        result = CliRunner().invoke(
            deepum.commands.cli, [str(a) for a in arguments], prog_name="deepum"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return call


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file; DEEPUM_UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    if os.environ.get("DEEPUM_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text("utf-8"), f"differs from {path.name}"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Return the function that compares a text with a golden file."""
    return check_golden


@pytest.fixture(scope="session")
def target_of() -> Callable[[Mapping, str], Mapping]:
    """Return a function that finds a target of a result by its key."""
    return lambda data, key: next(t for t in data["targets"] if t["key"] == key)

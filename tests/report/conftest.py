# SPDX-License-Identifier: Apache-2.0
"""Results made by hand, so that reports are tested without a simulation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deepum.backends.results import Bound, Iteration, Run, Timeline
from deepum.machine import Machine
from deepum.report.study import Study, TraceResult

GOLDEN = Path(__file__).parent / "golden"
GB = 1_000_000_000


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file; DEEPUM_UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    # Trailing blanks of tables say nothing, and editors remove them.
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("DEEPUM_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text("utf-8"), f"differs from {path.name}"


def iteration(
    compute_s: float = 10.0,
    fault_s: float = 0.0,
    evict_s: float = 0.0,
    late_s: float = 0.0,
    host_s: float = 0.0,
    **values: float,
) -> Iteration:
    """Build an iteration whose times add up."""
    stall = fault_s + evict_s + late_s
    counts = dict.fromkeys(
        (
            "faults",
            "page_faults",
            "bytes_in",
            "bytes_out",
            "bytes_dropped",
            "prefetched",
            "prefetch_used",
            "late",
            "wasted",
            "fault_evictions",
            "pre_evictions",
            "discarded",
            "refused",
        ),
        0,
    )
    return Iteration(
        time_s=compute_s + host_s + stall,
        compute_s=compute_s,
        stall_s=stall,
        stall_fault_s=fault_s,
        stall_evict_s=evict_s,
        stall_late_s=late_s,
        host_s=host_s,
        **{**counts, **values},
    )


def timeline(step_s: float, points: int = 50) -> Timeline:
    """Build a step whose live memory rises and falls once."""
    x = np.linspace(0.0, 1.0, points)
    live = ((30 + 40 * np.sin(np.pi * x)) * GB).astype(np.int64)
    return Timeline(
        time_s=x * step_s,
        resident_bytes=np.minimum(live, 33 * GB),
        live_bytes=live,
        bytes_in=(x * 150 * GB).astype(np.int64),
        bytes_out=(x * 100 * GB).astype(np.int64),
    )


def noop(steps: int = 6) -> Run:
    """Demand paging: every step alike."""
    step = iteration(
        fault_s=25.0,
        evict_s=10.0,
        host_s=0.5,
        faults=160_000,
        page_faults=41_760_000,
        bytes_in=150 * GB,
        bytes_out=102 * GB,
    )
    return Run("noop", 0, [step] * steps, timeline(45.5))


def chained(steps: int = 6) -> Run:
    """A policy that learns in the first steps."""
    first = iteration(
        fault_s=20.0, faults=150_000, page_faults=39_150_000, bytes_in=150 * GB, bytes_out=102 * GB
    )
    later = iteration(
        fault_s=0.01,
        late_s=3.99,
        host_s=0.5,
        faults=21,
        page_faults=5481,
        bytes_in=142 * GB,
        bytes_out=99 * GB,
        bytes_dropped=31 * GB,
        prefetched=70_000,
        prefetch_used=69_300,
        late=312,
    )
    return Run("chained", 71_000_000, [first] + [later] * (steps - 1), timeline(14.5))


def oracle(steps: int = 6) -> Run:
    """The policy that knows everything."""
    step = iteration(
        late_s=1.6, bytes_in=140 * GB, bytes_out=97 * GB, prefetched=67_000, prefetch_used=67_000
    )
    return Run("oracle", 0, [step] * steps, timeline(11.6))


def result(*runs: Run, trace: str = "gpt2-xl-b3", **changes: object) -> TraceResult:
    """Build the result of one trace."""
    values: dict[str, object] = {
        "model": "GPT-2 XL",
        "batch": "3",
        "peak_bytes": 71_200_000_000,
        "kernels_per_step": 7445,
        "estimated": True,
        "bound": Bound(10.0, 11.4, 140 * GB, 97 * GB),
        **changes,
    }
    return TraceResult(trace=trace, runs=list(runs) or [noop(), chained(), oracle()], **values)


def study(*results: TraceResult, **changes: object) -> Study:
    """Build a study on the paper's machine."""
    machine = Machine.load("v100-pcie3-32g")
    values: dict[str, object] = {
        "iterations": 6,
        "depth": 32,
        "command": "deepum simulate gpt2-xl-b3 --html report.html",
        **changes,
    }
    return Study(
        machine=machine,
        memory_bytes=machine.memory_bytes,
        results=list(results) or [result()],
        **values,
    )


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Return the function that compares a text with a golden file."""
    return check_golden


@pytest.fixture
def make() -> SimpleNamespace:
    """Return the functions that make results by hand."""
    return SimpleNamespace(
        iteration=iteration,
        timeline=timeline,
        noop=noop,
        chained=chained,
        oracle=oracle,
        result=result,
        study=study,
    )

# SPDX-License-Identifier: Apache-2.0
"""Sentences that say what a result shows, every number taken from the result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deepum.report.numbers import count, percent, seconds, significant, size
from deepum.report.study import BASELINE, ORACLE, steady, steady_iterations

if TYPE_CHECKING:
    from deepum.backends.results import Run
    from deepum.report.study import Steady, Study, TraceResult

# Differences below this are called none: they are smaller than what the model can tell apart.
_SAME = 0.01


def findings(result: TraceResult, memory_bytes: int) -> list[str]:
    """Say what the runs over one trace show, in a few sentences."""
    sentences = [_need(result, memory_bytes)]
    base = result.run(BASELINE)
    if base is not None:
        sentences.append(_baseline(result, steady(base)))
    best = result.best()
    if best is not None:
        sentences.append(_best(result, best))
        if best.time_s > best.compute_s * (1 + _SAME):
            sentences.append(_rest(best))
        learned = _learning(result.run(best.policy))
        if learned:
            sentences.append(learned)
    sentences.append(_limits(result, best))
    return sentences


def _need(result: TraceResult, memory_bytes: int) -> str:
    ratio = result.peak_bytes / memory_bytes
    if ratio <= 1:
        return (
            f"{result.title} needs {size(result.peak_bytes)} at its peak and is given "
            f"{size(memory_bytes)}: it fits, so little has to move."
        )
    return (
        f"{result.title} needs {size(result.peak_bytes)} at its peak and is given "
        f"{size(memory_bytes)}: {significant(ratio)} times what there is."
    )


def _baseline(result: TraceResult, base: Steady) -> str:
    text = f"Plain demand paging ({BASELINE}) takes {seconds(base.time_s)} a step"
    ratio = base.time_s / result.bound.ideal_s
    if ratio > 1 + _SAME:
        text += (
            f", {significant(ratio)} times the {seconds(result.bound.ideal_s)} if everything fitted"
        )
    if base.faults:
        text += (
            f": the GPU stops for {count(base.faults)} block faults "
            f"({count(base.page_faults)} pages of 4 KiB) in every step"
        )
    return text + "."


def _best(result: TraceResult, best: Steady) -> str:
    text = f"The best of the policies that do not know the future, {best.policy}, "
    text += f"takes {seconds(best.time_s)} a step"
    base = result.run(BASELINE)
    if base is not None:
        before = steady(base)
        gain = before.time_s / best.time_s
        if gain > 1 + _SAME:
            text += f", {significant(gain)} times as fast"
        elif gain < 1 - _SAME:
            text += f", slower than {BASELINE} by {percent(1 / gain - 1)}"
        else:
            text += f", the same as {BASELINE}"
        if before.faults and best.faults < before.faults:
            text += (
                f", with {count(best.faults)} faults "
                f"({percent(1 - best.faults / before.faults)} fewer)"
            )
    text += "."
    if best.accuracy is not None:
        text += f" Of the blocks it fetched ahead, {percent(best.accuracy)} were used"
        if best.table_bytes:
            text += f"; its tables take {size(best.table_bytes)}"
        text += "."
    return text


def _rest(best: Steady) -> str:
    causes = [
        (best.stall_fault_s, "serving faults"),
        (best.stall_evict_s, "evictions that had to end first"),
        (best.stall_late_s, "blocks that were still on the bus when a kernel asked for them"),
        (best.host_s, "the host, which has no kernel ready"),
    ]
    wait = sum(cost for cost, _ in causes)
    if not wait:
        return f"Compute is {percent(best.compute_s / best.time_s)} of a step under {best.policy}."
    cost, cause = max(causes)
    return (
        f"Compute is {percent(best.compute_s / best.time_s)} of that step; "
        f"the largest part of the rest, {seconds(cost)}, goes to {cause}."
    )


def _learning(run: Run | None) -> str | None:
    if run is None or len(run.iterations) < 3:
        return None
    last = steady(run).time_s
    if len(steady_iterations(run.iterations)) < 2:
        return None
    settled = next(
        (i for i, it in enumerate(run.iterations, 1) if abs(it.time_s - last) <= 0.02 * last), None
    )
    first = run.iterations[0].time_s
    if settled is None or settled == 1 or first <= last:
        return None
    return (
        f"It learns from what it sees: step 1 takes {seconds(first)}, "
        f"and from step {settled} on the time is within 2 % of the steady one."
    )


def _limits(result: TraceResult, best: Steady | None) -> str:
    limit = result.bound.bound_s
    text = (
        f"Nothing can run a step in less than {seconds(limit)} under this memory: "
        f"at least {size(result.bound.bytes_in)} must come in and "
        f"{size(result.bound.bytes_out)} go out"
    )
    parts = []
    if best is not None:
        parts.append(
            f"{best.policy} reaches {percent(min(1.0, limit / best.time_s))} of that speed"
        )
    oracle = result.run(ORACLE)
    if oracle is not None:
        share = min(1.0, limit / steady(oracle).time_s)
        parts.append(f"{ORACLE}, which knows the whole program, {percent(share)}")
    if parts:
        text += "; " + ", ".join(parts)
    return text + "."


def geometric_mean_speedup(study: Study, policy: str) -> float | None:
    """Geometric mean of a policy's speedups over demand paging; None if a run is missing."""
    logs = []
    for result in study.results:
        run, base = result.run(policy), result.baseline_s
        if run is None or base is None:
            return None
        logs.append(math.log(base / steady(run).time_s))
    return math.exp(sum(logs) / len(logs)) if logs else None

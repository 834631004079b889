# SPDX-License-Identifier: Apache-2.0
"""The largest batch that a model can be trained with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deepum.machine import Machine
from deepum.reproduce import paper
from deepum.reproduce.plan import MACHINES, POINTS_16GB, POINTS_32GB, runs_of
from deepum.reproduce.runner import OUT_OF_MEMORY
from deepum.reproduce.statistics import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepum.reproduce.plan import Job, Point
    from deepum.reproduce.runner import Outcome


def largest_batches(outcomes: Mapping[Job, Outcome]) -> list[dict[str, Any]]:
    """Say for each model how far its batch can grow.

    With unified memory, until the live bytes at the peak no longer fit the host's memory, or one
    kernel touches more than the device holds. Both are lines fitted through the traced batches.
    With LMS: the largest traced batch that ran, 0 if none did.
    """
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in POINTS_32GB + POINTS_16GB:
        groups.setdefault((point.model, point.memory), []).append(point)
    rows = []
    for (model, memory), points in groups.items():
        device = Machine.load(MACHINES[memory]).memory_bytes
        facts = {
            point.batch: outcomes[job].figures
            for point in points
            if (job := runs_of(point)["facts"]) in outcomes
        }
        host_limit = _limit(facts, "peak_bytes", paper.HOST_BYTES[memory])
        device_limit = _limit(facts, "working_set_bytes", device)
        limits = [limit for limit in (host_limit, device_limit) if limit is not None]
        swapped = {
            point.batch: outcomes[job]
            for point in points
            if (job := runs_of(point)["lms"]) in outcomes
        }
        ran = [batch for batch, outcome in swapped.items() if outcome.figures]
        known = any(ran) or any(o.failure == OUT_OF_MEMORY for o in swapped.values())
        rows.append(
            {
                "model": model,
                "memory": memory,
                "paper": _paper(model, memory),
                "ours": {
                    "lms": max(ran, default=0) if known else None,
                    "lms_tried": sorted(swapped),
                    "chained": min(limits) if limits else None,
                    "host_limit": host_limit,
                    "device_limit": device_limit,
                },
            }
        )
    return rows


def _paper(model: str, memory: str) -> dict[str, int | None]:
    if memory == "32 GB":
        lms, chained = paper.LARGEST_32GB[model]
        return {"lms": lms, "chained": chained}
    return dict(zip(paper.SWAPPERS, paper.LARGEST_16GB[model], strict=True))


def _limit(facts: Mapping[int, Mapping[str, float]], name: str, limit: int) -> int | None:
    fitted = line([(batch, figures[name]) for batch, figures in facts.items()])
    if fitted is None or fitted[1] <= 0:
        return None
    return max(0, math.floor((limit - fitted[0]) / fitted[1]))

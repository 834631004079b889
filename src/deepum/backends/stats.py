# SPDX-License-Identifier: Apache-2.0
"""The counts that every backend has under the same names."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMON = {
    "backend": "its name",
    "policy": "name of the policy that advises",
    "set_aside": "why a policy lost its job, empty if none did",
    "time_s": "seconds since the session began (simulated ones in the simulator)",
    "steps": "steps that have ended",
    "step_s": "median of the last 64 steps, seconds; None before the first has ended",
    "last_step_s": "the latest step, seconds; None likewise",
    "launches": "kernels launched",
    "faults": "blocks touched that were neither resident nor asked for",
    "bytes_in": "moved to the device",
    "bytes_out": "moved to the host",
    "bytes_dropped": "given up without copying, since nothing in them was alive",
    "resident_bytes": "resident now",
    "limit_bytes": "the budget",
    "prefetched": "blocks moved ahead",
    "prefetch_used": "of these, touched afterwards",
    "late": "of these, touched before they had arrived",
    "prefetch_accuracy": "prefetch_used / prefetched",
    "prefetch_coverage": "prefetch_used / (prefetch_used + faults)",
    "prefetch_timeliness": "in time / prefetch_used",
    "fault_source": "where faults are known from",
    "resident_blocks": "blocks of 2 MiB resident",
    "budget_blocks": "blocks of 2 MiB in the budget",
    "table_bytes": "memory of the policy's tables",
}
"""Name of a count: what it is."""


def ratios(used: float, late: float, prefetched: float, faults: float) -> dict[str, float | None]:
    """Return accuracy, coverage and timeliness of prefetches; None where nothing is known."""
    return {
        "prefetch_accuracy": _ratio(used, prefetched),
        "prefetch_coverage": _ratio(used, used + faults),
        "prefetch_timeliness": _ratio(used - late, used),
    }


def step_times(count: int, seconds: Sequence[float]) -> dict[str, Any]:
    """Return the counts about steps: how many ended, the median and the latest of their times."""
    return {
        "steps": count,
        "step_s": statistics.median(seconds) if seconds else None,
        "last_step_s": seconds[-1] if seconds else None,
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

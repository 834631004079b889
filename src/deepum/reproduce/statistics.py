# SPDX-License-Identifier: Apache-2.0
"""The few statistics that the comparison needs. Values that are missing (None) are left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def ratio(over: float | None, under: float | None) -> float | None:
    """Return a quotient; None if a part is missing or nothing can be divided by."""
    return None if over is None or not under else over / under


def gmean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean, or None if there is nothing to average."""
    logs = [math.log(value) for value in values if value]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def spearman(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Return the rank correlation; equal values share the mean of their ranks.

    >>> spearman([(1, 10), (2, 20), (3, 15)])
    0.5
    """
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(both) < 2:
        return None
    first, second = (_ranks([pair[side] for pair in both]) for side in (0, 1))
    middle = (len(both) + 1) / 2
    spread = math.sqrt(
        sum((a - middle) ** 2 for a in first) * sum((b - middle) ** 2 for b in second)
    )
    if not spread:
        return None
    return sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Fit y = a + b x by least squares; None for fewer than two different x."""
    count = len(points)
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = (sum(point[side] for point in points) / count for side in (0, 1))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )
    return mean_y - slope * mean_x, slope

# SPDX-License-Identifier: Apache-2.0
"""Numbers for people: three significant digits, a unit, thousands separators.

Sizes are decimal (1 GB = 1e9 bytes), as bus rates are. Every function is pure.
"""

from __future__ import annotations

import math

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_RATES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, thousands separated, never as 1e5.

    >>> significant(0.012345), significant(1234567), significant(9.999)
    ('0.0123', '1,234,567', '10.0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    # Rounding first keeps 9.999 from becoming '10.00'.
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def seconds(value: float) -> str:
    """Return a duration with its unit.

    >>> seconds(0.000412), seconds(14.29), seconds(0)
    ('412 µs', '14.3 s', '0 s')
    """
    if value == 0:
        return "0 s"
    # Half a unit in the third digit: 0.9996 s reads 1.00 s, not 1,000 ms.
    for scale, unit in _TIMES:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value / 1e-9)} ns"


def size(value: float) -> str:
    """Return a number of bytes with its decimal unit.

    >>> size(33_564_917_760), size(71_000_000), size(12)
    ('33.6 GB', '71.0 MB', '12 B')
    """
    for scale, unit in _SIZES:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale)} {unit}"
    return f"{value:.0f} B"


def gigabytes(value: float) -> str:
    """Return bytes as a plain number of GB, for columns whose head carries the unit."""
    return "0" if value == 0 else significant(value / 1e9)


def megabytes(value: float) -> str:
    """Return bytes as a plain number of MB, for columns whose head carries the unit."""
    return "0" if value == 0 else significant(value / 1e6)


def rate(value: float, unit: str) -> str:
    """Return a large rate with a decimal prefix: ``rate(14e12, "FLOP/s")`` is 14.0 TFLOP/s."""
    for scale, prefix in _RATES:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def count(value: float) -> str:
    """Return a count rounded to a whole number, thousands separated."""
    return f"{value:,.0f}"


def times(value: float | None) -> str:
    """Return a factor, ``3.06x`` with the multiplication sign; a dash when there is none."""
    return "–" if value is None else f"{significant(value)}×"


def percent(share: float | None) -> str:
    """Return a share (0..1) as percent; a dash when there is none.

    What rounds to 0 % or 100 % without being it says so.

    >>> percent(0.98765), percent(0.99996), percent(0.00001), percent(1.0)
    ('98.8 %', '> 99.9 %', '< 0.1 %', '100 %')
    """
    if share is None:
        return "–"
    value = share * 100
    if value in {0, 100}:
        return f"{value:.0f} %"
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        return "> 99.9 %"
    return f"{value:.1f} %"

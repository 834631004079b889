# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: ``24GiB``, ``1.5 GB``, a plain number of bytes."""

from __future__ import annotations

import math
import re

from deepum.errors import DeepUMError

_FACTORS = {
    "": 1, "b": 1,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


def parse_bytes(size: int | float | str) -> int:
    """Return a size in bytes.

    Parameters
    ----------
    size
        A number of bytes, or a text such as ``"24GiB"``, ``"24 G"`` (binary) or ``"24GB"``
        (decimal), in any case.

    Raises
    ------
    DeepUMError
        The size is not one, or is not above zero.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", size.lower())
        if match is None or match[2] not in _FACTORS:
            raise DeepUMError(f"{size!r} is not a size; write it as 24GiB or 24GB")
        value = float(match[1]) * _FACTORS[match[2]]
    else:
        value = float(size)
    if not math.isfinite(value) or value < 1:
        raise DeepUMError(f"a size must be above zero, not {size!r}")
    return int(value)


def format_bytes(size: int) -> str:
    """Return a size as people read it, in binary units: ``1.5 GiB``."""
    value = float(size)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"

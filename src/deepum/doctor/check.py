# SPDX-License-Identifier: Apache-2.0
"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Check:
    """What was found.

    Attributes
    ----------
    state
        ``ok``; ``missing``, when something optional is not there; ``broken``, when the simulator
        cannot work.
    todo
        What to do about it; empty when there is nothing to do.
    """

    name: str
    state: str
    found: str
    todo: str = ""


def installed(package: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read(path: Path) -> str:
    """Return what a small file says, nothing if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""

# SPDX-License-Identifier: Apache-2.0
"""Checks of what the simulator needs."""

from __future__ import annotations

import platform
from importlib import import_module

from deepum.doctor.check import BROKEN, MISSING, OK, Check, installed


def python() -> list[Check]:
    """Check the interpreter."""
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    return [Check("Python", OK, found)]


def numpy() -> list[Check]:
    """Check numpy."""
    found = installed("numpy")
    if found is None:
        return [Check("numpy", BROKEN, "not installed", "pip install numpy")]
    return [Check("numpy", OK, found)]


def core() -> list[Check]:
    """Check that the compiled core loads."""
    name = "compiled core"
    try:
        import_module("deepum._core.simulator")
    except ImportError as error:
        todo = "install a wheel, or build it: pip install -e . (needs a C compiler)"
        return [Check(name, BROKEN, f"does not load: {error}", todo)]
    return [Check(name, OK, "loads")]


def traces() -> list[Check]:
    """Check the shipped traces."""
    from deepum.trace import Trace

    found = Trace.shipped()
    if not found:
        return [Check("shipped traces", MISSING, "none", "make your own: deepum record --help")]
    return [Check("shipped traces", OK, f"{len(found)}; deepum info lists them")]


def plot() -> list[Check]:
    """Check matplotlib."""
    found = installed("matplotlib")
    if found is None:
        todo = "for plots and HTML reports: pip install 'deepum[plot]'"
        return [Check("matplotlib", MISSING, "not installed", todo)]
    return [Check("matplotlib", OK, found)]

# SPDX-License-Identifier: Apache-2.0
"""Imports the scripts of bench/gpu, as they find one another."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "gpu"


def load(name: str) -> ModuleType:
    """Import one of the scripts, as the others of its folder find it."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def forget(before: set[str]) -> None:
    """Keep no script that was not imported before: their names are short."""
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]

# SPDX-License-Identifier: Apache-2.0
"""Where deepum keeps what it can make again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for something; it need not exist.

    ``$XDG_CACHE_HOME/deepum/name``, with the usual place of each platform if it is not set.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        root = Path(named)
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path.home() / ".cache"
    return root / "deepum" / name

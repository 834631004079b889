# SPDX-License-Identifier: Apache-2.0
"""What each result begins with: machine, command, date."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path


def head() -> dict:
    """Return the machine, the command without its folders, and the time now."""
    words = [Path(word).name if "/" in word else word for word in sys.argv]
    return {
        "machine": machine(),
        "command": " ".join(["python", f"bench/gpu/{words[0]}", *words[1:]]),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def machine() -> dict:
    """Return what the figures were measured on."""
    import torch

    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "gpu": text, "torch": torch.__version__, "cuda": torch.version.cuda,
        "python": sys.version.split()[0], "cores": os.cpu_count(),
    }  # fmt: skip

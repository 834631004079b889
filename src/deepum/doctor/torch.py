# SPDX-License-Identifier: Apache-2.0
"""Checks of PyTorch and of the compiler for what is built against it."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

from deepum.doctor.check import MISSING, OK, Check, installed, read
from deepum.record.shim import compiler as find_compiler

_CUDA = re.compile(r"^cuda\b.*=\s*'([\d.]+)'", re.MULTILINE)
_PROGRAM = (
    "#include <cstdint>\nint main() { auto f = []<class T>(T x) { return x; }; return f(0); }\n"
)


def cuda_of_torch() -> str | None:
    """Return the CUDA version that the installed PyTorch was built for; None for a CPU build.

    PyTorch is not imported: that takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = _CUDA.search(read(Path(spec.origin).with_name("version.py")))
    return found[1] if found else None


def build() -> list[Check]:
    """Check which PyTorch there is."""
    found = installed("torch") if find_spec("torch") else None
    if found is None:
        todo = "for deepum record: pip install 'deepum[torch]' (the CPU build will do)"
        return [Check("PyTorch", MISSING, "not installed", todo)]
    cuda = cuda_of_torch()
    if cuda is None:
        return [Check("PyTorch", OK, f"{found}, for the CPU: it records; GPU sessions need CUDA's")]
    return [Check("PyTorch", OK, f"{found}, built for CUDA {cuda}")]


def compiler() -> list[Check]:
    """Check that a C++20 compiler works: PyTorch's allocator is listened to by compiled code."""
    name = "C++ compiler"
    todo = "for GPU sessions and deepum record: install g++ 10 or newer, or set CXX"
    found = find_compiler()
    if found is None:
        return [Check(name, MISSING, "none", todo)]
    command = [found, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(
            command, input=_PROGRAM, capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Check(name, MISSING, f"{found} does not run: {error}", todo)]
    if done.returncode:
        return [Check(name, MISSING, f"{found} knows no C++20", todo)]
    return [Check(name, OK, f"{found}, knows C++20")]

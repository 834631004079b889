# SPDX-License-Identifier: Apache-2.0
"""Checks of the operating system and its kernel."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from deepum.doctor.check import MISSING, OK, Check, read

_PROC = Path("/proc")
_DEV = Path("/dev")
_LOCKDOWN = Path("/sys/kernel/security/lockdown")

# Number of the system call, by machine.
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_O_CLOEXEC = 0o2000000
_UFFD_USER_MODE_ONLY = 1


def system() -> list[Check]:
    """Check the operating system."""
    name = "platform"
    if sys.platform == "win32":
        return [
            Check(
                name,
                MISSING,
                "Windows",
                "its driver cannot oversubscribe GPU memory: simulation only; use Linux",
            )
        ]
    kernel = read(_PROC / "version")
    if "microsoft" in kernel.lower():
        return [
            Check(
                name,
                MISSING,
                "WSL",
                "its driver cannot oversubscribe GPU memory: simulation only; use native Linux",
            )
        ]
    return [Check(name, OK, f"{platform.system()} {platform.release()}")]


def userfaultfd() -> list[Check]:
    """Check that userfaultfds open."""
    name = "userfaultfd"
    setting = read(_PROC / "sys/vm/unprivileged_userfaultfd")
    number = _USERFAULTFD.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return [Check(name, MISSING, f"not on {platform.system()} {platform.machine()}")]
    error = try_userfaultfd(number)
    shown = f"vm.unprivileged_userfaultfd = {setting}" if setting else "no sysctl"
    if not error:
        return [Check(name, OK, f"opens; {shown}")]
    todo = "needs Linux 5.11 or newer, and a container that allows it"
    return [Check(name, MISSING, f"{os.strerror(error)}; {shown}", todo)]


def try_userfaultfd(number: int) -> int:
    """Open a userfaultfd for faults in user mode, which needs no privilege; return errno or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, _O_CLOEXEC | _UFFD_USER_MODE_ONLY)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def module() -> list[Check]:
    """Check deepum's kernel module."""
    path = _DEV / "deepum"
    if not path.exists():
        return [Check("kernel module", MISSING, f"no {path}", "optional; see kmod/")]
    if not os.access(path, os.R_OK | os.W_OK):
        return [Check("kernel module", MISSING, f"{path} may not be opened", "see its permissions")]
    return [Check("kernel module", OK, str(path))]


def lockdown() -> list[Check]:
    """Check what the kernel forbids even to root."""
    name = "kernel lockdown"
    modes = read(_LOCKDOWN)
    if not modes:
        return [Check(name, OK, "not in this kernel, or not shown")]
    mode = modes[modes.find("[") + 1 : modes.find("]")]
    if mode == "none":
        return [Check(name, OK, "none")]
    todo = (
        "a GPU session needs nothing that this forbids; deepum.ko loads only if it is signed with "
        "a key that the kernel trusts"
    )
    return [Check(name, MISSING, mode, todo)]

# SPDX-License-Identifier: Apache-2.0
"""The GPU that a session runs on, and whether it can."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from deepum.errors import BackendError

NEEDED = ("cuMemPrefetchAsync", "cuMemDiscardBatchAsync", "cuStreamWaitValue32")
"""Driver functions that managed memory cannot do without."""

DRIVER = 13000
"""CUDA version of the first driver that has all of them."""

_NOT_INITIALIZED = 3  # what cuInit itself says after a fork
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes
    ----------
    ordinal
        CUDA's number of it.
    free_bytes, total_bytes
        Memory, when it was asked.
    driver
        CUDA version of the driver, such as 13000.
    """

    ordinal: int
    name: str
    free_bytes: int
    total_bytes: int
    driver: int


def check_platform() -> None:
    """Refuse where no driver can oversubscribe.

    Raises
    ------
    BackendError
        Windows or WSL.
    """
    if sys.platform != "linux":
        raise BackendError(
            "managed memory needs Linux: this system's driver cannot oversubscribe GPU memory"
        )
    if "microsoft" in os.uname().release.lower():
        raise BackendError(
            "managed memory needs native Linux: the driver of WSL cannot oversubscribe GPU memory"
        )


def driver_module() -> Any:
    """Return `cuda.bindings.driver`, initialized.

    Raises
    ------
    BackendError
        cuda-python or the driver is missing, or there is no GPU.
    """
    check_platform()
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError:
        raise BackendError("no cuda-python: pip install 'deepum[cu13]'") from None
    try:
        (status,) = driver.cuInit(0)
    except Exception:
        raise BackendError("no CUDA driver: install NVIDIA's, 580 or newer") from None
    if int(status) == _NOT_INITIALIZED:
        raise BackendError(
            "CUDA was in use when this process was forked and does not work in it: start the "
            "process by the method 'spawn'"
        )
    if int(status):
        raise BackendError(f"the CUDA driver does not start: {getattr(status, 'name', status)}")
    return driver


def look(ordinal: int) -> Device:
    """Look at a GPU and refuse it if managed memory would not migrate on it.

    Raises
    ------
    BackendError
        It cannot be used; the text says what to do.
    """
    driver = driver_module()

    def call(name: str, *arguments: Any) -> Any:
        status, *values = getattr(driver, name)(*arguments)
        if int(status):
            raise BackendError(f"{name}: {getattr(status, 'name', status)}")
        return values[0] if len(values) == 1 else values

    version = int(call("cuDriverGetVersion"))
    if version < DRIVER or not all(hasattr(driver, name) for name in NEEDED):
        raise BackendError(
            f"the driver is of CUDA {version // 1000}.{version % 1000 // 10}; discarding managed "
            "memory needs driver 580 (CUDA 13) and cuda-python 13 or newer"
        )
    gpu = call("cuDeviceGet", ordinal)
    name = call("cuDeviceGetName", 128, gpu).split(b"\0")[0].decode()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    if not int(call("cuDeviceGetAttribute", attribute, gpu)):
        raise BackendError(
            f"GPU {ordinal} ({name}) has no concurrent managed access: its driver does not migrate "
            "pages on demand, so there is nothing for deepum to do"
        )
    free, total = call("cuMemGetInfo")
    return Device(ordinal, name, int(free), int(total), version)


def host_available() -> int:
    """Return the bytes of host memory that can still be used, what a container allows included."""
    available = 0
    for line in _MEMINFO.read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    try:
        limit = _CGROUP.read_text("ascii").strip()
        used = int((_CGROUP.parent / "memory.current").read_text("ascii"))
        if limit != "max":
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return available

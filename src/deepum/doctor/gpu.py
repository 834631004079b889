# SPDX-License-Identifier: Apache-2.0
"""Checks of the CUDA driver and its GPUs, and of host memory for what they evict."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.cuda.device import DRIVER, NEEDED, host_available
from deepum.doctor.check import MISSING, OK, Check, installed, read
from deepum.doctor.torch import cuda_of_torch
from deepum.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION = Path("/proc/driver/nvidia/version")
_NODES = (Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm"))
_LEAST_SHARE = 4  # host memory worth oversubscribing for: a quarter of the card's


def cuda() -> list[Check]:
    """Check cuda-python, the driver, its device files, each GPU, and host memory for them."""
    found = installed("cuda-python")
    try:
        driver: Any = import_module("cuda.bindings.driver")
    except ImportError as error:
        todo = "pip install 'deepum[cu13]' (or cu12)"
        return [Check("cuda-python", MISSING, found or str(error), todo)]
    return [Check("cuda-python", OK, found or "installed"), *checks(driver)]


def checks(driver: Any) -> list[Check]:
    """Check the driver through its bindings."""
    name = "CUDA driver"
    todo = "for a GPU: install NVIDIA's driver; nothing to do without one"
    if not has_library("libcuda.so.1"):
        return [Check(name, MISSING, "no libcuda.so.1", todo)]
    try:
        (status,) = driver.cuInit(0)
        if int(status):
            return [Check(name, MISSING, _status(driver, status), todo)]
        number = int(_call(driver, driver.cuDriverGetVersion))
        devices = int(_call(driver, driver.cuDeviceGetCount))
        found = [_version(driver, number)]
        found += [_gpu(driver, index) for index in range(devices)]
        if devices:
            device = _call(driver, driver.cuDeviceGet, 0)
            found += [*nodes(), host_memory(int(_call(driver, driver.cuDeviceTotalMem, device)))]
            found += _torch()
    except RuntimeError as error:
        return [Check(name, MISSING, " ".join(str(error).split()), todo)]
    return found


def _version(driver: Any, number: int) -> Check:
    name = "CUDA driver"
    found = f"CUDA {number // 1000}.{number % 1000 // 10}"
    if own := re.search(r"(\d+\.\d+[.\d]*)  ", read(_VERSION)):
        found = f"{own[1]}, {found}"
    if number < DRIVER:
        todo = "managed memory is discarded since CUDA 13: install driver 580 or newer"
        return Check(name, MISSING, found, todo)
    if lacking := [function for function in NEEDED if not hasattr(driver, function)]:
        todo = "pip install 'deepum[cu13]': the bindings are older than the driver"
        return Check(name, MISSING, f"{found}, but no {', '.join(lacking)}", todo)
    return Check(name, OK, found)


def _torch() -> list[Check]:
    if not find_spec("torch") or cuda_of_torch() is not None:
        return []
    todo = "pip install torch from PyTorch's CUDA 13 index: this one does not see the GPU"
    return [Check("PyTorch for the GPU", MISSING, "PyTorch is built for the CPU", todo)]


def has_library(name: str) -> bool:
    """Tell whether a shared library can be loaded."""
    # The bindings' own message for this case is three lines long.
    try:
        ctypes.CDLL(name)
    except OSError:
        return sys.platform == "win32"
    return True


def _status(driver: Any, status: Any) -> str:
    failed, text = driver.cuGetErrorString(status)
    described = "" if int(failed) or text is None else f": {text.decode()}"
    return f"{getattr(status, 'name', status)}{described}"


def _call(driver: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    status, *values = function(*arguments)
    if int(status):
        raise RuntimeError(f"{function.__name__}: {_status(driver, status)}")
    return values[0] if values else None


def _gpu(driver: Any, index: int) -> Check:
    device = _call(driver, driver.cuDeviceGet, index)
    title = _call(driver, driver.cuDeviceGetName, 128, device).split(b"\0")[0].decode()
    memory = int(_call(driver, driver.cuDeviceTotalMem, device))
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    managed = int(_call(driver, driver.cuDeviceGetAttribute, attribute, device))
    found = f"{title}, {memory / 2**30:.0f} GiB"
    if not managed:
        todo = "its driver does not migrate pages on demand (Windows, WSL, old GPUs): simulate"
        return Check(f"GPU {index}", MISSING, f"{found}, no concurrent managed access", todo)
    return Check(f"GPU {index}", OK, f"{found}, concurrent managed access")


def nodes() -> list[Check]:
    """Check that the driver's device files may be opened."""
    name = "GPU device files"
    shut = [path for path in _NODES if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    if shut:
        todo = "run as a user who may (group video or render), or chmod 666 them"
        return [Check(name, MISSING, f"{', '.join(map(str, shut))} may not be opened", todo)]
    if not all(path.exists() for path in _NODES):
        gone = ", ".join(str(path) for path in _NODES if not path.exists())
        todo = "in a container: pass the GPU through with its uvm device; else nvidia-modprobe -u"
        return [Check(name, MISSING, f"no {gone}", todo)]
    return [Check(name, OK, "may be opened")]


def host_memory(card_bytes: int) -> Check:
    """Check that there is host memory for what a GPU evicts."""
    free = host_available()
    found = f"{format_bytes(free)} to use: programs of up to {format_bytes(free + card_bytes)}"
    if free * _LEAST_SHARE < card_bytes:
        todo = "what leaves the GPU lies there: free some, or raise the container's limit"
        return Check("host memory", MISSING, found, todo)
    return Check("host memory", OK, found)

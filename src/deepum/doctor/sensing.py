# SPDX-License-Identifier: Apache-2.0
"""Checks of how launches and faults are seen: CUPTI, and the UVM driver's event queue."""

from __future__ import annotations

import contextlib
import ctypes
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.cuda import cupti
from deepum.cuda import faults as queue
from deepum.cuda.counters import CounterSource
from deepum.doctor.check import MISSING, OK, Check, read
from deepum.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMETERS = Path("/proc/driver/nvidia/params")
_NOT_NEEDED = "for a GPU: nothing to do without one"


@contextlib.contextmanager
def _context() -> Iterator[bool]:
    """Hold the first GPU's context; yields whether there is one."""
    try:
        driver: Any = import_module("cuda.bindings.driver")
        there = not int(driver.cuInit(0)[0]) and not int(driver.cuDevicePrimaryCtxRetain(0)[0])
    except (ImportError, RuntimeError):
        there = False
    yield there
    if there:
        driver.cuDevicePrimaryCtxRelease(0)


def launches() -> list[Check]:
    """Check that CUPTI is there, and that nobody holds its only place."""
    name = "CUPTI"
    try:
        library = cupti.load()
    except BackendError as error:
        return [Check(name, MISSING, "not found", str(error).partition(": ")[2])]
    version = ctypes.c_uint32()
    library.cuptiGetVersion(ctypes.byref(version))
    found = f"API version {version.value}"
    with _context() as there:
        return [
            _subscriber(name, found) if there else Check(name, OK, f"{found}; no GPU to try on")
        ]


def _subscriber(name: str, found: str) -> Check:
    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    try:
        address = ctypes.cast(callback, ctypes.c_void_p).value or 0
        cupti.Subscription(address, ()).close()
    except cupti.CuptiTakenError:
        todo = "end the other profiler (torch.profiler, Nsight, compute-sanitizer) first"
        return Check(name, MISSING, f"{found}; another profiler holds its only place", todo)
    except BackendError as error:
        return Check(name, MISSING, f"{found}; {error}", _profiling())
    return Check(name, OK, f"{found}; takes a subscriber")


def _profiling() -> str:
    if "RmProfilingAdminOnly: 1" in read(_PARAMETERS):
        return "the driver lets root alone profile: NVreg_RestrictProfilingToAdminUsers=0"
    return "use the CUPTI of the driver's CUDA version: pip install nvidia-cuda-cupti"


def faults() -> list[Check]:
    """Check the UVM driver's event queue, and what there is in its place."""
    name = "GPU faults"
    with _context() as there:
        return [_source(name) if there else Check(name, MISSING, "no GPU to try on", _NOT_NEEDED)]


def _source(name: str) -> Check:
    from deepum._core.feed import Feed

    try:
        queue.FaultSource(Feed()).close()
        return Check(name, OK, f"{queue.DEVICE}: as they happen")
    except BackendError as error:
        shut = str(error)
    todo = f"let this user open {queue.DEVICE} (nvidia-modprobe -u -c 0; in a container, pass it)"
    try:
        CounterSource(Feed(), 0).close()
    except BackendError as error:
        return Check(name, MISSING, f"not seen: {shut}; {error}", todo)
    return Check(name, MISSING, f"{shut}; CUPTI counts them instead, 50 ms late", todo)

# SPDX-License-Identifier: Apache-2.0
"""The event queue of NVIDIA's UVM driver: GPU faults as they happen, without privileges.

The numbers and layouts are those of the driver's public source, unchanged from 580 to 595.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from deepum.errors import BackendError

if TYPE_CHECKING:
    from deepum._core.feed import Feed
    from deepum._core.uvm_tools import FaultQueue
    from deepum.cuda.counters import CounterSource

DEVICE = Path("/dev/nvidia-uvm-tools")
ENTRIES = 1 << 16

_INIT_EVENT_TRACKER_V2 = 76
_SET_NOTIFICATION_THRESHOLD = 57
_ENABLE_EVENTS = 58
_RECORD_BYTES = 72
_CONTROL_BYTES = 4096
_GPU_FAULT = 1 << 3


def open_source(feed: Feed, device: int) -> FaultSource | CounterSource:
    """Open the best source of GPU faults that there is: the driver's queue, else CUPTI's counters.

    Raises
    ------
    BackendError
        There is none; says why neither can be.
    """
    from deepum.cuda.counters import CounterSource

    try:
        return FaultSource(feed)
    except BackendError as error:
        queue = error
    try:
        return CounterSource(feed, device)
    except BackendError as error:
        raise BackendError(f"faults are not seen: {queue}; {error}") from None


class FaultSource:
    """An open queue and its reader.

    Raises
    ------
    BackendError
        The device cannot be opened, or the driver is of another make.
    """

    name = "uvm-tools"

    def __init__(self, feed: Feed) -> None:
        from deepum._core.uvm_tools import FaultQueue

        try:
            self._descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise BackendError(f"{DEVICE} cannot be opened ({error.strerror})") from None
        try:
            # Pinned by the driver for as long as the queue is open.
            self._records = mmap.mmap(-1, ENTRIES * _RECORD_BYTES)
            self._control = mmap.mmap(-1, _CONTROL_BYTES)
            parameters = bytearray(
                struct.pack(
                    "<QQQ16sIIIxxxx",
                    _address(self._records),
                    ENTRIES,
                    _address(self._control),
                    bytes(16),
                    1,
                    _uvm_descriptor(),
                    0,
                )
            )
            self._ask(_INIT_EVENT_TRACKER_V2, parameters, 48)
            self._ask(_SET_NOTIFICATION_THRESHOLD, bytearray(struct.pack("<II", 1, 0)), 4)
            self._ask(_ENABLE_EVENTS, bytearray(struct.pack("<QIxxxx", _GPU_FAULT, 0)), 8)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.reader: FaultQueue = FaultQueue(
            feed, self._descriptor, _address(self._records), _address(self._control), ENTRIES
        )

    def _ask(self, request: int, parameters: bytearray, status_at: int) -> None:
        try:
            fcntl.ioctl(self._descriptor, request, parameters)
        except OSError as error:
            raise BackendError(
                f"{DEVICE} does not take request {request} ({error.strerror})"
            ) from None
        (status,) = struct.unpack_from("<I", parameters, status_at)
        if status:
            raise BackendError(f"{DEVICE} refuses request {request}: status {status:#x}")

    def flush(self) -> None:
        """Do nothing: the reader has all there is within microseconds."""

    def close(self) -> None:
        """Close the queue; the reader must have stopped."""
        os.close(self._descriptor)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _uvm_descriptor() -> int:
    # CUDA's own: the one that holds this process's managed address space.
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) == "/dev/nvidia-uvm":
                return int(entry.name)
        except OSError:
            continue
    raise BackendError("CUDA has not opened /dev/nvidia-uvm in this process")

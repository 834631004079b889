# SPDX-License-Identifier: Apache-2.0
"""GPU faults from CUPTI's unified-memory counters: what is left where the UVM queue is closed.

Records come in buffers and many only at a flush, so faults are known some 50 ms late: the counts
are right, and a policy that learns from faults learns later. Another user of CUPTI's activity
interface in the process (torch.profiler) takes the records away while it is at work.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

from deepum.cuda import cupti
from deepum.errors import BackendError

if TYPE_CHECKING:
    from deepum._core.feed import Feed

FLUSH_S = 0.05
"""Seconds between two flushes."""

_KIND = 25  # CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER
_GPU_PAGE_FAULT = 4
_SINGLE_DEVICE = 1


class _Config(ctypes.Structure):
    """CUpti_ActivityUnifiedMemoryCounterConfig."""

    _fields_ = (
        ("scope", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("enable", ctypes.c_uint32),
    )


class CounterSource:
    """Counters of one GPU, switched on until closed.

    Parameters
    ----------
    feed
        Who is told of faults.
    device
        CUDA ordinal.

    Raises
    ------
    BackendError
        CUPTI is missing, or does not count here.
    """

    name = "cupti"

    def __init__(self, feed: Feed, device: int) -> None:
        from deepum._core import cupti_counters

        self._library = cupti.load()
        self._core = cupti_counters
        self.reader = _Flusher(self)
        request, complete = cupti_counters.callbacks()
        following = ctypes.cast(self._library.cuptiActivityGetNextRecord, ctypes.c_void_p).value
        cupti_counters.tell(feed, following or 0)
        config = _Config(_SINGLE_DEVICE, _GPU_PAGE_FAULT, device, 1)
        try:
            self._ask("RegisterCallbacks", ctypes.c_void_p(request), ctypes.c_void_p(complete))
            self._ask("ConfigureUnifiedMemoryCounter", ctypes.byref(config), 1)
            self._ask("Enable", _KIND)
        except BackendError:
            cupti_counters.tell_nobody()
            raise

    def _ask(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, f"cuptiActivity{function}")(*arguments)
        if status:
            raise BackendError(
                f"CUPTI counts no faults here: {function}: {cupti.text(self._library, status)}"
            )

    def flush(self) -> None:
        """Have what was counted so far handed over."""
        self._library.cuptiActivityFlushAll(0)

    def close(self) -> None:
        """Switch the counters off; the reader must have stopped."""
        self.flush()
        self._library.cuptiActivityDisable(_KIND)
        self._core.tell_nobody()


class _Flusher:
    """Flushes now and then."""

    def __init__(self, source: CounterSource) -> None:
        self._source = source
        self._ending = threading.Event()

    def run(self) -> None:
        """Flush until `stop`; call it in a thread of its own."""
        while not self._ending.wait(FLUSH_S):
            self._source.flush()

    def stop(self) -> None:
        """Ask `run` to return."""
        self._ending.set()

# SPDX-License-Identifier: Apache-2.0
"""CUDA managed memory: PyTorch's allocations migrate, and the engine says when."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from deepum.backends import gpu
from deepum.backends.gpu import RESERVE, TRACE_STEPS, GpuBackend
from deepum.cuda.device import host_available
from deepum.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from deepum.cuda.device import Device
    from deepum.errors import BackendError

__all__ = ["OPTIONS", "RESERVE", "TRACE_STEPS", "ManagedBackend", "unavailable"]

OPTIONS: dict[str, Any] = {
    **gpu.OPTIONS,
    "gates": None,
    "ranges": None,
    "strict": True,
    "duplex": False,
    "in_threads": 2,
    "out_threads": 4,
}
"""Options of sessions in managed memory: `deepum.backends.gpu.OPTIONS`, and these.

Whether launches wait for their memory, and whether they name it (None: as the policy wants);
whether launches wait while faults have brought in more than the budget; whether both directions
move at once; moving threads each way.
"""


def unavailable() -> str:
    """Return why this does not work here, in one line; empty if it seems to."""
    return gpu.unavailable("cuda_mover")


class ManagedBackend(GpuBackend):
    """One GPU whose PyTorch memory is managed, from `start` to `stop`; see `GpuBackend`."""

    name = "managed"
    options = OPTIONS

    def _take_over(self, device: Device, budget: int) -> None:
        from deepum._core import cuda_memory

        if self.feed.counts["managed_bytes"]:
            cuda_memory.park(self.feed)

    @property
    def _names(self) -> bool:
        wants = self._policy.wants_ranges or self._policy.native == "chained"
        return wants if self._options["ranges"] is None else bool(self._options["ranges"])

    @property
    def _gated(self) -> bool:
        return self._names if self._options["gates"] is None else bool(self._options["gates"])

    def _engine_options(self) -> dict[str, Any]:
        return {"gated": self._gated}

    def _make_movers(self, ordinal: int) -> None:
        from deepum._core import cuda_memory
        from deepum._core.conductor import Conductor
        from deepum._core.cuda_mover import CudaMover

        self.mover = CudaMover(
            self.feed,
            ordinal,
            executes_faults=self._gated,
            duplex=bool(self._options["duplex"]),
            delay_us=int(self._options["delay_us"]),
        )
        self.mover.use_context(cuda_memory.current_context())
        self.conductor = Conductor(
            self.engine,
            self.feed,
            self.mover,
            gated=self._gated,
            names=self._names,
            strict=bool(self._options["strict"]),
        )

    def _callbacks(self) -> tuple[int, int]:
        from deepum._core import cuda_memory

        allocate, release, _, _ = cuda_memory.callbacks()
        return allocate, release

    def _untold(self, error: BackendError) -> None:
        self.tensors_seen = False
        warnings.warn(f"deepum: freed tensors are not seen: {error}", stacklevel=6)

    def _unseen(self, error: BackendError) -> None:
        # Nothing is known of what runs, so nothing may be dropped.
        self.launches_seen = False
        self.conductor.locked(self.engine.keep_contents)
        warnings.warn(f"deepum: {error}", stacklevel=6)

    def _open_faults(self, ordinal: int) -> None:
        from deepum.cuda.faults import open_source
        from deepum.errors import BackendError

        try:
            self._faults = open_source(self.feed, ordinal)
            self._threads.start("faults", self._faults.reader.run)
        except BackendError as error:
            warnings.warn(f"deepum: {error}", stacklevel=6)

    def _start_movers(self) -> None:
        for _ in range(int(self._options["in_threads"])):
            self._threads.start("in", lambda: self.mover.run(False))
        for _ in range(int(self._options["out_threads"])):
            self._threads.start("out", lambda: self.mover.run(True))
        self._threads.start("drop", self.mover.run_drops)

    # -- limits ------------------------------------------------------------------------------------

    def _allow(self, device: Device, budget: int) -> None:
        from deepum._core import cuda_memory

        limit = self._options["host_limit"]
        host = host_available() if limit is None else parse_bytes(limit)
        allowed = budget + host
        if not self._oversubscribe:
            allowed = min(allowed, device.free_bytes - RESERVE // 2)
        self.host_bytes = host
        cuda_memory.allow(allowed, budget if self._gated else 0)

    @property
    def refused(self) -> str:
        """Why the last allocation was refused, empty if none was."""
        from deepum._core import cuda_memory

        size = cuda_memory.refused()
        if not size:
            return ""
        managed = self.feed.counts["managed_bytes"]
        assert self.device is not None
        text = f"{format_bytes(size)} more than the {format_bytes(managed)} of managed memory"
        if not self._oversubscribe and managed + size > self.device.free_bytes - RESERVE // 2:
            return (
                f"{text} would not fit the {format_bytes(self.device.free_bytes)} that were free "
                "on the card: pass oversubscribe=True to allow it"
            )
        return (
            f"{text} would not fit the budget and {format_bytes(self.host_bytes)} of host memory: "
            "raise host_limit if there is more"
        )

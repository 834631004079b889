# SPDX-License-Identifier: Apache-2.0
"""Memory under stable addresses whose frames change: PyTorch at the speed of the bus, no faults."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from deepum.backends import gpu
from deepum.backends.gpu import GpuBackend
from deepum.cuda.device import host_available
from deepum.errors import BackendError, DeepUMError
from deepum.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from deepum._core.cuda_digest import Digester
    from deepum._core.cuda_vmm import VmmMemory
    from deepum.cuda.device import Device

OPTIONS: dict[str, Any] = {
    **gpu.OPTIONS,
    "chunk_mib": 16,
    "ahead": 256,
    "compare": True,
    "keep_copies": False,
}
"""Options of sessions of this kind: `deepum.backends.gpu.OPTIONS`, and these.

The most MiB that move as one, a power of two from 2 to 64; launches that the program may submit
before their memory is there, at most 300: the driver takes no more behind a closed gate; whether
what the host has of a chunk is compared when it leaves, so that it need not be copied if it has not
changed; whether the host has room to keep a copy of all that is on the device, for programs that
read more than they write.
"""

HOST_SHARE = 0.9
"""How much of the host's available memory may be pinned, unless `host_limit` says."""
SLAB_THREADS = 4
"""Threads that make host memory ahead of the need."""
FINISH_S = 60.0
"""How long a session that ends waits for what runs."""
_BLOCK = 2 << 20
_SLAB = 128 * _BLOCK  # what host memory is pinned in


def unavailable() -> str:
    """Return why this does not work here, in one line; empty if it seems to."""
    return gpu.unavailable("cuda_vmm_mover")


class _Process:
    """The memory is the process's: it outlives sessions."""

    memory: VmmMemory | None = None


class VmmBackend(GpuBackend):
    """One GPU whose memory is remapped, from `start` to `stop`; see `GpuBackend`."""

    name = "vmm"
    digester: Digester | None = None
    options = OPTIONS

    def _take_over(self, device: Device, budget: int) -> None:
        from deepum._core import cuda_memory, cuda_vmm

        memory = _Process.memory
        if memory is None:
            if self.feed.counts["managed_bytes"]:
                raise DeepUMError(
                    "tensors of a session in managed memory still live: delete them, and call "
                    "torch.cuda.empty_cache(), before a session with backend 'vmm'"
                )
            memory = _Process.memory = cuda_vmm.VmmMemory(self.feed, device.ordinal)
            cuda_vmm.use_memory(memory)
        self.memory = memory
        mib = self._options["chunk_mib"]
        if mib not in (2, 4, 8, 16, 32, 64):
            raise DeepUMError(f"chunk_mib must be a power of two from 2 to 64, not {mib!r}")
        if not 1 <= self._options["ahead"] <= 300:
            raise DeepUMError("ahead must be from 1 to 300 launches")
        limit = self._options["host_limit"]
        self.host_bytes = (
            int(host_available() * HOST_SHARE) if limit is None else parse_bytes(limit)
        )
        self.host_bytes -= self.host_bytes % _SLAB
        # What is on its way has a place on both sides, and free places may be in pieces.
        margin = max(budget // 8, 4 * mib * 2**20)
        allowed = max(budget, max(0, budget - margin) + self.host_bytes * 15 // 16)
        context = cuda_memory.current_context()
        if not context:
            raise BackendError("the driver tells of no CUDA context in this thread")
        more = budget if self._options["keep_copies"] else 0
        memory.begin(context, budget, self.host_bytes, allowed, mib * 2**20 // _BLOCK, more)

    def _engine_options(self) -> dict[str, Any]:
        return {"gated": True, "drop_clean": True}

    def _make_movers(self, ordinal: int) -> None:
        from deepum._core.cuda_vmm_mover import VmmMover
        from deepum._core.vmm_conductor import VmmConductor

        self.mover = VmmMover(self.memory, delay_us=int(self._options["delay_us"]))
        self.conductor = VmmConductor(self.engine, self.feed, self.mover, gated=True, names=True)
        if self._options["compare"]:
            self._compare()

    def _compare(self) -> None:
        from deepum._core.cuda_digest import Digester
        from deepum._core.cuda_vmm_mover import DIGESTS
        from deepum.cuda import digest

        self.digester = Digester(
            digest.PTX.encode(), digest.NAME.encode(), digest.BLOCKS, digest.THREADS, DIGESTS
        )
        if self.digester.begin(self.memory.side_stream):
            self.mover.compare(self.digester)

    def _attach(self) -> None:
        self.launches.ahead = int(self._options["ahead"])
        self.launches.use_side_stream(self.memory.side_stream)
        self.feed.attach(int(self._options["chunk_mib"]) * 2**20 // _BLOCK)

    def _allow(self, device: Device, budget: int) -> None:
        pass

    def _calls(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        from deepum._core import cuda_launches

        return cuda_launches.CALLS, cuda_launches.FURTHER_CALLS

    def _callbacks(self) -> tuple[int, int]:
        from deepum._core import cuda_vmm

        return cuda_vmm.callbacks()

    def _conduct(self) -> None:
        self.conductor.run()
        if self.conductor.failure:
            print(f"deepum: {self.failure}", file=sys.stderr, flush=True)

    def _start_movers(self) -> None:
        self._threads.start("in", lambda: self.mover.run(False))
        self._threads.start("out", lambda: self.mover.run(True))
        self._threads.start("drop", self.mover.run_drops)
        self.memory.slabs.begin()
        for number in range(SLAB_THREADS):
            self._threads.start(f"host-{number}", self.memory.slabs.run)

    def _hand_back(self, lost: bool) -> None:
        ended = not lost and not self.conductor.failure and self.conductor.finish(FINISH_S)
        self.conductor.stop()
        self.mover.stop()
        self.memory.slabs.end()
        self._threads.join()
        left = self.memory.bring_back() if ended else 0
        self.conductor.release()
        if left:
            print(
                f"deepum: {format_bytes(left)} of tensors that outlive the session fit neither the "
                "card nor mapped host memory: using them is an error",
                file=sys.stderr,
                flush=True,
            )
        if not lost:
            self.mover.settle()
            if self.digester is not None:
                self.digester.end()
            self.memory.end()

    @property
    def failure(self) -> str:
        """Why memory is not looked after any more; empty while it is."""
        why = self.conductor.failure.removeprefix("RuntimeError: ")
        trouble = self.memory.trouble
        return f"{why} ({trouble.rpartition('(')[2]}" if why and trouble else why

    @property
    def refused(self) -> str:
        """Why the last allocation was refused, or memory was lost; empty if neither was."""
        if self.failure:
            return self.failure
        size = self.memory.refused
        if not size:
            return ""
        return (
            f"{format_bytes(size)} more than the {format_bytes(self.feed.counts['managed_bytes'])} "
            f"that there are would not fit the budget and {format_bytes(self.host_bytes)} of host "
            "memory: raise host_limit if there is more"
        )

    @property
    def stats(self) -> dict[str, Any]:
        """Counts since the start, a dict; see `deepum.Session.stats`."""
        counts = super().stats
        counts.update(
            pinned_bytes=self.memory.pinned_bytes,
            host_bytes=self.memory.host_bytes,
            frame_bytes=self.memory.frame_bytes,
            frames_made=self.memory.frames_made,
            lent_blocks=self.conductor.lent_blocks,
            failure=self.failure,
        )
        return counts

# SPDX-License-Identifier: Apache-2.0
"""The mechanism in the kernel: deepum.ko serves the faults, a thread here reads its ring."""

from __future__ import annotations

import errno
import sys
import threading
from typing import TYPE_CHECKING, Any

from deepum.backends.mechanism import reserve
from deepum.machine import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepum._core.live import LiveEngine

NAME = "kmod"


def unavailable() -> str:
    """Return why the kernel module cannot be used here, in one line; empty if it can."""
    if sys.platform != "linux":
        return f"the kernel module is Linux's, and this is {sys.platform}"
    from deepum._core.kmod import probe

    error = -probe()
    if error <= 0:
        return ""
    return {
        errno.ENOENT: "there is no /dev/deepum: load the module (deepum kmod load)",
        errno.EACCES: "/dev/deepum may not be opened: be in its group (kmod/99-deepum.rules)",
        errno.EPERM: "/dev/deepum may not be opened: be in its group (kmod/99-deepum.rules)",
        errno.ENODEV: "/dev/deepum is there, the module is not: load it (deepum kmod load)",
        errno.ENXIO: "/dev/deepum is there, the module is not: load it (deepum kmod load)",
        errno.ENOTTY: "the module loaded is another version: load this one (deepum kmod load)",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    }.get(error, f"/dev/deepum cannot be opened: {errno.errorcode.get(error, error)}")


class KmodMechanism:
    """`deepum._core.kmod.Kmod` and its thread; see `deepum.backends.mechanism.Mechanism`.

    Parameters
    ----------
    live
        The engine; its budget is the number of frames.
    blocks
        Addresses to reserve, in blocks.
    patience_us
        How long a fault that finds no free frame waits for the engine, microseconds.

    Raises
    ------
    BackendError
        There is no module here, or not the memory for the frames.
    """

    def __init__(self, live: LiveEngine, blocks: int, *, patience_us: int = 50_000) -> None:
        from deepum._core.kmod import Kmod

        self._live = live
        self.mapping = reserve(
            lambda count: Kmod(live, count, patience_us=patience_us),
            blocks,
            2 * live.engine.budget,
            unavailable,
        )
        self.address = self.mapping.address
        self.feed = self.mapping.feed
        self.poke = self.mapping.poke
        self.forget = self.mapping.forget
        self.settle = self.mapping.settle
        self.present = self.mapping.present
        self.failure: BaseException | None = None
        self._last: dict[str, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="deepum ring", daemon=True)

    @property
    def committed(self) -> int:
        """Blocks that may be used, from the first one on."""
        return self.mapping.committed

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far."""
        return self._counts() if self._last is None else self._last

    def _counts(self) -> dict[str, int]:
        s = self.mapping.module_stats
        return {
            "bytes_in": s["copied_in"] * BLOCK_BYTES,
            "bytes_out": s["copied_out"] * BLOCK_BYTES,
            "bytes_dropped": (s["left_clean"] + s["dropped_inactive"] + s["discarded"])
            * BLOCK_BYTES,
            "bytes_zeroed": s["zeroed"] * BLOCK_BYTES,
            "waits": sum(count for cause, count in s["served"].items() if cause != "map"),
            "wait_ns": sum(ns for cause, ns in s["served_ns"].items() if cause != "map"),
            "alone": s["evicted_demand"],
        }

    def commit(self, blocks: int) -> None:
        """Make the first `blocks` blocks usable, with a place on the host for each of them."""
        self.mapping.commit(blocks)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _watch(self) -> None:
        while True:
            try:
                return self.mapping.watch()
            except BaseException as error:
                self.failure = error
                self._live.give_up()

    def close(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Stop the thread; what lies in the (address, bytes) ranges becomes ordinary memory.

        Nobody may write to the ranges meanwhile.
        """
        self.mapping.stop_watching()
        self._thread.join()
        self._last = self._counts()
        self.mapping.release(ranges)

    def leave(self) -> None:
        """In a child process: let go of what belongs to the parent."""
        self.mapping.leave()


def open_mechanism(live: LiveEngine, blocks: int, options: dict[str, Any]) -> KmodMechanism:
    """Return the mechanism that `HostBackend` asks for."""
    options.pop("moves", None)  # userfaultfd's
    return KmodMechanism(live, blocks, **options)

# SPDX-License-Identifier: Apache-2.0
"""The mechanism without privilege: a userfaultfd mapping and two threads that serve it."""

from __future__ import annotations

import errno
import sys
import threading
from typing import TYPE_CHECKING, Any

from deepum.backends.mechanism import reserve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepum._core.live import LiveEngine

NAME = "uffd"


def unavailable() -> str:
    """Return why there is no userfaultfd here, in one line; empty if there is."""
    if sys.platform != "linux":
        return f"userfaultfd is Linux's, and this is {sys.platform}"
    from deepum._core.uffd import probe

    error = -probe()
    if error <= 0:
        return ""
    return {
        errno.ENOSYS: "this kernel was built without userfaultfd",
        errno.EPERM: "userfaultfd is not permitted here: a container's seccomp filter forbids it, "
        "or the kernel is older than Linux 5.11 and vm.unprivileged_userfaultfd is 0",
        errno.EINVAL: "this kernel's userfaultfd is too old: Linux 5.11 or newer is needed",
        errno.EOPNOTSUPP: "this kernel's userfaultfd cannot protect memory against writing",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    }.get(error, f"userfaultfd cannot be opened: {errno.errorcode.get(error, error)}")


class UffdMechanism:
    """`deepum._core.uffd.Uffd` and its two threads; see `deepum.backends.mechanism.Mechanism`.

    Parameters
    ----------
    live
        The engine; its budget is the number of frames.
    blocks
        Addresses to reserve, in blocks.
    moves
        Whether pages move where the kernel can (Linux 6.8), instead of being copied once more.

    Raises
    ------
    BackendError
        There is no userfaultfd here, or not the memory for the frames.
    """

    def __init__(self, live: LiveEngine, blocks: int, *, moves: bool = True) -> None:
        from deepum._core.uffd import Uffd

        self._live = live
        self.mapping = reserve(
            lambda count: Uffd(live, count, moves=moves),
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
        self._threads = [
            threading.Thread(target=target, name=f"deepum {name}", daemon=True)
            for name, target in (
                ("migration", self._move),
                ("faults", self.mapping.watch_faults),
            )
        ]

    @property
    def committed(self) -> int:
        """Blocks that may be used, from the first one on."""
        return self.mapping.committed

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far."""
        return self.mapping.counts

    def commit(self, blocks: int) -> None:
        """Make the first `blocks` blocks usable, with room for each of them in the store."""
        self.mapping.commit(blocks)

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def _move(self) -> None:
        while True:
            try:
                return self.mapping.move_blocks()
            except BaseException as error:
                self.failure = error
                self._live.give_up()

    def close(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Stop both threads; what lies in the (address, bytes) ranges becomes ordinary memory."""
        moving, watching = self._threads
        self.mapping.stop_moving()
        moving.join()
        self.mapping.release(ranges)
        self.mapping.stop_watching()
        watching.join()
        self.mapping.give_back()

    def leave(self) -> None:
        """In a child process: let go of what belongs to the parent."""
        self.mapping.leave()


def open_mechanism(live: LiveEngine, blocks: int, options: dict[str, Any]) -> UffdMechanism:
    """Return the mechanism that `HostBackend` asks for."""
    options.pop("patience_us", None)  # the kernel module's
    return UffdMechanism(live, blocks, **options)

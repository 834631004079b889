# SPDX-License-Identifier: Apache-2.0
"""What a host backend is made of: the engine decides, a mechanism moves memory.

On a host backend the processor stands in for the GPU, and touching a block that is not on the
"device" is a real page fault. `deepum.backends.host.HostBackend` does what all of them share:
allocation, launch notices, policies, statistics. A mechanism does the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from deepum.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from deepum._core.live import LiveEngine


_Mapping = TypeVar("_Mapping")


def reserve(
    make: Callable[[int], _Mapping], blocks: int, least: int, unavailable: Callable[[], str]
) -> _Mapping:
    """Return a mapping of as many blocks as there are addresses for.

    Parameters
    ----------
    make
        Makes a mapping of so many blocks.
    blocks, least
        How many to begin with, and fewer than how many are of no use.
    unavailable
        Says why this machine has no such mapping, empty if that is not the reason.

    Raises
    ------
    BackendError
        There are no addresses or no frames.
    """
    while True:
        try:
            return make(blocks)
        except MemoryError as error:
            # A limit on addresses (ulimit -v): fewer will often do.
            blocks //= 2
            if blocks < least:
                raise BackendError(
                    "no addresses left to reserve: raise the limit (ulimit -v)"
                ) from error
        except OSError as error:
            raise BackendError(
                unavailable() or f"no memory for the frames: {error.strerror}"
            ) from error


class Mechanism(Protocol):
    """A mapping whose blocks have a frame of a budget, or none and fault when touched.

    The rules:

    - A touched block is served at once, with the engine's advice where that can be had in time
      and without it where not. The engine is told of both (it follows).
    - Each move is reported to the engine once: a block that has come as ``arrived``, one that has
      gone, or will not come after all, as ``departed``.
    - A command that does not fit what the block has done meanwhile is dropped.
    - Nothing that serves a fault takes the GIL or waits for a policy.
    """

    @property
    def address(self) -> int:
        """Where the mapping begins, a multiple of 2 MiB."""

    @property
    def committed(self) -> int:
        """Blocks of it that may be used, from the first one on."""

    def commit(self, blocks: int) -> None:
        """Make the first `blocks` blocks usable, host memory for each of them included.

        Raises
        ------
        OSError
            There is not so much.
        """

    def feed(self, events: npt.ArrayLike) -> None:
        """Tell the engine of events (`EVENT_DTYPE`) and carry its commands out."""

    def poke(self) -> None:
        """Carry out the commands that are due."""

    def forget(self, blocks: Iterable[int]) -> None:
        """Forget the contents of absent blocks: they read as zeros when they come."""

    def settle(self, seconds: float = 30.0) -> bool:
        """Wait until nothing is due any more; return whether that came in time."""

    def present(self) -> list[int]:
        """Return the numbers of the blocks that have a frame now, ascending."""

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far.

        ``bytes_in``, ``bytes_out``, ``bytes_dropped``, ``waits`` (blocks that threads waited
        for), ``wait_ns``, ``alone`` (blocks served without the engine).
        """

    def start(self) -> None:
        """Begin to serve."""

    def close(self, ranges: Iterable[tuple[int, int]]) -> None:
        """End. (address, bytes) ranges keep their contents as ordinary memory."""

    def leave(self) -> None:
        """In a child process: let go of what belongs to the parent."""


class Opens(Protocol):
    """How a host backend makes its mechanism."""

    name: str

    def unavailable(self) -> str:
        """Return why this machine cannot, in one line; empty if it can."""

    def open(self, live: LiveEngine, blocks: int, options: dict[str, Any]) -> Mechanism:
        """Return a mechanism with so many blocks of addresses."""

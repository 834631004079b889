# SPDX-License-Identifier: Apache-2.0
"""CUPTI, loaded at run time: it calls us before and after each launch."""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

from deepum.errors import BackendError

_NAMES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_TOOLKIT = ("/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64")
_DRIVER_API = 1  # CUPTI_CB_DOMAIN_DRIVER_API
_TAKEN = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED


class CuptiTakenError(BackendError):
    """Another profiler holds CUPTI's only place for a subscriber."""


def load() -> ctypes.CDLL:
    """Load CUPTI: ``$DEEPUM_CUPTI``, what the process has already, a wheel's or the toolkit's.

    Raises
    ------
    BackendError
        There is none.
    """
    own = os.environ.get("DEEPUM_CUPTI")
    places = [own] if own else [*_loaded(), *_NAMES, *_wheels(), *_toolkit()]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise BackendError(
        "no CUPTI library: pip install nvidia-cuda-cupti, or set DEEPUM_CUPTI to its path"
    )


def text(library: ctypes.CDLL, status: int) -> str:
    """Return what CUPTI calls a status."""
    found = ctypes.c_char_p()
    library.cuptiGetResultString(status, ctypes.byref(found))
    return f"{(found.value or b'').decode()} ({status})"


def _loaded() -> list[str]:
    # PyTorch brings one of its own; a second one in the process would be a second subscriber.
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return []
    paths = {line.split(None, 5)[-1] for line in maps.splitlines() if "libcupti" in line}
    return sorted(path for path in paths if "libcupti.so" in path)


def _wheels() -> list[str]:
    spec = find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    return [str(p) for root in roots for p in sorted(root.glob("*/lib/libcupti.so.1[23]"))]


def _toolkit() -> list[str]:
    return [f"{folder}/libcupti.so" for folder in _TOOLKIT]


class Subscription:
    """CUPTI's calls of one function, for a set of driver calls, until closed.

    Parameters
    ----------
    callback
        The function's address.
    calls
        Numbers of the driver calls it is told of.
    further
        Those of calls that this CUPTI may not know yet.

    Raises
    ------
    CuptiTakenError
        A profiler is at work.
    BackendError
        CUPTI is missing or refuses.
    """

    def __init__(
        self, callback: int, calls: tuple[int, ...], further: tuple[int, ...] = ()
    ) -> None:
        self._library = load()
        self._subscriber = ctypes.c_void_p()
        status = self._library.cuptiSubscribe(
            ctypes.byref(self._subscriber), ctypes.c_void_p(callback), None
        )
        if status == _TAKEN:
            raise CuptiTakenError(
                "another profiler (torch.profiler, Nsight, compute-sanitizer) holds CUPTI: "
                "launches cannot be seen; end it before the session starts"
            )
        if status:
            raise BackendError(f"CUPTI does not start: {text(self._library, status)}")
        for call in calls:
            status = self._library.cuptiEnableCallback(1, self._subscriber, _DRIVER_API, call)
            if status:
                self.close()
                why = text(self._library, status)
                raise BackendError(f"CUPTI does not report driver call {call}: {why}")

        for call in further:
            self._library.cuptiEnableCallback(1, self._subscriber, _DRIVER_API, call)

    def close(self) -> None:
        """End the calls; another profiler may subscribe then."""
        if self._subscriber.value:
            self._library.cuptiUnsubscribe(self._subscriber)
            self._subscriber = ctypes.c_void_p()

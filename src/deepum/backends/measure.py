# SPDX-License-Identifier: Apache-2.0
"""What serving faults and moving blocks costs on a host backend, next to a bare copy."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum.machine import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from deepum.backends.host import HostBackend

BLOCKS = 64
"""Moved in each measurement: more than a cache holds."""


Figures = dict[str, dict[str, float]]


def measure(open_backend: Callable[..., HostBackend], repeats: int = 30) -> Figures:
    """Measure everything, in rounds, each time right after bare copies.

    Parameters
    ----------
    open_backend
        Called with a policy and ``memory_limit``, ``options``; returns a backend.
    repeats
        Rounds.

    Returns
    -------
    Figure -> seconds a block, ``median_s`` and ``best_s`` over the rounds, and what they are of
    the bare copy made right before: ``ratio``, the median over the rounds, ``ratio_low`` and
    ``ratio_high``, the quartiles, and ``best_ratio``, the best of all over the best copy of all.
    Other work on the machine makes single rounds longer, and hits a measurement and its copy alike.
    ``copy`` is the bare copy, in ordinary memory; ``prefetch`` and ``evict``, moving in and out
    ahead of need, from asking for 64 blocks to the last one's arrival; ``fault_empty``, a fault on
    memory that holds nothing; ``fault_in``, one whose contents come from the store;
    ``fault_evict``, one that must first take another block out.
    """
    rounds: dict[str, list[tuple[float, float]]] = {}
    source, target = (np.ones((BLOCKS, BLOCK_BYTES), np.uint8) for _ in range(2))

    def note(name: str, figure: Callable[..., float], *arguments: Any) -> None:
        copied = bare_copy(source, target)
        rounds.setdefault(name, []).append((figure(*arguments), copied))

    roomy = open_backend(
        "noop", memory_limit=2 * BLOCKS * BLOCK_BYTES, options={"queue": BLOCKS, "window": BLOCKS}
    )
    tight = open_backend("noop", memory_limit=BLOCKS * BLOCK_BYTES)
    try:
        array = roomy.empty((BLOCKS, BLOCK_BYTES), np.uint8)
        array[:] = 1
        first = array.__array_interface__["data"][0] // BLOCK_BYTES
        large = tight.empty((2 * BLOCKS, BLOCK_BYTES), np.uint8)
        large[:] = 1
        evict(roomy, first)
        for _ in range(repeats):
            note("copy", bare_copy, source, target)
            note("prefetch", prefetch, roomy, first)
            note("evict", evict, roomy, first)
            note("fault_empty", _fresh, open_backend)
            note("fault_in", touch, array)
            evict(roomy, first)
            note("fault_evict", touch, large)
    finally:
        roomy.close()
        tight.close()
    best_copy = min(took for took, _ in rounds["copy"])
    return {name: _figure(pairs, best_copy) for name, pairs in rounds.items()}


def _figure(pairs: list[tuple[float, float]], best_copy: float) -> dict[str, float]:
    times = [took for took, _ in pairs]
    low, middle, high = np.quantile([took / copied for took, copied in pairs], [0.25, 0.5, 0.75])
    return {
        "median_s": median(times),
        "best_s": min(times),
        "ratio": float(middle),
        "ratio_low": float(low),
        "ratio_high": float(high),
        "best_ratio": min(times) / best_copy,
    }


def bare_copy(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> float:
    """Copy block after block in ordinary memory; return seconds a block."""
    began = time.perf_counter()
    for row in range(BLOCKS):
        np.copyto(target[row], source[row])
    return (time.perf_counter() - began) / BLOCKS


def touch(array: npt.NDArray[np.uint8]) -> float:
    """Touch one byte of each row; return seconds a row."""
    began = time.perf_counter()
    for row in range(len(array)):
        array[row, 0] += 1
    return (time.perf_counter() - began) / len(array)


def prefetch(backend: HostBackend, first: int) -> float:
    """Bring blocks ahead; return seconds a block."""
    began = time.perf_counter()
    asked = backend.live.want(first, BLOCKS)
    backend.mechanism.poke()
    backend.mechanism.settle()
    assert asked == BLOCKS
    return (time.perf_counter() - began) / BLOCKS


def evict(backend: HostBackend, first: int) -> float:
    """Take blocks out ahead; return seconds a block."""
    backend.mechanism.settle()
    began = time.perf_counter()
    asked = backend.live.evict(first, BLOCKS)
    backend.mechanism.poke()
    backend.mechanism.settle()
    assert asked == BLOCKS
    return (time.perf_counter() - began) / BLOCKS


def _fresh(open_backend: Callable[..., HostBackend]) -> float:
    backend = open_backend("noop", memory_limit=BLOCKS * BLOCK_BYTES)
    try:
        return touch(backend.empty((BLOCKS, BLOCK_BYTES), np.uint8))
    finally:
        backend.close()


def surroundings(command: str) -> dict[str, Any]:
    """Return what a recorded figure must name: machine, versions, command, date."""
    import deepum

    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "deepum": deepum.__version__,
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return ""


def _line(path: str, name: str) -> str:
    for line in _text(path).splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return platform.machine()

# SPDX-License-Identifier: Apache-2.0
"""Processes that work off a list of simulations and never outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, TypeVar

from deepum.errors import DeepUMError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Item = TypeVar("Item")
    Result = TypeVar("Result")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def work_off(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    processes: int,
    advice: str = "try again with --jobs 1",
) -> Iterator[tuple[int, Result]]:
    """Call a function on each item, several at once; yield each place and result as they come.

    Parameters
    ----------
    function, items
        Both travel to other processes if `processes` and the items are more than one.
    processes
        At most so many.
    advice
        What to do if a process is killed, for the error.

    Raises
    ------
    DeepUMError
        A process was killed. What the function raises is raised as well.
    """
    processes = min(processes, len(items))
    if processes <= 1:
        for place, item in enumerate(items):
            yield place, function(item)
        return
    # Started afresh, not forked: a fork copies locks that other threads hold.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=start_worker)
    try:
        futures = {pool.submit(function, item): place for place, item in enumerate(items)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        _stop(pool)
        raise DeepUMError(
            f"a simulation process was killed, perhaps for want of memory; {advice}"
        ) from None
    except BaseException:
        _stop(pool)
        raise
    pool.shutdown()


def start_worker() -> None:
    """Prepare a process for work: an interrupt ends it at once, and so does its parent's end."""
    # Ctrl-C reaches the whole group of processes; the parent alone says so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    # A parent that is killed tells nobody: a long simulation would go on for nothing.
    wait([sentinel])
    os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    # Only this pool's processes: the caller may have others.
    workers = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in workers:
        process.terminate()

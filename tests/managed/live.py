# SPDX-License-Identifier: Apache-2.0
"""A managed session on the fake driver, and what must hold whatever it did."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_cuda.steer import Driver

from .stand_in import Machine

CARD = 4 << 30
BUDGET = 128 << 20  # the least there may be: 64 blocks
LAYERS, WORDS = 24, (3 << 20) // 4  # weights of 72 MiB and as much in activations

POLICIES = ("chained", "arguments", "single-level", "noop")


def machine_for(driver: Driver) -> Machine:
    """Return a machine; skip where the core was built without CUDA."""
    pytest.importorskip(
        "deepum._core.cuda_mover",
        reason="the core was built without CUDA: pip install cuda-python nvidia-cuda-runtime, "
        "and build again",
    )
    machine = Machine(driver)
    machine.stand_in()
    return machine


@contextlib.contextmanager
def session(
    driver: Driver,
    policy: Any = "chained",
    *,
    limit: int = BUDGET,
    without: tuple[str, ...] = (),
    oversubscribe: bool = False,
    machine: Machine | None = None,
    trace: Path | None = None,
    **options: Any,
) -> Iterator[tuple[Any, Machine]]:
    """Open a session as `deepum.Session` does; afterwards check what must always hold."""
    machine = machine or machine_for(driver)
    from deepum.backends.managed import ManagedBackend

    backend = ManagedBackend(
        policy,
        memory_limit=limit,
        without=without,
        options=options,
        oversubscribe=oversubscribe,
        trace=trace,
    )
    backend.start()
    try:
        yield backend, machine
    finally:
        backend.stop()
    stats = backend.stats
    assert stats["failure"] == ""
    assert stats["lost_events"] == stats["unseen_launches"] == 0
    assert stats["waits_given_up"] == stats["gates_overdue"] == 0, stats
    nothing_read_after_its_discard(driver)


def nothing_read_after_its_discard(driver: Driver) -> None:
    """No kernel may ever have found what a discard left."""
    assert driver.get("discarded_reads") == 0
    assert driver.get("lost") == 0

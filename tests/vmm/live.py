# SPDX-License-Identifier: Apache-2.0
"""A session of the backend vmm on the fake driver, and what must hold whatever it did."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_cuda.steer import Driver
from tests.managed.stand_in import Machine

with contextlib.suppress(ImportError):  # before the process of a test is forked, not in each
    import deepum._core.cuda_vmm_mover
    import deepum.backends.vmm
    import deepum.cuda.faults
    import deepum.torch.pool
    import deepum.torch.tracker  # noqa: F401

CARD = 1 << 30
BUDGET = 32 << 20  # less than a user may have: moves of real bytes take these tests' time
HOST = 512 << 20
SEGMENT = 6 << 20
LAYERS, WORDS = 16, (5 << 18) // 4  # weights of 20 MiB and as much in activations
OPTIONS = {"host_limit": HOST, "chunk_mib": 2}
POLICIES = ("chained", "arguments", "single-level", "noop")


def machine_for(driver: Driver) -> Machine:
    """Return a machine; skip where the core was built without CUDA."""
    pytest.importorskip(
        "deepum._core.cuda_vmm_mover",
        reason="the core was built without CUDA: pip install cuda-python nvidia-cuda-runtime, "
        "and build again",
    )
    from deepum.backends import gpu
    from deepum.machine import BLOCK_BYTES

    gpu._MINIMUM = BUDGET // BLOCK_BYTES
    machine = Machine(driver)
    machine.allocator.segment = SEGMENT
    machine.stand_in()
    return machine


@contextlib.contextmanager
def session(
    driver: Driver,
    policy: Any = "chained",
    *,
    limit: int = BUDGET,
    host: int = HOST,
    without: tuple[str, ...] = (),
    machine: Machine | None = None,
    trace: Path | None = None,
    **options: Any,
) -> Iterator[tuple[Any, Machine]]:
    """Open a session as `deepum.Session` does; afterwards check what must always hold."""
    first = machine is None
    machine = machine or machine_for(driver)
    from deepum.backends.vmm import VmmBackend

    backend = VmmBackend(
        policy,
        memory_limit=limit,
        without=without,
        options={**OPTIONS, "host_limit": host, **options},
        trace=trace,
    )
    backend.start()
    try:
        yield backend, machine
        stats = backend.stats
        assert stats["frame_bytes"] <= limit
        assert bool(stats["frames_made"]) == bool(stats["frame_bytes"])
        assert stats["predictions_lost"] <= stats["launches"] + 1
        assert stats["pinned_bytes"] <= host
        assert not first or driver.get("peak_frame_bytes") <= limit
    finally:
        backend.stop()
    stats = backend.stats
    assert stats["failure"] == ""
    assert stats["lost_events"] == stats["unseen_launches"] == 0
    assert stats["waits_given_up"] == 0
    nothing_harmed(driver)


def nothing_harmed(driver: Driver) -> None:
    """No kernel may ever have touched what was not there, or lost what it was using."""
    for what in ("illegal_touches", "unmapped_in_use", "alias_conflicts", "lost"):
        assert driver.get(what) == 0, what

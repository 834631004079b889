# SPDX-License-Identifier: Apache-2.0
"""Faults are served whatever stands still: the engine, the migration thread, the GIL."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepum import Policy
from deepum.policy import PolicyWarning, make_native

from .drivers import BLOCK, Host, touch


@pytest.mark.long
def test_faults_are_served_while_somebody_has_the_engine(host: Host) -> None:
    backend = host.backend("chained", 10)
    array = backend.empty(24 * BLOCK, np.uint8)
    with backend.launch("k", [array]):
        array[:] = 1
    # This thread holds the engine's lock, and the GIL, and faults.
    with backend.live.held():
        for block in range(24):
            assert array[block * BLOCK] == 1
            array[block * BLOCK] = 2
    assert backend.stats["served_alone"] > 0
    assert backend.settle()
    with backend.live.held() as engine:
        engine.check()
        assert sorted(engine.resident_blocks()) == backend.mechanism.present()
    assert (array[::BLOCK] == 2).all()
    assert (array[1::BLOCK] == 1).all()
    backend.close()


def test_faults_are_served_without_the_migration_thread(uffd: Host) -> None:
    backend = uffd.backend("noop", 10)
    array = backend.empty(14 * BLOCK, np.uint8)
    backend.mechanism.mapping.stop_moving()
    array[: 2 * BLOCK] = 3  # the fault thread finds that nobody comes
    assert (array[: 2 * BLOCK] == 3).all()
    assert backend.mechanism.counts["alone"] >= 2
    backend.close()
    assert (array[: 2 * BLOCK] == 3).all()
    assert not array[2 * BLOCK :].any()


class Asking(Policy):
    def on_fault(self, view: Any, fault: Any) -> None:
        view.prefetch(fault.block + 1)


def test_faults_are_served_though_the_engine_waits_for_the_gil(uffd: Host) -> None:
    # The adapter of simulations calls hooks while the engine waits: never used here, for the
    # thread below holds the GIL and faults. Whatever holds the engine up, the fault is served.
    backend = uffd.backend("noop", 10)
    array = backend.empty(14 * BLOCK, np.uint8)
    backend.live.set_policy(make_native(Asking()))
    before = backend.mechanism.counts["alone"]
    array[5] = 1
    assert backend.mechanism.counts["alone"] == before + 1
    assert backend.settle()
    with backend.live.held() as engine:
        engine.check()
        assert sorted(engine.resident_blocks()) == backend.mechanism.present()
    backend.close()


@pytest.mark.long
def test_an_engine_that_failed_leaves_plain_demand_paging(host: Host) -> None:
    backend = host.backend("chained", 10)
    array = backend.empty(20 * BLOCK, np.uint8)
    with backend.launch("fill"):
        array[:] = 1
    backend.live.give_up()
    with pytest.warns(PolicyWarning, match="the engine failed"), backend.launch("again"):
        array += 1
    for block in range(20):
        touch(array, block)
    assert "the engine failed" in backend.stats["set_aside"]
    other = backend.empty(3 * BLOCK, np.uint8)
    other[:] = 9
    del other
    assert (array[BLOCK - 1 :: BLOCK] == 2).all()
    assert (array[::BLOCK] == 3).all()
    backend.close()
    assert (array[BLOCK - 1 :: BLOCK] == 2).all()


@pytest.mark.long
@pytest.mark.parametrize("ranges", [True, False])
def test_a_kernel_may_touch_more_than_the_budget(host: Host, ranges: bool) -> None:
    backend = host.backend("chained", 8, options={"ranges": ranges})
    array = backend.empty(30 * BLOCK, np.uint8)
    for _ in range(3):
        with backend.launch("all", [], [array]):
            array += 1
    assert (array == 3).all()
    assert len(backend.mechanism.present()) <= 8
    assert backend.settle()
    backend.close()


@pytest.mark.long
def test_many_threads_wait_for_the_same_blocks(host: Host) -> None:
    backend = host.backend("noop", 8)
    array = backend.empty(20 * BLOCK, np.uint8)
    array[:] = 7
    start = threading.Barrier(6)
    seen: list[bool] = []

    def read() -> None:
        start.wait()
        seen.extend(
            bool((array[block * BLOCK : block * BLOCK + 8192] == 7).all()) for block in range(20)
        )

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 120
    backend.close()


def test_more_happens_than_the_journal_holds(uffd: Host) -> None:
    # The engine cannot be asked for so long that the mechanism loses count of what it did.
    backend = uffd.backend("noop", 8, options={"moves": True})
    array = backend.empty(60 * BLOCK, np.uint8)
    mapping = backend.mechanism.mapping
    with backend.live.held():
        mapping.forget_reports()  # as if it had run over
        for block in range(60):
            array[block * BLOCK] = 1
        mapping.forget_reports()
    assert backend.settle()
    touch(array, 0)
    assert backend.settle()
    with backend.live.held() as engine:
        engine.check()
        assert sorted(engine.resident_blocks()) == mapping.present()
    assert (array[: 60 * BLOCK : BLOCK][1:] == 1).all()
    backend.close()


def test_system_calls_need_resident_memory(uffd: Host, tmp_path: Path) -> None:
    # The kernel does not wait for a page in our place: docs/live-backends.md says what to do.
    file = tmp_path / "data"
    file.write_bytes(b"x" * 100)
    backend = uffd.backend("noop", 8)
    array = backend.empty(BLOCK, np.uint8)
    with file.open("rb", buffering=0) as data, pytest.raises(OSError) as raised:
        data.readinto(array)
    assert raised.value.errno == errno.EFAULT
    array[:] = 0
    with file.open("rb", buffering=0) as data:
        assert data.readinto(array) == 100
    assert bytes(array[:101]) == b"x" * 100 + b"\0"
    backend.close()


def test_prefetches_that_find_no_frame_are_given_up(uffd: Host) -> None:
    backend = uffd.backend("noop", 8)
    array = backend.empty(30 * BLOCK, np.uint8)
    first = backend.mechanism.address // BLOCK
    with backend.live.held() as engine:
        # The engine gives frames to prefetches; meanwhile faults take them all.
        backend.live.want(first + 20, 4)
        backend.mechanism.poke()
        for block in range(16):
            array[block * BLOCK] = 1
    assert backend.settle()
    with backend.live.held() as engine:
        engine.check()
        assert sorted(engine.resident_blocks()) == backend.mechanism.present()
    assert (array[: 16 * BLOCK : BLOCK] == 1).all()
    backend.close()

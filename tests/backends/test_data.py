# SPDX-License-Identifier: Apache-2.0
"""No write is lost and no byte changes, whatever moves and whatever a policy asks for."""

from __future__ import annotations

import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepum import Policy
from deepum.backends.host import HostBackend

from .drivers import BLOCK, Host

BLOCKS, BUDGET, THREADS = 24, 9, 3

live_settings = settings(
    max_examples=min(5, settings().max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Hostile(Policy):
    """Asks for anything: blocks that are not there, floods, evicts all, raises at last."""

    defaults = {"seed": 0, "raises": 0.0}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.random = random.Random(self.options["seed"])
        self.blocks: set[int] = set()

    def _act(self, view: Any) -> None:
        near = self.random.choice([*self.blocks, 0, 2**32 - 2, 2**31])
        what = self.random.random()
        if what < 0.4:
            view.prefetch(near + self.random.randint(-3, 3) if near > 3 else near, 3)
        elif what < 0.8:
            view.evict(near, self.random.randint(0, 4))
        elif what < 0.9:
            for block in view.resident_blocks:
                view.evict(block)
        elif self.random.random() < self.options["raises"]:
            raise ValueError("nonsense")

    def on_launch(self, view: Any, launch: Any) -> None:
        self._act(view)

    def on_fault(self, view: Any, fault: Any) -> None:
        self.blocks.add(fault.block)
        self._act(view)

    def on_complete(self, view: Any, launch: Any) -> None:
        self._act(view)

    def on_free(self, view: Any, allocation: Any) -> None:
        view.prefetch(allocation.address // BLOCK, 2)

    def victims(self, view: Any, count: int) -> Any:
        self._act(view)
        return self.random.sample([*self.blocks, 1, 2**40], 2) if self.blocks else [7]


def write(
    array: np.ndarray, mirror: np.ndarray, mine: int, seed: int, count: int, backend: HostBackend
) -> None:
    """Write random bytes at this thread's places of every block, in two places alike."""
    rng = np.random.default_rng(seed)
    part = BLOCK // THREADS
    for n in range(count):
        if n % 5 == 0:
            running = backend.launch(f"k{rng.integers(4)}", [array[: BLOCK * 3]])
        block = int(rng.integers(BLOCKS))
        start = block * BLOCK + mine * part + int(rng.integers(part - 5000))
        data = rng.integers(0, 255, int(rng.integers(1, 5000)), np.uint8)
        array[start : start + len(data)] = data
        mirror[start : start + len(data)] = data
        if n % 5 == 4:
            running.complete()
    running.complete()


@pytest.mark.parametrize(
    "policy",
    ["noop", *(pytest.param(name, marks=pytest.mark.long) for name in ("chained", "hostile"))],
)
@live_settings
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_threads_write_while_blocks_move(host: Host, policy: str, seed: int, ranges: bool) -> None:
    advice: Any = Hostile(seed=seed, raises=0.05) if policy == "hostile" else policy
    backend = host.backend(advice, BUDGET, depth=2, options={"ranges": ranges})
    mirror = np.zeros(BLOCKS * BLOCK, np.uint8)
    stop = threading.Event()

    def stir() -> None:
        # Moves blocks that are in use all the time, more than any policy would.
        chance = random.Random(seed)
        first = backend.mechanism.address // BLOCK
        while not stop.is_set():
            backend.live.evict(first + chance.randrange(BLOCKS), 2)
            backend.live.want(first + chance.randrange(BLOCKS), 2)
            backend.mechanism.poke()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a policy that raises is set aside
        array = backend.empty(BLOCKS * BLOCK, np.uint8)
        array[:] = 0
        with ThreadPoolExecutor(THREADS + 1) as pool:
            stirring = pool.submit(stir)
            jobs = [
                pool.submit(write, array, mirror, mine, seed + mine, 50, backend)
                for mine in range(THREADS)
            ]
            try:
                for job in jobs:
                    job.result()
            finally:
                stop.set()
            stirring.result()
        assert backend.settle()
        with backend.live.held() as engine:
            engine.check()
        assert len(backend.mechanism.present()) <= BUDGET
        assert np.array_equal(array, mirror)
        backend.close()
    assert np.array_equal(array, mirror)


def test_what_is_freed_reads_as_zeros_when_it_comes_again(host: Host) -> None:
    backend = host.backend("chained", BUDGET)
    secret = backend.empty(20 * BLOCK, np.uint8)
    secret[:] = 77
    address = secret.__array_interface__["data"][0]
    assert backend.settle()  # what is on its way out when it is freed is stored as it was
    del secret
    assert backend.settle()
    # What is resident still may be found as it was left; a block that was taken out may not.
    resident = {block - address // BLOCK for block in backend.mechanism.present()}
    again = backend.empty(20 * BLOCK, np.uint8)
    assert again.__array_interface__["data"][0] == address
    gone = [block for block in range(20) if block not in resident]
    assert len(gone) >= 20 - BUDGET
    for block in gone:
        assert not again[block * BLOCK : (block + 1) * BLOCK].any()
    backend.close()


def test_a_discard_drops_contents_without_copying(host: Host) -> None:
    backend = host.backend("chained", BUDGET)
    dead = backend.empty(6 * BLOCK, np.uint8)
    dead[:] = 5
    keep = backend.empty(8 * BLOCK, np.uint8)
    del dead
    before = backend.stats
    keep[:] = 6
    assert backend.settle()
    after = backend.stats
    assert after["discarded"] > before["discarded"]
    assert after["bytes_dropped"] > before["bytes_dropped"]
    assert after["bytes_out"] == before["bytes_out"]
    assert (keep == 6).all()
    backend.close()


def test_contents_come_back_from_the_store(host: Host) -> None:
    backend = host.backend("noop", BUDGET)
    array = backend.empty((BLOCKS, BLOCK // 8), np.float64)
    for block in range(BLOCKS):
        array[block] = np.arange(BLOCK // 8) + block
    for block in reversed(range(BLOCKS)):
        assert (array[block] == np.arange(BLOCK // 8) + block).all()
    stats = backend.stats
    assert stats["bytes_in"] >= (BLOCKS - BUDGET) * BLOCK
    assert stats["bytes_out"] >= (BLOCKS - BUDGET) * BLOCK
    assert stats["fault_evictions"] >= BLOCKS - BUDGET
    backend.close()

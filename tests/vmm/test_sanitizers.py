# SPDX-License-Identifier: Apache-2.0
"""The backend vmm, core and all, under ThreadSanitizer and AddressSanitizer."""

import tempfile
import threading
from pathlib import Path

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.stand_in import Program, training
from tests.managed.test_data import churn

from .live import CARD, LAYERS, WORDS, session

# The first of them, or of tests/managed, builds the core anew; the others find it there.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def live(driver: Driver) -> None:
    """Train, then let two threads do anything at all."""
    driver.delay("exec:kernel", 0, 500_000)
    driver.delay("exec:copy_end", 0, 500_000)
    path = Path(tempfile.mkdtemp()) / "live.trace"
    errors: list[BaseException] = []
    with session(driver, "chained", delay_us=200, trace=path) as (backend, machine):
        program = Program(machine)
        for _ in range(2):
            training(program, LAYERS, WORDS, 1)
            backend.step()
            assert backend.stats["bytes_out"] > 0

        def work(seed: int) -> None:
            try:
                driver.enter()
                churn(Program(machine, seed), 100, WORDS)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        backend.policy = "arguments"
        for thread in threads:
            thread.join()
        assert not errors
    program.check_all()  # what outlives the session
    assert path.exists()


@on_fake(memory_bytes=CARD, sanitize="thread", with_core=True, timeout=300)
def test_no_data_race(driver: Driver) -> None:
    live(driver)


@on_fake(memory_bytes=CARD, sanitize="address", with_core=True, timeout=300)
def test_no_memory_error(driver: Driver) -> None:
    live(driver)

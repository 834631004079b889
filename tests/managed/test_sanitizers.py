# SPDX-License-Identifier: Apache-2.0
"""The managed backend, core and all, under ThreadSanitizer and AddressSanitizer."""

import tempfile
from pathlib import Path

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, LAYERS, WORDS, session
from .stand_in import Program, training

# The first of them builds the core anew, for the sanitizer.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def live(driver: Driver) -> None:
    driver.delay("exec:kernel", 0, 500_000)
    path = Path(tempfile.mkdtemp()) / "live.trace"
    with session(driver, "chained", delay_us=200, trace=path) as (backend, machine):
        for _ in range(3):
            training(Program(machine), LAYERS, WORDS, 1)
            backend.step()
            assert backend.stats["launches"] > 0
    assert path.exists()


@on_fake(memory_bytes=CARD, sanitize="thread", with_core=True, timeout=300)
def test_no_data_race(driver: Driver) -> None:
    live(driver)


@on_fake(memory_bytes=CARD, sanitize="address", with_core=True, timeout=300)
def test_no_memory_error(driver: Driver) -> None:
    live(driver)

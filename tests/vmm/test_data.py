# SPDX-License-Identifier: Apache-2.0
"""Whatever the policy does and however late moves are, the program computes the same."""

import random
import threading
from ctypes import c_uint
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.stand_in import Program, training
from tests.managed.test_data import churn, hostile

from .live import BUDGET, CARD, LAYERS, POLICIES, WORDS, session

MS = 1_000_000


@on_fake(memory_bytes=CARD)
def test_what_fits_never_moves_and_never_waits(driver: Driver) -> None:
    with session(driver, limit=512 << 20) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_in"] == stats["bytes_out"] == stats["bytes_dropped"] == 0
    assert driver.calls("cuStreamWaitValue32") == 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", POLICIES)
def test_training_is_right_while_kernels_lag(driver: Driver, policy: str) -> None:
    """The program is far ahead: what it frees is still to be read by kernels that wait."""
    with session(driver, policy) as (backend, machine):
        driver.delay("exec:kernel_end", 200_000, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_out"] > 0
    assert stats["bytes_in"] > 0
    if policy != "noop":
        assert stats["bytes_dropped"] > 0

# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver observed through the module, its layout read from type information."""

from __future__ import annotations

import select
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from deepum.backends import btf
from deepum.errors import BackendError

pytestmark = pytest.mark.kmod

MOCK = Path("/run/modules/nvidia_uvm.ko")
TELL = Path("/sys/module/nvidia_uvm/parameters/tell")


@pytest.fixture
def driver() -> Iterator[None]:
    """Load the stand-in for the driver, which has its function and field names."""
    if not MOCK.exists():
        pytest.skip(f"the stand-in for NVIDIA's driver is not here: {MOCK}")
    subprocess.run(["insmod", str(MOCK)], check=True)
    yield
    subprocess.run(["rmmod", "nvidia_uvm"], check=True)


@cache
def layout() -> bytes:
    """Return the stand-in's layout; an emulated machine reads its types for seconds."""
    if not (btf.SYS / "nvidia_uvm").exists():
        pytest.skip("this kernel keeps no type information of modules")
    return btf.driver_layout()


def test_the_layout_comes_from_the_driver(driver: None) -> None:
    fields = struct.unpack("<5I14H", layout())
    # As in kmod/tests/test_uvm.c, where it is written out by hand.
    assert fields == (48, 0, 5, 6, 4, 8, 16, 16, 28, 8, 166, 4, 2, 16, 20, 24, 32, 40, 48)


def test_faults_and_moves_are_delivered(driver: None) -> None:
    from deepum._core.kmod import Sensor

    sensor = Sensor(layout())
    TELL.write_text("gpu 1 7f0000203000 2")
    TELL.write_text("move 0 1 7f0000200000 200000 4")
    assert select.select([sensor], [], [], 5)[0]
    events = sensor.read()
    if len(events) == 1:
        select.select([sensor], [], [], 5)
        events = [*events, *sensor.read()]
    fault, move = events
    assert (fault["type"], fault["device"], fault["flags"]) == (8, 0x8001, 1)
    assert fault["address"] == 0x7F0000203000
    assert (move["type"], move["device"], move["flags"]) == (10, 0x8001, 1)
    assert (move["address"], move["bytes"]) == (0x7F0000200000, 0x200000)
    assert fault["id"] == move["id"] != 0
    assert sensor.dropped == 0


def test_without_a_driver() -> None:
    with pytest.raises(BackendError, match="nvidia-uvm is not loaded"):
        btf.driver_layout()

# SPDX-License-Identifier: Apache-2.0
"""Where the UVM driver's queue cannot be opened: faults from CUPTI's counters."""

import warnings
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, LAYERS, WORDS, machine_for, session
from .stand_in import Program, training


def without_queue(driver: Driver) -> Any:
    """Return a machine whose queue is closed, as in a container without its device."""
    from deepum.cuda import faults

    real = faults.FaultSource
    machine = machine_for(driver)
    faults.FaultSource = real  # type: ignore[misc]
    return machine


@on_fake(memory_bytes=CARD)
def test_faults_are_counted_by_cupti(driver: Driver) -> None:
    machine = without_queue(driver)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(driver, "noop", machine=machine) as (backend, _):
            training(Program(machine), LAYERS, WORDS, 2)
            driver.sync()
            assert backend.stats["fault_source"] == "cupti"
            assert backend.stats["fault_records"] == driver.get("faults") > 0
    assert not caught
    assert backend.stats["bytes_out"] > 0  # the engine heard of them too
    from deepum._core import cupti_counters

    assert cupti_counters.buffers() == 0


@on_fake(memory_bytes=CARD)
def test_one_session_after_another(driver: Driver) -> None:
    machine = without_queue(driver)
    seen = []
    for _ in range(3):
        with session(driver, "noop", machine=machine) as (backend, _):
            before = backend.stats["fault_records"]
            program = Program(machine)
            training(program, LAYERS, WORDS, 1)
            driver.sync()
            seen.append(backend.stats["fault_records"] - before)
            for tensor in list(program.tensors):
                program.drop(tensor)
        machine.allocator.empty()
    assert seen[0] > 0
    driver.call("cuCtxSynchronize")
    stopped = backend.stats["fault_records"]
    array = driver.managed(WORDS)
    driver.fill(array, 1)
    driver.sync()
    assert backend.stats["fault_records"] == stopped  # nobody counts between sessions


@on_fake(memory_bytes=CARD)
def test_where_nothing_sees_faults(driver: Driver) -> None:
    machine = without_queue(driver)
    driver.set("cupti_counters_refuse", 35)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(driver, "arguments", machine=machine) as (backend, _):
            assert backend.stats["fault_source"] == "none"
            training(Program(machine), LAYERS, WORDS, 2)
    (warning,) = caught
    text = str(warning.message)
    assert "faults are not seen: /dev/nvidia-uvm-tools cannot be opened" in text
    assert "CUPTI counts no faults here: Enable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)" in text


@on_fake(memory_bytes=CARD)
def test_no_cupti_at_all(driver: Driver) -> None:
    import os

    machine = without_queue(driver)
    os.environ["DEEPUM_CUPTI"] = "/nowhere/libcupti.so"
    with (
        pytest.warns(UserWarning, match="no CUPTI library") as caught,
        session(driver, "noop", machine=machine) as (backend, _),
    ):
        program = Program(machine)
        training(program, 4, WORDS, 1)
    assert backend.fault_source == "none"
    assert len(caught) == 2  # launches are not seen either

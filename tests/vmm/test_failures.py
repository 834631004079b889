# SPDX-License-Identifier: Apache-2.0
"""Driver calls that fail: the program goes on with right data, or ends with one clear error."""

import random
import threading
import warnings
from itertools import cycle
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import CudaError, Driver
from tests.managed.stand_in import OutOfMemoryError, Program, training

from .live import BUDGET, CARD, LAYERS, OPTIONS, WORDS, machine_for

UNKNOWN, OUT_OF_MEMORY = 999, 2
ALWAYS = 1 << 40

# Functions that a session calls and this program, being no client of them, does not.
SESSION_ONLY = (
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitValue32",
    "cuStreamWriteValue32",
    "cuMemHostRegister",
    "cuFuncGetName",
    "cuFuncGetParamInfo",
    "cuFuncLoad",
    "cuCtxGetCurrent",
)


def run(driver: Driver, lag: bool = True) -> tuple[str, Any]:
    """Run a program in a session; return how it went and, if there was one, the session.

    "refused": the session did not start, and the program ran without it. "right": the program ran
    to its end, its data checked. "error": the program was told of a failure.
    """
    from deepum.backends.vmm import VmmBackend
    from deepum.errors import DeepUMError

    machine = machine_for(driver)
    if lag:
        driver.delay("exec:kernel_end", 100_000, 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = VmmBackend(memory_limit=BUDGET, options=OPTIONS)
        try:
            backend.start()
        except DeepUMError as error:
            assert "\n" not in str(error)
            training(Program(machine), LAYERS, WORDS, 1)
            return "refused", None
        try:
            training(Program(machine), LAYERS, WORDS, 2)
        except (CudaError, OutOfMemoryError):
            outcome = "error"
        else:
            outcome = "right"
        backend.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("deepum")]
    return outcome, backend


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize(("nth", "function"), [*zip(cycle([1, 9]), SESSION_ONLY, strict=False)])
def test_a_call_fails_once(driver: Driver, nth: int, function: str) -> None:
    driver.fail(function, nth, UNKNOWN, 1)
    outcome, _ = run(driver)
    assert outcome in ("right", "refused")
    assert driver.get("lost") == 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("function", SESSION_ONLY[::2])
def test_a_call_fails_for_good(driver: Driver, function: str) -> None:
    driver.fail(function, 20, UNKNOWN, ALWAYS)
    outcome, backend = run(driver)
    if outcome == "error":
        assert backend.refused
        assert "\n" not in backend.refused


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("seed", range(4))
def test_any_call_at_all_fails(driver: Driver, seed: int) -> None:
    """Of the program's own calls, the program is told."""
    nth = random.Random(seed).choice([*range(1, 60), *range(60, 2500, 97)])
    driver.fail("*", nth, UNKNOWN)
    outcome, _ = run(driver)
    assert outcome in ("right", "refused", "error")


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("work", ["copy", "write_value", "wait_value"])
def test_the_device_is_lost_in_the_midst_of_a_move(driver: Driver, work: str) -> None:
    driver.fail(f"exec:{work}", 5, 719)
    outcome, _ = run(driver, lag=False)
    assert outcome == "error"
    assert driver.get("lost") == 719


@on_fake(memory_bytes=CARD, other_bytes=CARD - (24 << 20))
def test_the_card_has_less_free_than_it_seemed(driver: Driver) -> None:
    """Another program takes memory after the session began."""
    driver.set("other_bytes", 0)
    from deepum.backends.vmm import VmmBackend

    machine = machine_for(driver)
    backend = VmmBackend(memory_limit=BUDGET, options=OPTIONS)
    backend.start()
    driver.set("other_bytes", CARD - (24 << 20))
    program = Program(machine)
    with pytest.raises(CudaError):
        for k in range(80):
            program.new(WORDS, k)
        program.check_all()
    backend.stop()
    assert "lower memory_limit" in backend.refused

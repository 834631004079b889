# SPDX-License-Identifier: Apache-2.0
"""Driver calls that fail: the program goes on with right data, or ends with one clear error."""

import random
import threading
import warnings
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import CudaError, Driver

from .live import CARD, LAYERS, WORDS, machine_for, nothing_read_after_its_discard
from .stand_in import OutOfMemoryError, Program, training

UNKNOWN, OUT_OF_MEMORY = 999, 2
ALWAYS = 1 << 40

# Functions that a session calls and this program, being no client of them, does not.
SESSION_ONLY = (
    "cuMemPrefetchAsync",
    "cuMemDiscardBatchAsync",
    "cuStreamWaitValue32",
    "cuStreamWriteValue32",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuMemGetInfo",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDriverGetVersion",
    "cuFuncGetName",
    "cuFuncGetParamInfo",
    "cuFuncLoad",
    "cuCtxGetCurrent",
)


def run(driver: Driver, policy: str = "chained", lag: bool = True) -> tuple[str, Any]:
    """Run a program in a session; return how it went and, if there was one, the session.

    "refused": the session did not start, and the program ran without it. "right": the program ran
    to its end. "error": the program was told of a failure of its own call.
    """
    from deepum.backends.managed import ManagedBackend
    from deepum.errors import DeepUMError

    machine = machine_for(driver)
    if lag:
        driver.delay("exec:kernel", 100_000, 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = ManagedBackend(policy, memory_limit="128MiB")
        try:
            backend.start()
        except DeepUMError as error:
            assert "\n" not in str(error)
            training(Program(machine), LAYERS, WORDS, 1)
            assert driver.get("managed_bytes") == 0
            return "refused", None
        try:
            training(Program(machine), LAYERS, WORDS, 2)
        except (CudaError, OutOfMemoryError):
            outcome = "error"
        else:
            outcome = "right"
        backend.stop()
    return outcome, backend


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("function", SESSION_ONLY)
@pytest.mark.parametrize(("nth", "times"), [(1, 1), (1, ALWAYS), (7, 3)])
def test_a_call_of_the_session_fails(driver: Driver, function: str, nth: int, times: int) -> None:
    driver.fail(function, nth, UNKNOWN, times)
    outcome, _ = run(driver)
    assert outcome in ("right", "refused")
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize(
    ("policy", "function"),
    [
        (policy, function)
        for policy in ("noop", "arguments")
        for function in SESSION_ONLY[:4]
        if (policy, function) != ("arguments", "cuStreamWriteValue32")  # above, as chained
    ],
)
def test_a_call_of_another_policys_session_fails(
    driver: Driver, policy: str, function: str
) -> None:
    driver.fail(function, 5, UNKNOWN, ALWAYS)
    assert run(driver, policy)[0] == "right"
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("function", ["cuStreamCreate", "cuCtxSetCurrent"])
def test_a_moving_thread_cannot_begin(driver: Driver, function: str, nth: int) -> None:
    machine = machine_for(driver)
    program = Program(machine)  # its stream is there already
    from deepum.backends.managed import ManagedBackend

    backend = ManagedBackend("chained", memory_limit="128MiB")
    driver.fail(function, nth, UNKNOWN, 2)
    backend.start()
    training(program, LAYERS, WORDS, 2)
    backend.stop()
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("nth", [1, 4])
def test_memory_runs_out_for_a_moment(driver: Driver, nth: int) -> None:
    """The caching allocator frees what it can and asks again."""
    driver.fail("cuMemAllocManaged", nth, OUT_OF_MEMORY)
    assert run(driver)[0] == "right"


@on_fake(memory_bytes=CARD)
def test_memory_runs_out_for_good(driver: Driver) -> None:
    driver.fail("cuMemAllocManaged", 4, OUT_OF_MEMORY, ALWAYS)
    assert run(driver)[0] == "error"
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("seed", range(12))
def test_any_call_at_all_fails(driver: Driver, seed: int) -> None:
    """Of the program's own calls, the program is told."""
    nth = random.Random(seed).choice([*range(1, 60), *range(60, 2500, 97)])
    driver.fail("*", nth, UNKNOWN)
    outcome, _ = run(driver)
    assert outcome in ("right", "refused", "error")
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("work", ["prefetch", "discard", "write_value", "wait_value"])
def test_the_device_is_lost_in_the_midst_of_a_move(driver: Driver, work: str) -> None:
    driver.fail(f"exec:{work}", 5, 719)
    outcome, _ = run(driver, lag=False)
    assert outcome == "error"
    assert driver.get("lost") == 719
    assert not [t for t in threading.enumerate() if t.name.startswith("deepum")]


@on_fake(memory_bytes=CARD, cupti_refuse=39)
@pytest.mark.parametrize("policy", ["chained", "arguments", "single-level", "noop"])
def test_another_profiler_holds_cupti(driver: Driver, policy: str) -> None:
    """Launches are not seen, so nothing tells when memory that was freed is no longer read."""
    outcome, backend = run(driver, policy)
    assert outcome == "right"
    assert not backend.launches_seen
    nothing_read_after_its_discard(driver)

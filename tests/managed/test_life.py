# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends: sessions after one another, exceptions, forks, exits."""

import ctypes
import os
import threading
import time

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, LAYERS, WORDS, machine_for, nothing_read_after_its_discard, session
from .stand_in import Program, training


def threads() -> list[str]:
    """Return the names of our threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("deepum")]


@on_fake(memory_bytes=CARD)
def test_what_lives_outlives_the_session(driver: Driver) -> None:
    with session(driver, "chained") as (_, machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        assert threads()
    assert not threads()
    program.check_all()
    program.axpy(0, 1, 3)
    fresh = program.new(10 * WORDS, 7)
    program.check_all()
    assert driver.get("device_bytes") >= 40 * WORDS  # new segments are plain memory again
    program.drop(fresh)
    for tensor in list(program.tensors):
        program.drop(tensor)
    driver.sync()
    machine.allocator.empty()
    assert driver.get("managed_bytes") == driver.get("device_bytes") == 0


@on_fake(memory_bytes=CARD)
def test_sessions_after_one_another_give_everything_back(driver: Driver) -> None:
    machine = machine_for(driver)
    left = []
    for policy in ("chained", "noop", "arguments", "single-level"):
        with session(driver, policy, machine=machine):
            program = Program(machine)
            training(program, LAYERS, WORDS, 1)
            for tensor in list(program.tensors):
                program.drop(tensor)
            driver.call("cuStreamDestroy_v2", program.stream)
        machine.allocator.empty()
        left.append([driver.get(n) for n in ("managed_bytes", "device_bytes", "streams", "events")])
    assert left == [[0, 0, 0, 0]] * 4


@on_fake(memory_bytes=CARD)
def test_pinned_words_do_not_pile_up(driver: Driver) -> None:
    machine = machine_for(driver)
    for _ in range(3):
        with session(driver, "chained", machine=machine):
            training(Program(machine), 2, WORDS, 1)
    first = driver.get("pinned_bytes")
    for _ in range(5):
        with session(driver, "chained", machine=machine):
            training(Program(machine), 2, WORDS, 1)
    assert driver.get("pinned_bytes") <= max(first, 3 * 8192)


@on_fake(memory_bytes=CARD)
def test_memory_of_one_session_is_the_next_ones_too(driver: Driver) -> None:
    machine = machine_for(driver)
    with session(driver, "chained", machine=machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
    with session(driver, "arguments", machine=machine):
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
        program.check_all()
    assert driver.get("bytes_out_prefetch") >= LAYERS * WORDS * 4  # parked in between


@on_fake(memory_bytes=CARD)
def test_an_exception_passes_through_and_ends_the_session(driver: Driver) -> None:
    machine = machine_for(driver)
    with pytest.raises(ZeroDivisionError), session(driver, "chained", machine=machine):
        driver.delay("exec:kernel", 0, 1_000_000)
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
        raise ZeroDivisionError
    assert not threads()
    program.check_all()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("work", ["prefetch", "discard"])
def test_ending_while_moves_are_under_way(driver: Driver, work: str) -> None:
    with session(driver, "chained") as (_, machine):
        program = Program(machine)
        driver.delay(f"exec:{work}", 0, 20_000_000)
        training(program, LAYERS, WORDS, 1)
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
    program.check_all()
    assert not threads()


@on_fake(memory_bytes=CARD)
def test_ending_while_another_thread_launches(driver: Driver) -> None:
    ending, errors = threading.Event(), []
    with session(driver, "chained") as (_, machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)

        def work() -> None:
            try:
                driver.enter()
                while not ending.is_set():
                    for k in range(LAYERS - 1):
                        program.axpy(k, k + 1, 3)
                program.check_all()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.05)
    time.sleep(0.05)
    ending.set()
    thread.join()
    assert not errors
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
def test_a_forked_child_leaves_the_parents_session_alone(driver: Driver) -> None:
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        pid = os.fork()
        if pid == 0:  # as a DataLoader's worker: it uses no GPU, and ends by itself
            backend.stop()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        training(program, LAYERS, WORDS, 1)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("how", ["open", "raises", "daemon thread"])
def test_the_interpreter_ends_with_a_session_open(driver: Driver, how: str) -> None:
    """The exit of this very process is the test: a crash or a hang there fails it."""
    from deepum.backends.managed import ManagedBackend

    machine = machine_for(driver)
    backend = ManagedBackend("chained", memory_limit="128MiB")
    backend.start()
    program = Program(machine)
    training(program, LAYERS, WORDS, 1)
    globals()["_kept"] = (machine, backend, program)  # alive until the very end
    if how == "daemon thread":

        def forever() -> None:
            driver.enter()
            while True:
                program.axpy(0, 1, 3)

        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.02)
    if how == "raises":
        raise SystemExit(0)


@on_fake(memory_bytes=CARD)
def test_ending_twice_is_ending_once(driver: Driver) -> None:
    with session(driver, "chained") as (backend, machine):
        training(Program(machine), 4, WORDS, 1)
        backend.stop()
        backend.stop()


@on_fake(memory_bytes=CARD)
def test_another_profiler_may_come_afterwards(driver: Driver) -> None:
    with session(driver, "chained") as (_, machine):
        training(Program(machine), 4, WORDS, 1)
    cupti = ctypes.CDLL(os.environ["DEEPUM_CUPTI"])
    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    assert cupti.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), callback, None) == 0

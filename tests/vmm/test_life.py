# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends: sessions after one another, exceptions, forks, exits, leaks."""

import multiprocessing
import os
import sys
import threading
import time

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.stand_in import Program, training
from tests.managed.test_fork import _work, ended
from tests.managed.test_life import threads

from .live import BUDGET, CARD, LAYERS, OPTIONS, WORDS, machine_for, nothing_harmed, session

MS = 1_000_000
FRAMES = ("frame_bytes", "host_frame_bytes", "frames", "mappings")
LEFT = (*FRAMES, "device_bytes", "streams", "events")


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("room", ["card", "host"])
def test_what_lives_outlives_the_session(driver: Driver, room: str) -> None:
    """On the device, beyond the budget too, or in host memory where the card is full."""
    if room == "host":
        driver.set("memory_bytes", BUDGET + (24 << 20))
    machine = machine_for(driver)
    with session(driver, machine=machine) as (_, machine):
        program = Program(machine)
        for k in range(70):
            program.new(WORDS, k)
        assert threads()
    assert not threads()
    assert (driver.get("host_frame_bytes") > 0) == (room == "host")
    program.check_all()
    program.axpy(0, 69, 3)
    program.check_all()
    for tensor in list(program.tensors):
        program.drop(tensor)
    driver.call("cuStreamDestroy_v2", program.stream)
    driver.sync()
    machine.allocator.empty()
    assert driver.get("mappings") == driver.get("frames")  # aliases, until the next session
    nothing_harmed(driver)


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
        left.append([driver.get(name) for name in LEFT])
    assert left == [[0] * len(LEFT)] * 4
    assert driver.get("pinned_bytes") <= 3 * 8192


@on_fake(memory_bytes=CARD)
def test_nothing_piles_up_while_a_session_lasts(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        seen = []
        for _ in range(6):
            training(program, LAYERS, WORDS, 2)
            for tensor in list(program.tensors):
                program.drop(tensor)
            driver.sync()
            machine.allocator.empty()
            seen.append([driver.get(name) for name in (*LEFT, "pinned_bytes")])
        assert seen[2][4:] == seen[-1][4:]
        assert all(row[0] <= BUDGET for row in seen)


@on_fake(memory_bytes=CARD)
def test_memory_of_one_session_is_the_next_ones_too(driver: Driver) -> None:
    machine = machine_for(driver)
    with session(driver, machine=machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
    with session(driver, "arguments", machine=machine, limit=BUDGET + (8 << 20)):
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
        program.check_all()
        training(program, LAYERS, WORDS, 1)
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_an_exception_passes_through_and_ends_the_session(driver: Driver) -> None:
    machine = machine_for(driver)
    with pytest.raises(ZeroDivisionError), session(driver, machine=machine):
        driver.delay("exec:kernel_end", 0, MS)
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
        raise ZeroDivisionError
    assert not threads()
    program.check_all()


@on_fake(memory_bytes=CARD)
def test_ending_while_moves_are_under_way(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        driver.delay("exec:copy_end", 0, 20 * MS)
        training(program, LAYERS, WORDS, 1)
        for k in range(LAYERS - 1):
            program.axpy(k, k + 1, 3)
    program.check_all()
    assert not threads()


@on_fake(memory_bytes=CARD)
def test_ending_while_another_thread_launches(driver: Driver) -> None:
    ending, errors = threading.Event(), []
    with session(driver) as (_, machine):
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
    nothing_harmed(driver)


@on_fake(memory_bytes=CARD)
def test_a_forked_child_leaves_the_parents_session_alone(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        for how in ("quietly", "as a program"):
            pid = os.fork()
            if pid == 0:  # as a DataLoader's worker: it uses no GPU, and ends by itself
                for tensor in list(program.tensors):
                    program.drop(tensor)
                machine.allocator.empty()
                backend.stop()
                os._exit(7) if how == "quietly" else sys.exit(7)
            assert ended(pid) == 7
        training(program, LAYERS, WORDS, 1)
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_workers_of_a_data_loader(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        for k in range(10):
            program.new(WORDS, k)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        workers = [context.Process(target=_work, args=(queue, program)) for _ in range(3)]
        for worker in workers:
            worker.start()
        training(program, 6, WORDS, 1)  # the parent goes on meanwhile
        assert [queue.get(timeout=60) for _ in workers] == ["done"] * 3
        for worker in workers:
            worker.join(30)
            assert worker.exitcode == 0
        program.check_all()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("how", ["open", "raises", "daemon thread"])
def test_the_interpreter_ends_with_a_session_open(driver: Driver, how: str) -> None:
    """The exit of this very process is the test: a crash or a hang there fails it."""
    from deepum.backends.vmm import VmmBackend

    machine = machine_for(driver)
    backend = VmmBackend(memory_limit=BUDGET, options=OPTIONS)
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
def test_a_session_is_named_by_its_memory(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)
    with deepum.Session(memory="vmm", memory_limit=BUDGET, options=OPTIONS) as opened:
        assert opened.backend == "vmm"
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        opened.policy = "single-level"
        training(program, LAYERS, WORDS, 1)
        with pytest.raises(deepum.DeepUMError, match="close it first"):
            deepum.Session(backend="vmm", memory_limit=BUDGET)
    stats = opened.stats
    assert stats["backend"] == "vmm"
    assert stats["bytes_out"] > 0
    with pytest.raises(deepum.DeepUMError, match="no memory named 'swap'"):
        deepum.Session(memory="swap")
    nothing_harmed(driver)


@on_fake(memory_bytes=CARD, cupti_refuse=39)
def test_without_a_callback_for_launches_there_is_no_session(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)
    with pytest.raises(deepum.DeepUMError, match="launches cannot be seen"):
        deepum.Session(memory="vmm", memory_limit=BUDGET)
    training(Program(machine), 4, WORDS, 1)
    assert not threads()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("option", [{"chunk_mib": 3}, {"ahead": 0}, {"ahead": 1000}])
def test_options_that_cannot_be(driver: Driver, option: dict) -> None:
    import deepum

    machine_for(driver)
    with pytest.raises(deepum.DeepUMError, match="must be"):
        deepum.Session(memory="vmm", memory_limit=BUDGET, options=option)

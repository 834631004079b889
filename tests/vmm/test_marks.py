# SPDX-License-Identifier: Apache-2.0
"""Streams write how far they have come: at each launch where memory moves, else rarely."""

import ctypes
import tempfile
from pathlib import Path
from typing import Any

from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver, wait_until
from tests.managed.stand_in import Program

from .live import BUDGET, CARD, WORDS, session

MARK = "cuStreamWriteValue32"


def still(backend: Any) -> bool:
    """Whether every launch is known to have finished."""
    return backend.engine.running is None and backend.conductor.waiting == 0


@on_fake(memory_bytes=CARD, timeout=60)
def test_few_launches_are_marked_while_all_is_there(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        a, b = program.new(WORDS, 1), program.new(WORDS, 2)
        wait_until(lambda: still(backend))
        driver.delay("exec:kernel", 1_000_000)  # so that no stream stops meanwhile
        before = driver.calls(MARK)
        for _ in range(160):
            program.axpy(a, b, 3)
        driver.sync(program.stream)
        assert 10 <= driver.calls(MARK) - before <= 80
        driver.delay("exec:kernel", 0)
        wait_until(lambda: still(backend))  # the last ones are asked for
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
def test_every_launch_is_marked_while_memory_moves(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        tensors = [program.new(WORDS, k) for k in range(60)]
        before = driver.calls(MARK)
        for k in range(100):
            program.axpy(tensors[k % 50], tensors[(k + 1) % 50], 3)
        assert driver.calls(MARK) - before >= 100
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
def test_every_launch_is_marked_while_it_is_recorded(driver: Driver) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        session(driver, trace=Path(folder) / "run.trace") as (_, machine),
    ):
        program = Program(machine)
        a = program.new(WORDS, 1)
        before = driver.calls(MARK)
        for _ in range(50):
            program.axpy(a, a, 3)
        assert driver.calls(MARK) - before >= 50


@on_fake(memory_bytes=CARD, timeout=60)
def test_what_a_stream_that_stopped_has_used_can_leave(driver: Driver) -> None:
    """Its last launches went without a mark, since all was there then."""
    with session(driver) as (backend, machine):
        stopped, program = Program(machine), Program(machine, 1)
        first = [stopped.new(WORDS, k) for k in range(12)]  # half of the budget
        driver.delay("exec:kernel", 100_000)
        for k in range(11):
            stopped.axpy(first[k], first[k + 1], 3)
        tensors = [program.new(WORDS, k) for k in range(40)]
        for k in range(39):
            program.axpy(tensors[k], tensors[k + 1], 3)
        program.check_all()
        stopped.check_all()
        assert backend.stats["bytes_out"] > BUDGET // 2


@on_fake(memory_bytes=CARD, timeout=60)
def test_a_stream_that_is_destroyed_is_marked_first(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        a = program.new(WORDS, 1)
        wait_until(lambda: still(backend))
        for _ in range(20):
            stream = driver.stream()
            driver.launch("axpy", *(program.tensors[a][0].address,) * 2, 16, 1, stream=stream)
            driver.call("cuStreamDestroy_v2", stream)
        wait_until(lambda: still(backend))
        assert backend.stats["failure"] == ""


@on_fake(memory_bytes=CARD, timeout=60)
def test_nothing_is_written_into_a_capture(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        a, b = program.new(WORDS, 1), program.new(WORDS, 2)
        driver.delay("exec:kernel", 2_000_000)
        program.axpy(a, b, 3)  # unmarked when the capture begins
        driver.call("cuStreamBeginCapture_v2", program.stream, 0)
        before = driver.calls(MARK)
        for _ in range(3):
            program.launch("axpy", program.tensors[a][0].address, program.tensors[b][0].address,
                           WORDS, 5)  # fmt: skip
        wait_until(lambda: backend.conductor.rounds > 0 and still(backend))
        assert driver.calls(MARK) == before
        graph, run = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamEndCapture", program.stream, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_uint64(0))
        for _ in range(2):
            driver.call("cuGraphLaunch", run, program.stream)
        program.tensors[a][1][:] += 2 * 3 * 5 * program.tensors[b][1]
        program.check_all()

# SPDX-License-Identifier: Apache-2.0
"""Children of a process with a session: data loaders' workers, and others that know nothing of it.

They free tensors that they inherited and end; nothing of that may wait for the parent's threads.
"""

import multiprocessing
import os
import signal
import sys
import threading

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, WORDS, machine_for, session
from .stand_in import Program, training


def ended(pid: int, seconds: int = 20) -> int:
    """Wait for a child; kill one that hangs, which is a failure."""
    signal.alarm(seconds)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(0)
    return status


@on_fake(memory_bytes=CARD)
def test_a_child_frees_what_it_inherited_while_the_parent_is_busy(driver: Driver) -> None:
    """Another thread may hold the feed's lock at any moment: that of the fork, for one."""
    with session(driver, "chained") as (_, machine):
        program = Program(machine)
        program.new(WORDS, 1)
        tell, untell = machine.allocator.on_alloc, machine.allocator.on_free
        address, ending = 1 << 30, threading.Event()  # of plain memory: nobody is told of it

        def allocate_and_free() -> None:
            while not ending.is_set():
                for _ in range(100):
                    tell(address, 512)
                    untell(address)

        busy = [threading.Thread(target=allocate_and_free) for _ in range(2)]
        for thread in busy:
            thread.start()
        try:
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    tell(address + 4096, 512)
                    untell(address + 4096)
                    os._exit(5)
                assert ended(pid) == 5
        finally:
            ending.set()
            for thread in busy:
                thread.join()
        program.check_all()


def _work(queue: object, program: Program) -> None:
    for tensor in list(program.tensors):  # copies die with the worker, the parent's do not
        program.drop(tensor)
    queue.put("done")  # type: ignore[attr-defined]


@on_fake(memory_bytes=CARD)
def test_workers_of_a_data_loader(driver: Driver) -> None:
    with session(driver, "chained") as (_, machine):
        program = Program(machine)
        kept = [program.new(WORDS, k) for k in range(10)]
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
        assert set(kept) <= set(program.tensors)
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_a_child_that_ends_as_a_program_does(driver: Driver) -> None:
    """Its exit handlers run, the session's among them, and close nothing of the parent's."""
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        training(program, 6, WORDS, 1)
        pid = os.fork()
        if pid == 0:
            sys.exit(6)
        assert ended(pid) == 6
        training(program, 6, WORDS, 1)
        assert backend.stats["failure"] == ""


@on_fake(memory_bytes=CARD)
def test_a_child_that_wants_a_session_of_its_own_is_told_why_not(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)
    with deepum.Session("chained", memory_limit="128MiB", backend="managed"):
        training(Program(machine), 4, WORDS, 1)
        pid = os.fork()
        if pid == 0:
            try:
                deepum.Session("chained", memory_limit="128MiB", backend="managed")
            except deepum.DeepUMError as error:
                print(error, flush=True)
                os._exit(0 if "start the process by the method 'spawn'" in str(error) else 3)
            os._exit(4)
        assert ended(pid) == 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("how", ["inner in outer", "the same twice"])
def test_nested_sessions(driver: Driver, how: str) -> None:
    """The inner one is refused; the outer one goes on, and another may follow it."""
    import deepum

    def opened(policy: str = "chained") -> deepum.Session:
        return deepum.Session(policy, memory_limit="128MiB", backend="managed")

    machine = machine_for(driver)
    with opened() as outer:
        program = Program(machine)
        training(program, 6, WORDS, 1)
        if how == "inner in outer":
            with pytest.raises(
                deepum.DeepUMError, match="a session is open in this process already"
            ):
                opened("noop")
        else:
            with outer:
                pass
            with pytest.raises(deepum.DeepUMError, match="has ended"), outer:
                pass
        program.check_all()
        if how == "inner in outer":
            assert outer.stats["policy"] == "chained"
            training(program, 6, WORDS, 1)
    with opened("arguments") as after:
        training(Program(machine), 6, WORDS, 1)
        assert after.stats["launches"] > 0

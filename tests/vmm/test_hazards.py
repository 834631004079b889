# SPDX-License-Identifier: Apache-2.0
"""What hangs or harms a program whose launches wait for memory, each provoked."""

import ctypes
import threading
from ctypes import c_uint

import numpy as np
import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import CudaError, Driver, Many, wait_until
from tests.managed.stand_in import OutOfMemoryError, Program, training

from .live import BUDGET, CARD, OPTIONS, WORDS, machine_for, session

MS = 1_000_000


def crowd(program: Program, count: int = 60) -> list[int]:
    """Make more tensors than the budget holds (75 MiB), so that the first ones have left."""
    return [program.new(WORDS, k) for k in range(count)]


@on_fake(memory_bytes=CARD, lazy_loading=1, timeout=60)
def test_kernels_are_loaded_before_a_gate_closes(driver: Driver) -> None:
    with session(driver) as (_, machine):
        driver.delay("exec:copy_end", 2 * MS, 2 * MS)
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                driver.enter()
                program = Program(machine, seed)
                tensors = crowd(program, 30)
                for k in range(8):  # new kernels, with their memory away
                    program.axpy(tensors[k], tensors[k + 15], 3)
                for k in range(8):
                    program.copy(tensors[k], tensors[k + 15])
                program.reduce(tensors[0])
                program.check_all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


@on_fake(memory_bytes=CARD, first_run_holds=1, timeout=60)
def test_no_copy_waits_for_a_kernel_behind_a_gate(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        tensors = crowd(program, 30)
        driver.delay("exec:copy_end", 2 * MS)
        # Two kernels never launched before, with their memory away: DLRM stood still at one.
        program.axpy(tensors[0], tensors[15], 3)
        program.axpy(tensors[1], tensors[16], 3)
        program.copy(tensors[2], tensors[17])
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
@pytest.mark.parametrize("ahead", [300])
def test_the_drivers_queue_does_not_fill_behind_a_gate(driver: Driver, ahead: int) -> None:
    with session(driver, ahead=ahead) as (_, machine):
        program = Program(machine)
        tensors = crowd(program)
        driver.delay("exec:copy_end", 20 * MS)
        for k in range(500):  # the driver takes about 340 launches
            program.axpy(tensors[k % 50], tensors[(k + 1) % 50], 3)
        driver.delay("exec:copy_end", 0)
        program.check_all()


FILLS = {
    "cuMemsetD32Async": (c_uint, True),
    "cuMemsetD8_v2": (ctypes.c_ubyte, False),
}


@on_fake(memory_bytes=CARD, timeout=60)
@pytest.mark.parametrize("name", FILLS)
def test_fills_find_their_memory(driver: Driver, name: str) -> None:
    kind, in_stream = FILLS[name]
    with session(driver) as (_, machine):
        program = Program(machine)
        tensors = crowd(program)
        driver.delay("exec:copy_end", MS)
        for tensor in tensors[:20]:
            array, right = program.tensors[tensor]
            if not in_stream:
                driver.sync(program.stream)
            count = array.count if "D32" in name else array.bytes
            driver.call(
                name, array.address, kind(7), count, *([program.stream] if in_stream else [])
            )
            right[:] = 7 if "D32" in name else 0x07070707
        driver.sync()
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
@pytest.mark.parametrize("form", ["cuMemcpyDtoD_v2", "cuMemcpyAsync"])
def test_copies_find_both_ends(driver: Driver, form: str) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        tensors = crowd(program)
        driver.delay("exec:copy_end", MS)
        for k in range(20):
            to, right = program.tensors[tensors[k]]
            source, other = program.tensors[tensors[k + 25]]
            stream = [program.stream] if "Async" in form else []
            if not stream:
                driver.sync(program.stream)
            driver.call(form, to.address, source.address, to.bytes, *stream)
            right[:] = other
        driver.sync()
        program.check_all()


def wide(program: Program, tensors: list[int]) -> None:
    """Launch a kernel that uses all of these tensors."""
    many = Many(add=1, used=len(tensors), each=program.tensors[tensors[0]][0].count)
    for k, tensor in enumerate(tensors):
        many.pointers[k] = program.tensors[tensor][0].address
    program.launch("add_many", many, 2)
    for tensor in tensors:
        program.tensors[tensor][1][:] += np.uint32(3)


@on_fake(memory_bytes=CARD, timeout=60)
@pytest.mark.parametrize("chunk", [2, 32])
def test_a_launch_larger_than_the_budget(driver: Driver, chunk: int) -> None:
    with session(driver, chunk_mib=chunk) as (backend, machine):
        program = Program(machine)
        tensors = [program.new(2 * WORDS, k) for k in range(30)]  # 75 MiB
        for _ in range(3):
            wide(program, tensors)
            program.axpy(tensors[0], tensors[1], 3)
        program.check_all()
        stats = backend.stats
    assert stats["lent_blocks"] > 0
    assert driver.get("host_frame_bytes") == 0


@on_fake(memory_bytes=CARD, host_vmm=0, timeout=60)
def test_a_launch_larger_than_the_budget_where_the_host_cannot_help(driver: Driver) -> None:
    from deepum.backends.vmm import VmmBackend

    machine = machine_for(driver)
    backend = VmmBackend(memory_limit=BUDGET, options=OPTIONS)
    backend.start()
    program = Program(machine)
    tensors = [program.new(2 * WORDS, k) for k in range(30)]
    with pytest.raises(CudaError):
        wide(program, tensors)
        program.check_all()
    backend.stop()
    assert "more memory at once than the budget" in backend.refused
    assert driver.get("lost") == 700


@on_fake(memory_bytes=CARD, timeout=60)
def test_memory_runs_out_before_anything_is_lost(driver: Driver) -> None:
    with session(driver, host=256 << 20) as (backend, machine):
        program = Program(machine)
        with pytest.raises(OutOfMemoryError):
            for k in range(300):
                program.new(WORDS, k)
        assert "raise host_limit" in backend.refused
        program.check_all()
        for tensor in list(program.tensors)[:30]:
            program.drop(tensor)
        training(program, 2, WORDS, 1)


@on_fake(memory_bytes=CARD, timeout=60)
def test_the_host_gives_less_than_it_seemed_to_have(driver: Driver) -> None:
    """Pinning fails: the program is told, nothing is lost in silence."""
    from deepum.backends.vmm import VmmBackend

    machine = machine_for(driver)
    backend = VmmBackend(memory_limit=BUDGET, options=OPTIONS)
    backend.start()
    driver.fail("cuMemHostAlloc", 1, 2, 1 << 40)
    driver.fail("cuMemHostRegister", 1, 2, 1 << 40)
    program = Program(machine)
    with pytest.raises(CudaError):
        crowd(program)
        program.check_all()
    backend.stop()
    assert "raise host_limit" in backend.refused


@on_fake(memory_bytes=CARD, timeout=60)
def test_the_driver_pins_where_memory_cannot_be_registered(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        driver.fail("cuMemHostRegister", 1, 801, 1 << 40)
        program = Program(machine)
        crowd(program)
        program.check_all()
        assert driver.calls("cuMemHostAlloc") > 0
        assert backend.stats["pinned_bytes"] > 0


@on_fake(memory_bytes=CARD, timeout=60)
def test_host_memory_goes_back_when_the_session_ends(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        crowd(program)
        assert driver.calls("cuMemHostRegister") > 0
        program.check_all()
        for tensor in list(program.tensors):
            program.drop(tensor)
        slabs = backend.memory.slabs
        assert slabs.counts[1] * slabs.size == backend.stats["pinned_bytes"] > 0
    assert slabs.counts == (0, 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("deepum")]


@on_fake(memory_bytes=CARD, timeout=60)
def test_a_captured_graph_finds_its_memory_when_it_runs(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        kept = crowd(program, 8)
        driver.sync()
        driver.call("cuStreamBeginCapture_v2", program.stream, c_uint(0))
        for k in range(7):
            program.axpy(kept[k], kept[k + 1], 3)
        graph, runs = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamEndCapture", program.stream, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(runs), graph, ctypes.c_ulonglong(0))
        first = True
        for _ in range(3):
            others = crowd(program, 40)  # what the graph uses has to leave for them
            driver.call("cuGraphLaunch", runs, program.stream)
            for k in range(7 if not first else 0):
                right, other = program.tensors[kept[k]][1], program.tensors[kept[k + 1]][1]
                right += np.uint32(3) * other
            first = False
            for other in others:
                program.drop(other)
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
def test_moves_do_not_spoil_a_capture(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program, other = Program(machine), Program(machine, 1)
        tensors = crowd(program, 30)
        driver.delay("exec:copy_end", 5 * MS)
        program.axpy(tensors[0], tensors[1], 3)
        program.axpy(tensors[10], tensors[11], 3)
        moved = backend.stats["bytes_in"]
        driver.call("cuStreamBeginCapture_v2", other.stream, c_uint(0))  # no thread may wait
        other.launch("nothing", 1)
        program.axpy(tensors[20], tensors[21], 3)
        wait_until(lambda: backend.stats["bytes_in"] > moved)
        graph = ctypes.c_void_p()
        driver.call("cuStreamEndCapture", other.stream, ctypes.byref(graph))
        program.check_all()


@on_fake(memory_bytes=CARD, timeout=60)
def test_a_call_that_waits_for_the_device_sees_the_gates_through(driver: Driver) -> None:
    with session(driver) as (_, machine):
        program = Program(machine)
        tensors = crowd(program)
        driver.delay("exec:copy_end", 5 * MS)
        ending = threading.Event()
        errors: list[BaseException] = []

        def allocate() -> None:  # holds the driver's lock while the device is busy
            try:
                driver.enter()
                while not ending.is_set():
                    driver.free(driver.memory(1000))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=allocate)
        thread.start()
        for k in range(60):
            program.axpy(tensors[k % 50], tensors[(k + 7) % 50], 3)
        program.check_all()
        ending.set()
        thread.join()
        assert not errors

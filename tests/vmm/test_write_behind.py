# SPDX-License-Identifier: Apache-2.0
"""What is copied to the host before it has to leave, and what of it is used."""

import ctypes
import threading

import numpy as np
import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import KERNEL, Driver, wait_until
from tests.managed.stand_in import Program, training

from .digests import model
from .live import BUDGET, CARD, HOST, LAYERS, WORDS, machine_for, session

MS = 1_000_000
SIZE = 2 << 20


@on_fake(memory_bytes=CARD)
def test_the_fakes_kernel_does_what_the_real_one_does(driver: Driver) -> None:
    machine_for(driver)
    from deepum._core.cuda_copier import Copier
    from deepum.cuda import copier as kernel

    stream = driver.stream()
    copier = Copier(kernel.PTX.encode(), kernel.NAME.encode(), 4, 8, 16, 512, 2)
    assert copier.begin(0, stream.value)
    array = driver.managed(SIZE // 4)
    words = np.frombuffer(array.words, dtype=np.uint64)
    words[:] = np.random.default_rng(1).integers(0, 2**64, len(words), dtype=np.uint64)
    assert copier.run(array.address, SIZE, 0, True, stream.value) == model(words)
    host = driver.pinned(SIZE // 4)
    assert copier.run(array.address, SIZE, host.address, True, stream.value) == model(words)
    assert bytes(host.words) == words.tobytes()
    words[:] = ~words
    assert copier.run(array.address, SIZE, host.address, False, stream.value) is None
    assert bytes(host.words) == words.tobytes()
    copier.end()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", ["chained", "noop"])
def test_weights_that_are_only_read_are_not_copied_out_again(driver: Driver, policy: str) -> None:
    with session(driver, policy) as (backend, machine):
        program = Program(machine)
        weights = [program.new(WORDS, k + 1) for k in range(LAYERS * 2)]
        total = program.new(WORDS, 0)
        for _ in range(4):
            for weight in weights:
                program.axpy(total, weight, 3)
        program.check_all()
        stats = backend.stats
    # Twice the weights' worth has been brought in over and over; it left the device once.
    assert stats["bytes_spared"] + stats["bytes_dropped"] > 2 * LAYERS * WORDS * 4
    assert stats["bytes_out"] < 3 * LAYERS * WORDS * 4


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("what", ["exec:copy", "exec:kernel_end", "exec:copy_end"])
def test_training_is_right_while_copies_are_torn(driver: Driver, what: str) -> None:
    with session(driver, delay_us=100) as (backend, machine):
        driver.delay(what, 0, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 4)
        assert backend.stats["bytes_saved"] > 0


@on_fake(memory_bytes=CARD)
def test_what_is_copied_ahead_leaves_without_a_copy(driver: Driver) -> None:
    """An optimizer's state is written once a step, and then other memory is needed."""
    with session(driver, "arguments") as (backend, machine):
        program = Program(machine)
        state = [program.new(WORDS, k) for k in range(2 * LAYERS)]
        change = program.new(WORDS, 5)
        for _ in range(6):
            for one in state:
                program.axpy(one, change, 1)
            driver.sync()
            backend.step()
        program.check_all()
        stats = backend.stats
    assert stats["bytes_saved"] > 0
    assert stats["bytes_dropped"] + stats["bytes_spared"] > 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("option", ["write_behind", "copy_kernel"])
def test_it_can_be_switched_off(driver: Driver, option: str) -> None:
    with session(driver, **{option: False}) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_saved"] == 0
    assert option == "write_behind" or stats["bytes_spared"] == 0
    assert stats["bytes_out"] > 0


@on_fake(memory_bytes=CARD)
def test_training_goes_on_where_the_kernel_does_not_run(driver: Driver) -> None:
    """Its stream waits behind a gate of the program: what it does then, it does too late."""
    loose, late = threading.Event(), []
    loose.set()

    def run(params: int, _launch: int) -> None:
        address, pairs, copy, sums = (ctypes.c_uint64 * 4).from_address(params)
        if not loose.is_set():
            loose.wait(60)
            late.append(copy)
            if copy:
                ctypes.memset(copy, 0xEE, 16 * pairs)
        elif copy:
            ctypes.memmove(copy, address, 16 * pairs)
        if not sums:
            return
        words = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * pairs)).from_address(address))
        (ctypes.c_uint64 * 2).from_address(sums)[:] = model(words)

    machine = machine_for(driver)
    body = KERNEL(run)
    four = ctypes.c_uint32 * 4
    at, sizes = four(0, 8, 16, 24), four(8, 8, 8, 8)
    driver.library.fake_register_kernel(b"deepum_copy", body, at, sizes, 4)
    with session(driver, machine=machine) as (backend, _):
        program = Program(machine)
        state = [program.new(WORDS, k) for k in range(2 * LAYERS)]

        def step() -> None:
            for k, one in enumerate(state):
                program.axpy(one, state[k - 1], 1)
            driver.call("cuStreamSynchronize", program.stream)  # the device waits for the kernel too
            backend.step()

        wait_until(lambda: step() or backend.stats["bytes_saved"] > 0)
        loose.clear()
        wait_until(lambda: step() or not backend.copier.works)
        step()
        assert not late
        loose.set()
        step()
        program.check_all()
    assert late


@on_fake(memory_bytes=CARD)
def test_without_the_kernel_all_is_copied_when_it_leaves(driver: Driver) -> None:
    machine = machine_for(driver)
    driver.fail("cuModuleLoadData", 1, 801, 1)
    with session(driver, machine=machine) as (backend, _):
        training(Program(machine), LAYERS, WORDS, 2)
        assert backend.stats["bytes_saved"] == 0
        assert backend.stats["bytes_out"] > 0


@on_fake(memory_bytes=CARD)
def test_a_digest_that_fails_while_training_ends_no_more_than_digests(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        backend.copier.give_up()
        training(program, LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
def test_the_hosts_room_is_for_what_has_to_leave(driver: Driver) -> None:
    """With host memory for just that, and none for copies of what stays."""
    need = 2 * LAYERS * WORDS * 4 - BUDGET
    host = (need * 5 // 4 // HOST_SLAB + 1) * HOST_SLAB
    with session(driver, host=min(host, HOST)) as (_, machine):
        training(Program(machine), LAYERS, WORDS, 3)


HOST_SLAB = 256 << 20


@on_fake(memory_bytes=CARD)
def test_a_touch_while_it_is_copied_makes_the_copy_void(driver: Driver) -> None:
    with session(driver, "noop") as (backend, machine):
        program = Program(machine)
        rest = [program.new(WORDS, k) for k in range(LAYERS)]
        one = program.new(WORDS, 1)
        driver.sync()
        saved = backend.stats["bytes_saved"]
        driver.delay("exec:copy", 20 * MS)
        program.axpy(one, rest[-1], 1)
        wait_until(lambda: driver.get("kernels") > 0)
        for _ in range(20):
            program.axpy(one, rest[-1], 1)
        driver.delay("exec:copy", 0)
        for other in rest:
            program.axpy(other, one, 2)
        program.check_all()
        assert backend.stats["bytes_saved"] >= saved

# SPDX-License-Identifier: Apache-2.0
"""What has not changed since the host had it leaves the device without a copy."""

import ctypes
import threading

import numpy as np
import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import KERNEL, Driver, wait_until
from tests.managed.stand_in import Program, training

from .digests import model
from .live import CARD, LAYERS, WORDS, machine_for, session
from .test_hazards import wide

MS = 1_000_000
SIZE = 2 << 20
WEIGHTS = 2 * LAYERS * WORDS * 4


def read_over_and_over(program: Program, times: int) -> None:
    """Add weights of twice the budget to one tensor, again and again."""
    weights = [program.new(WORDS, k + 1) for k in range(2 * LAYERS)]
    total = program.new(WORDS, 0)
    for _ in range(times):
        for weight in weights:
            program.axpy(total, weight, 3)
    program.check_all()


@on_fake(memory_bytes=CARD)
def test_the_fakes_kernel_does_what_the_real_one_does(driver: Driver) -> None:
    machine_for(driver)
    from deepum._core.cuda_digest import Digester
    from deepum.cuda import digest

    stream = driver.stream()
    digester = Digester(digest.PTX.encode(), digest.NAME.encode(), 16, 512, 2)
    assert digester.begin(stream.value)
    array = driver.managed(SIZE // 4)
    words = np.frombuffer(array.words, dtype=np.uint64)
    words[:] = np.random.default_rng(1).integers(0, 2**64, len(words), dtype=np.uint64)
    assert digester.of(array.address, SIZE, stream.value) == model(words)
    digester.end()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", ["chained", "noop"])
def test_weights_that_are_only_read_are_copied_out_once(driver: Driver, policy: str) -> None:
    with session(driver, policy, keep_copies=True) as (backend, machine):
        read_over_and_over(Program(machine), 6)
        stats = backend.stats
    assert stats["bytes_in"] > 2 * WEIGHTS
    assert stats["bytes_same"] > WEIGHTS
    assert stats["bytes_out"] < 2 * WEIGHTS


@on_fake(memory_bytes=CARD)
def test_it_can_be_switched_off(driver: Driver) -> None:
    with session(driver, compare=False, keep_copies=True) as (backend, machine):
        read_over_and_over(Program(machine), 4)
        stats = backend.stats
    assert stats["bytes_same"] == 0
    assert stats["bytes_out"] > WEIGHTS


@on_fake(memory_bytes=CARD)
def test_a_word_that_changes_is_seen(driver: Driver) -> None:
    with session(driver, "noop", keep_copies=True) as (backend, machine):
        program = Program(machine)
        weights = [program.new(WORDS, k + 1) for k in range(2 * LAYERS)]
        one, total = program.new(1, 1), program.new(WORDS, 0)
        for _ in range(4):
            for k, weight in enumerate(weights):
                if k % 2:
                    program.axpy(weight, one, 1)
                else:
                    program.axpy(total, weight, 1)
        program.check_all()
        assert backend.stats["bytes_same"] > 0


@on_fake(memory_bytes=CARD, timeout=60)
def test_what_a_kernel_wrote_in_host_memory_is_not_taken_for_what_was_there(driver: Driver) -> None:
    with session(driver, "noop", keep_copies=True) as (backend, machine):
        program = Program(machine)
        tensors = [program.new(2 * WORDS, k) for k in range(30)]  # 75 MiB
        back, total = program.new(2 * WORDS, -3 & 0xFFFFFFFF), program.new(2 * WORDS, 0)
        for tensor in tensors * 2:
            program.axpy(total, tensor, 1)
        assert backend.stats["bytes_same"] > 0
        wide(program, tensors)  # adds 3, and most of them are in host memory meanwhile
        driver.sync()
        assert backend.stats["lent_blocks"] > 0
        for tensor in tensors:  # as it was when it last left
            program.axpy(tensor, back, 1)
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_what_always_changes_is_seldom_looked_at(driver: Driver) -> None:
    with session(driver, "noop", keep_copies=True) as (backend, machine):
        program = Program(machine)
        state = [program.new(WORDS, k) for k in range(2 * LAYERS)]
        change = program.new(WORDS, 1)
        for _ in range(16):
            for tensor in state:
                program.axpy(tensor, change, 1)
        program.check_all()
        stats = backend.stats
        digests = driver.calls("cuLaunchKernel") - stats["launches"]
    assert stats["moves_out"] > 150
    # One of what is new, one that finds it changed, and then one in eight and another.
    assert 20 < digests < stats["moves_out"] // 2


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("what", ["exec:copy", "exec:kernel", "cuLaunchKernel", "cuMemUnmap"])
def test_training_is_right_whatever_lags(driver: Driver, what: str) -> None:
    with session(driver, keep_copies=True, delay_us=100) as (_, machine):
        driver.delay(what, 0, MS)
        training(Program(machine), LAYERS, WORDS, 3)


@on_fake(memory_bytes=CARD)
def test_without_the_kernel_all_is_copied(driver: Driver) -> None:
    machine = machine_for(driver)
    driver.fail("cuModuleLoadData", 1, 801, 1)
    with session(driver, machine=machine, keep_copies=True) as (backend, _):
        read_over_and_over(Program(machine), 3)
        assert backend.stats["bytes_same"] == 0
        assert backend.stats["bytes_out"] > 0


@on_fake(memory_bytes=CARD)
def test_without_room_to_keep_copies_what_leaves_has_it(driver: Driver) -> None:
    with session(driver, host=256 << 20) as (backend, machine):
        read_over_and_over(Program(machine), 4)
        training(Program(machine), LAYERS, WORDS, 2)
        assert backend.stats["moves_refused"] == 0


@on_fake(memory_bytes=CARD)
def test_what_came_in_vain_still_has_its_place(driver: Driver) -> None:
    """Brought in an order that nobody foresees, much leaves as it came; the host is nearly full."""
    with session(driver, host=256 << 20, chunk_mib=4) as (backend, machine):
        program = Program(machine)
        weights = [program.new(SIZE // 2, k + 1) for k in range(63)]  # of 4 MiB
        total = program.new(SIZE // 2, 0)
        for _ in range(2):
            for weight in weights:
                program.axpy(total, weight, 1)
        for k in np.random.default_rng(1).integers(0, len(weights), 400):
            program.axpy(total, weights[k], 1)
        stats = backend.stats
        program.check_all()
    assert stats["wasted"] > 0


@on_fake(memory_bytes=CARD)
def test_a_digest_that_does_not_end_is_not_waited_for(driver: Driver) -> None:
    """Its stream waits behind a gate of the program, and it runs when that opens."""
    loose, late = threading.Event(), []
    loose.set()

    def run(params: int, _launch: int) -> None:
        address, pairs, sums = (ctypes.c_uint64 * 3).from_address(params)
        if not loose.is_set():
            loose.wait(60)
            late.append(address)
        words = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * pairs)).from_address(address))
        (ctypes.c_uint64 * 2).from_address(sums)[:] = model(words)

    machine = machine_for(driver)
    body = KERNEL(run)
    three = ctypes.c_uint32 * 3
    at, sizes = three(0, 8, 16), three(8, 8, 8)
    driver.library.fake_register_kernel(b"deepum_digest", body, at, sizes, 3)
    with session(driver, machine=machine, keep_copies=True, chunk_mib=4) as (backend, _):
        program = Program(machine)
        state = [program.new(SIZE // 2, k) for k in range(24)]  # of 4 MiB: two frames' worth

        def step() -> None:
            for k, one in enumerate(state):
                program.axpy(one, state[k - 1], 1)
            driver.sync(program.stream)  # the device as a whole waits for the kernel

        step()
        assert backend.digester.works
        loose.clear()
        wait_until(lambda: step() or not backend.digester.works)
        # Their frames are used again, but stay in one piece while the digests may read them.
        state += [program.new(WORDS, k) for k in range(16)]
        step()
        # Frames of another size, as many as there may be: those that stay are beyond the budget.
        small = [program.new(SIZE // 4, k) for k in range(32)]
        for k, one in enumerate(small):
            program.axpy(one, small[k - 1], 1)
        driver.sync(program.stream)
        assert not late
        loose.set()
        step()
        program.check_all()
    assert late

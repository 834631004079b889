# SPDX-License-Identifier: Apache-2.0
"""What people report of allocators and prefetching, as far as the stand-in driver can show it.

The backend is the real one; what stands in for the driver keeps data, poisons what is discarded,
and counts. Each test names the report that it answers.
"""

import gc
import random
import threading

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.live import BUDGET, CARD, WORDS, machine_for, session
from tests.managed.stand_in import BLOCK, SEGMENT, Program, training

MIB = 1 << 20
ALWAYS = 1 << 40


@on_fake(memory_bytes=CARD)
def test_more_is_allocated_than_the_limit(driver: Driver) -> None:
    """Reviewers of unified memory asked what is reported when more is allocated than there is.

    https://github.com/pytorch/pytorch/pull/106200
    """
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        for k in range(120):
            program.new(WORDS, k)
        program.check_all()
        stats = backend.stats
        assert stats["managed_bytes"] >= 120 * WORDS * 4 > 2 * BUDGET
        assert stats["resident_blocks"] <= stats["budget_blocks"] == BUDGET // BLOCK


@on_fake(memory_bytes=CARD)
def test_managed_memory_is_given_back(driver: Driver) -> None:
    """empty_cache gave nothing of a pool back; what it does to PyTorch's pools is in test_pool.py.

    https://github.com/pytorch/pytorch/issues/145168
    """
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        tensors = [program.new(WORDS, k) for k in range(60)]
        assert backend.stats["managed_bytes"] >= 60 * WORDS * 4
        for tensor in tensors:
            program.drop(tensor)
        machine.torch._C._cuda_emptyCache()  # as torch.cuda.empty_cache does
        assert backend.stats["managed_bytes"] == driver.get("managed_bytes") == 0


@on_fake(memory_bytes=CARD)
def test_a_tensor_outlives_its_session_and_is_freed_once(driver: Driver) -> None:
    """Memory of a pool was freed by the wrong function, or through a closure that was gone.

    https://github.com/pytorch/pytorch/issues/146431
    https://github.com/pytorch/pytorch/pull/188170
    """
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        kept = [program.new(WORDS, k) for k in range(12)]
        segments = len(machine.allocator.segments)
    del backend
    gc.collect()
    program.check_all()
    machine.allocator.empty()  # what lives stays
    assert driver.get("managed_bytes") == segments * SEGMENT
    before = driver.calls("cuMemFree")
    for tensor in kept:
        program.drop(tensor)
    driver.sync()
    gc.collect()
    machine.allocator.empty()
    machine.allocator.empty()
    assert driver.calls("cuMemFree") - before == segments
    assert driver.get("managed_bytes") == 0


@on_fake(memory_bytes=CARD)
def test_every_threads_allocations_are_managed(driver: Driver) -> None:
    """A pool covered the calling thread only, so what the backward pass allocated fell out.

    https://github.com/pytorch/pytorch/issues/152861
    """
    with session(driver, "chained") as (backend, machine):
        programs = [Program(machine, seed) for seed in range(3)]

        def work(program: Program) -> None:
            driver.enter()
            for k in range(12):
                program.new(WORDS, k)

        threads = [threading.Thread(target=work, args=(program,)) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = sum(size for size, _ in machine.allocator.segments.values())
        assert backend.stats["managed_bytes"] == driver.get("managed_bytes") == held
        assert held >= 36 * WORDS * 4
        for program in programs:
            program.check_all()


@on_fake(memory_bytes=CARD)
def test_sizes_that_change_in_every_step(driver: Driver) -> None:
    """A managed pool grew without end over 500 frames of varying size.

    https://github.com/rapidsai/rmm/issues/1421
    """
    numbers, most = random.Random(1), []
    with session(driver, "chained") as (backend, machine):
        allocator, stream = machine.allocator, driver.stream()
        for step in range(10_000):
            pair = [allocator.alloc(numbers.randrange(1, MIB), stream) for _ in range(2)]
            if step % 50 == 0:
                driver.launch("fill", pair[0].address, pair[0].count, step, stream=stream)
                most.append(backend.stats["managed_bytes"])
            for array in pair:
                allocator.give_back(array)
        driver.sync()
        assert max(most[100:]) <= max(most[:100])
        assert max(most) <= 4 * SEGMENT
        assert backend.stats["table_bytes"] < 64 * MIB


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("code", [101, 1])  # invalid device, invalid value
def test_a_prefetch_that_is_refused_is_no_error_of_the_program(driver: Driver, code: int) -> None:
    """A prefetch that the driver refused became a hard error, and a sticky one.

    https://github.com/rapidsai/rmm/issues/1648
    """
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        for k in range(30):
            program.new(WORDS, k)
        driver.fail("cuMemPrefetchAsync", 1, code, ALWAYS)
        training(program, 24, WORDS, 2)  # checks its results
        assert backend.stats["move_errors"] > 0
        driver.fail("cuMemPrefetchAsync", ALWAYS, 0, 0)
        driver.sync()  # which would return an error that was left behind
        program.check_all()


class StopError(Exception):
    """In the middle of a forward pass."""


@on_fake(memory_bytes=CARD)
def test_a_forward_pass_without_a_backward_one(driver: Driver) -> None:
    """The tracker of offloaded activations was not cleared when no backward pass followed.

    https://github.com/pytorch/torchtune/issues/2709
    """
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        weights = [program.new(WORDS, k) for k in range(24)]

        def forward(stop_at: int = 99) -> list[int]:
            activations = [program.new(WORDS, 1)]
            try:
                for k, weight in enumerate(weights):
                    if k == stop_at:
                        raise StopError
                    activations.append(program.new(WORDS, 1))
                    program.axpy(activations[-1], activations[-2], 3)
                    program.axpy(activations[-1], weight, 2)
            except StopError:
                for tensor in activations:
                    program.drop(tensor)
                raise
            return activations

        for round_ in range(4):
            if round_ % 2:
                with pytest.raises(StopError):
                    forward(7)
            for tensor in forward():
                program.drop(tensor)
        program.check_all()
        training(program, 12, WORDS, 1)
        assert backend.stats["failure"] == ""


@on_fake(memory_bytes=CARD)
def test_every_depth_with_every_number_of_layers(driver: Driver) -> None:
    """A ring of prefetch slots overwrote live data where the layers were no multiple of the depth.

    https://github.com/vllm-project/vllm/pull/54975
    """
    from deepum.backends.managed import ManagedBackend

    machine = machine_for(driver)
    for depth in (2, 5):
        for layers in (3, 7):
            backend = ManagedBackend("chained", depth=depth, memory_limit=BUDGET)
            backend.start()
            program = Program(machine)
            training(program, layers, (90 << 20) // 4 // layers, 2)
            program.check_all()
            backend.stop()
            assert backend.stats["failure"] == ""
            assert backend.stats["bytes_out"] > 0, (depth, layers)
            for tensor in list(program.tensors):
                program.drop(tensor)
            driver.sync()
            machine.allocator.empty()
    assert driver.get("discarded_reads") == 0

# SPDX-License-Identifier: Apache-2.0
"""What is moved, and whether the accounts agree with the driver's own."""

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import PAGE, Driver, wait_until

from .live import BUDGET, CARD, LAYERS, WORDS, session
from .stand_in import BLOCK, SEGMENT, Program, training

FORESEEING = ("chained", "arguments")


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", [*FORESEEING, "single-level", "noop"])
def test_the_accounts_agree_with_the_driver(driver: Driver, policy: str) -> None:
    with session(driver, policy) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
    stats = backend.stats
    assert stats["move_errors"] == 0
    # The driver moves only pages that hold something; the mover counts whole blocks.
    assert 0 < driver.get("bytes_out_prefetch") <= stats["bytes_out"]
    assert driver.get("bytes_in_prefetch") <= stats["bytes_in"]
    assert stats["bytes_dropped"] == driver.get("bytes_discarded")
    assert stats["moves_in"] <= stats["bytes_in"] // BLOCK
    if policy in FORESEEING:
        assert stats["bytes_in"] > stats["moves_in"] * BLOCK  # neighbours went together
        assert stats["bytes_dropped"] > 0
    if policy == "noop":
        assert stats["bytes_in"] == stats["bytes_dropped"] == 0
        assert stats["faults"] > 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", FORESEEING)
def test_launches_that_name_their_memory_never_fault(driver: Driver, policy: str) -> None:
    with session(driver, policy) as (_, machine):
        training(Program(machine), LAYERS, WORDS, 3)
    # Launches submitted before the conductor has seen that memory is short are not gated.
    assert driver.get("faults") <= 2 * SEGMENT // PAGE
    assert driver.get("bytes_in_fault") == 0
    assert driver.get("bytes_out_evicted") == 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("without", [("invalidate",), ()])
@pytest.mark.parametrize("policy", FORESEEING)
def test_the_resident_set_stays_in_the_budget(
    driver: Driver, policy: str, without: tuple[str, ...]
) -> None:
    with session(driver, policy, without=without) as (backend, machine):
        driver.delay("exec:kernel", 0, 1_000_000)
        training(Program(machine), LAYERS, WORDS, 3)
    over = 4
    if not without:
        # A drop gives its frame free when it is decided. Until it is done a batch may be over, and
        # what the program took again before it was done is over until it is used.
        over += 16 + backend.stats["drops_refused"]
    assert driver.get("peak_resident_bytes") <= BUDGET + over * BLOCK


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", FORESEEING)
def test_a_program_that_fits_is_left_alone(driver: Driver, policy: str) -> None:
    with session(driver, policy, limit=4 * BUDGET) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
    assert backend.stats["bytes_in"] == backend.stats["bytes_out"] == 0
    assert driver.get("faults") == driver.get("bytes_discarded") == 0
    assert driver.calls("cuStreamWaitValue32") == 0


@on_fake(memory_bytes=CARD)
def test_dead_memory_is_dropped_and_not_moved(driver: Driver) -> None:
    moved = {}
    for without in ((), ("invalidate",)):
        driver.reset()
        with session(driver, "chained", without=without) as (backend, machine):
            training(Program(machine), LAYERS, WORDS, 3)
            machine.allocator.empty()
        moved[without] = backend.stats["bytes_out"], driver.get("bytes_discarded")
    (out, dropped), (out_without, dropped_without) = moved.values()
    assert dropped > 0
    assert dropped_without == 0
    assert out < out_without


@on_fake(memory_bytes=CARD)
def test_a_fault_is_answered_with_room(driver: Driver) -> None:
    """Memory that no launch names comes in by faults, and the budget still holds in the end."""
    with session(driver, "single-level", strict=True) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
        assert backend.stats["faults"] > 0
    assert driver.get("peak_resident_bytes") <= BUDGET + 24 * BLOCK


@on_fake(memory_bytes=CARD)
def test_a_graph_keeps_what_it_was_captured_with(driver: Driver) -> None:
    """What a capture frees, the graph's launches still write."""
    from ctypes import byref, c_int, c_uint64, c_void_p

    with session(driver, "chained") as (_, machine):
        program, graph, launchable = Program(machine), c_void_p(), c_void_p()
        total, scratch = program.new(WORDS, 0), program.new(WORDS, 1)
        others = [program.new(WORDS, k) for k in range(3)]
        driver.sync()
        driver.call("cuStreamBeginCapture_v2", program.stream, c_int(1))
        address = program.tensors[scratch][0].address
        program.launch("fill", address, WORDS, 5)
        program.launch("axpy", program.tensors[total][0].address, address, WORDS, 2)
        machine.allocator.give_back(program.tensors.pop(scratch)[0], graph=True)
        driver.call("cuStreamEndCapture", program.stream, byref(graph))
        driver.call("cuGraphInstantiateWithFlags", byref(launchable), graph, c_uint64(0))
        for _ in range(3):
            others += [program.new(WORDS, k) for k in range(20)]
            for other in others[20:]:
                program.axpy(other, others[0], 1)
            while len(others) > 10:
                program.drop(others.pop())
            driver.call("cuGraphLaunch", launchable, program.stream)
            program.tensors[total][1][:] += 10
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_moves_do_not_spoil_a_capture(driver: Driver) -> None:
    from ctypes import byref, c_int, c_void_p

    with session(driver, "chained") as (backend, machine):
        program, other, graph = Program(machine), Program(machine, 1), c_void_p()
        tensors = [program.new(WORDS, k) for k in range(80)]
        driver.delay("exec:prefetch", 5_000_000)
        for k in range(10):
            program.axpy(tensors[k], tensors[k + 1], 3)
        driver.call("cuStreamBeginCapture_v2", other.stream, c_int(0))  # no thread may wait
        moved = backend.stats["bytes_in"] + backend.stats["bytes_out"]
        other.launch("nothing", 1)
        program.axpy(tensors[40], tensors[41], 3)
        wait_until(lambda: backend.stats["bytes_in"] + backend.stats["bytes_out"] > moved)
        driver.call("cuStreamEndCapture", other.stream, byref(graph))
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_segments_that_nobody_uses_can_be_given_back(driver: Driver) -> None:
    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        kept = program.new(WORDS, 4)
        for tensor in [program.new(WORDS, k) for k in range(60)]:
            program.drop(tensor)
        managed = driver.get("managed_bytes")
        assert backend.stats["managed_bytes"] == managed > 100 << 20
        machine.torch._C._cuda_emptyCache()
        assert driver.get("managed_bytes") < managed // 4
        assert backend.stats["managed_bytes"] == driver.get("managed_bytes")
        program.check(kept)
        training(program, LAYERS, WORDS, 2)  # addresses that come again

# SPDX-License-Identifier: Apache-2.0
"""Whatever the policy does and however late moves are, the program computes the same."""

import threading
import warnings

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver, Lists
from tests.managed.stand_in import Program, training
from tests.managed.test_data import churn, hostile

from .live import CARD, LAYERS, POLICIES, WORDS, session

MS = 1_000_000


@on_fake(memory_bytes=CARD)
def test_what_fits_never_moves_and_never_waits(driver: Driver) -> None:
    with session(driver, limit=128 << 20) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_in"] == stats["bytes_out"] == stats["bytes_dropped"] == 0
    assert driver.calls("cuStreamWaitValue32") == 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", ["chained", "noop"])
def test_training_is_right_while_kernels_lag(driver: Driver, policy: str) -> None:
    """The program is far ahead: what it frees is still to be read by kernels that wait."""
    with session(driver, policy) as (backend, machine):
        driver.delay("exec:kernel_end", 200_000, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_out"] > 0
    assert stats["bytes_in"] > 0
    if policy != "noop":
        assert stats["bytes_dropped"] > 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize(
    ("work", "policy"),
    [
        ("exec:copy", "chained"),
        ("exec:copy_end", "noop"),
        ("exec:copy_end", "single-level"),
        ("cuMemMap", "arguments"),
        ("cuMemUnmap", "chained"),
    ],
)
def test_training_is_right_while_moves_lag(driver: Driver, work: str, policy: str) -> None:
    with session(driver, policy, delay_us=300) as (_, machine):
        driver.delay(work, 0, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("seed", range(2))
def test_training_is_right_when_every_call_takes_its_time(driver: Driver, seed: int) -> None:
    driver.set("seed", seed + 1)
    with session(driver, POLICIES[seed], delay_us=300) as (_, machine):
        driver.delay("*", 0, MS // 2)
        driver.delay("exec:kernel_end", 0, MS)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("form", ["params", "extra", "ex", "kernel"])
def test_every_form_of_launch_is_seen_with_its_memory(driver: Driver, form: str) -> None:
    with session(driver) as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 2, form=form)
        stats = backend.stats
    assert stats["launches"] >= 2 * 4 * LAYERS


@on_fake(memory_bytes=CARD)
def test_what_an_optimizers_lists_have_left_over_is_not_named(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program, lists = Program(machine), Lists()
        pairs = [(program.new(WORDS, k), program.new(WORDS, 100 + k)) for k in range(15)]
        for k, (to, source) in enumerate(pairs):  # more than there is memory, all together
            lists.addresses[0][k] = program.tensors[to][0].address
            lists.addresses[1][k] = program.tensors[source][0].address
        for _ in range(3):
            for k in range(0, 14, 2):
                program.add_lists(lists, pairs[k : k + 2])
        program.check_all()
        assert backend.stats["lent_blocks"] == 0


@on_fake(memory_bytes=CARD)
def test_the_default_stream_is_followed_too(driver: Driver) -> None:
    with session(driver) as (_, machine):
        driver.delay("exec:kernel_end", 0, MS)
        program = Program(machine)
        program.stream.value = 0
        training(program, LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize(("seed", "policy"), [*enumerate(POLICIES)])
def test_random_programs_are_right(driver: Driver, seed: int, policy: str) -> None:
    with session(driver, policy, delay_us=200) as (_, machine):
        driver.delay("exec:kernel_end", 0, MS // 2)
        churn(Program(machine, seed), 300, WORDS)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("chunk", [16, 64])
def test_random_programs_are_right_in_other_chunks(driver: Driver, chunk: int) -> None:
    with session(driver, chunk_mib=chunk) as (_, machine):
        driver.delay("exec:kernel_end", 0, MS // 2)
        churn(Program(machine, chunk), 200, WORDS)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", ["chained", "noop"])
def test_threads_and_streams_side_by_side(driver: Driver, policy: str) -> None:
    errors: list[BaseException] = []
    with session(driver, policy, delay_us=200) as (_, machine):
        driver.delay("exec:kernel_end", 0, MS // 2)
        driver.delay("exec:copy_end", 0, MS // 2)

        def work(seed: int) -> None:
            try:
                driver.enter()
                churn(Program(machine, seed), 80, WORDS)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("how", ["evicts", "prefetches", "both"])
def test_a_hostile_policy_costs_time_alone(driver: Driver, how: str) -> None:
    with session(driver, hostile(how)) as (_, machine):
        driver.delay("exec:kernel_end", 0, MS // 2)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
def test_a_policy_that_raises_is_set_aside(driver: Driver) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(driver, hostile("raises")) as (backend, machine):
            training(Program(machine), LAYERS, WORDS, 2)
            assert "no more" in backend.set_aside
    assert sum("no more" in str(one.message) for one in caught) == 1


@on_fake(memory_bytes=CARD)
def test_policies_are_swapped_while_the_program_runs(driver: Driver) -> None:
    with session(driver) as (backend, machine):
        program = Program(machine, 3)
        for policy in ("noop", "arguments", "single-level", "chained"):
            backend.policy = policy
            churn(program, 60, WORDS)
        assert backend.stats["policy"] == "chained"


@on_fake(memory_bytes=CARD)
def test_from_all_on_the_device_to_too_much_and_back(driver: Driver) -> None:
    """Launches that were made without a gate still run when the first chunk has to leave."""
    with session(driver) as (backend, machine):
        program = Program(machine)
        for _ in range(2):
            driver.delay("exec:kernel_end", MS, 2 * MS)
            few = [program.new(WORDS, k) for k in range(12)]
            for k in range(11):
                program.axpy(few[k], few[k + 1], 3)
            more = [program.new(2 * WORDS, k) for k in range(30)]  # 75 MiB: too much
            for k in range(11):
                program.axpy(few[k], more[k], 5)
            driver.delay("exec:kernel_end", 0, 0)
            program.check_all()
            for tensor in list(program.tensors):
                program.drop(tensor)
            machine.allocator.empty()
        stats = backend.stats
    assert stats["bytes_out"] > 0

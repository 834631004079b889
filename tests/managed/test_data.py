# SPDX-License-Identifier: Apache-2.0
"""Whatever the policy does and however late moves are, the program computes the same."""

import random
import threading
from ctypes import c_uint
from typing import Any

import numpy as np
import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver, Many

from .live import CARD, LAYERS, POLICIES, WORDS, session
from .stand_in import Program, training

MS = 1_000_000


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gates", [True, False])
def test_training_is_right_while_kernels_lag(driver: Driver, policy: str, gates: bool) -> None:
    """The program is far ahead: what it frees is still to be read by kernels that wait."""
    with session(driver, policy, gates=gates) as (backend, machine):
        driver.delay("exec:kernel", 200_000, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 3)
        stats = backend.stats
    assert stats["bytes_out"] > 0
    if policy != "noop":
        assert driver.get("bytes_discarded") > 0


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("work", ["prefetch", "discard"])
def test_training_is_right_while_moves_lag(driver: Driver, policy: str, work: str) -> None:
    with session(driver, policy, delay_us=500) as (_, machine):
        driver.delay(f"exec:{work}", 0, 5 * MS)
        driver.delay("cuMemPrefetchAsync", 0, 2 * MS)
        driver.delay("cuMemDiscardBatchAsync", 0, 2 * MS)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("seed", range(4))
def test_training_is_right_when_every_call_takes_its_time(driver: Driver, seed: int) -> None:
    driver.set("seed", seed + 1)
    with session(driver, POLICIES[seed], delay_us=300) as (_, machine):
        driver.delay("*", 0, MS // 2)
        driver.delay("exec:kernel", 0, MS)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("form", ["params", "extra", "ex", "kernel"])
def test_every_form_of_launch_is_seen_with_its_memory(driver: Driver, form: str) -> None:
    with session(driver, "arguments") as (backend, machine):
        training(Program(machine), LAYERS, WORDS, 2, form=form)
        stats = backend.stats
    assert stats["launches"] >= 2 * 4 * LAYERS
    assert driver.get("bytes_in_fault") == 0  # all was brought before the kernels ran


@on_fake(memory_bytes=CARD)
def test_the_default_stream_is_followed_too(driver: Driver) -> None:
    with session(driver, "chained") as (_, machine):
        driver.delay("exec:kernel", 0, MS)
        program = Program(machine)
        program.stream.value = 0
        training(program, LAYERS, WORDS, 2)
    assert driver.get("bytes_in_fault") == 0


@on_fake(memory_bytes=CARD)
def test_pointers_in_a_struct_and_tables_gathered_from(driver: Driver) -> None:
    with session(driver, "arguments") as (_, machine):
        program = Program(machine)
        tensors = [program.new(WORDS, k) for k in range(30)]
        table = program.new(4 * WORDS, 0)
        index, picked = program.new(64, 0), program.new(64, 0)
        rows = np.random.default_rng(1).integers(0, 4 * WORDS, 64, "u4")
        program.upload(table, np.arange(4 * WORDS, dtype="u4"))
        program.upload(index, rows)
        for _ in range(3):
            many = Many(add=1, used=30, each=WORDS)
            for k, tensor in enumerate(tensors):
                many.pointers[k] = program.tensors[tensor][0].address
            program.launch("add_many", many, 2)
            for tensor in tensors:
                program.tensors[tensor][1][:] += np.uint32(3)
            addresses = [program.tensors[t][0].address for t in (picked, table, index)]
            program.launch("gather", *addresses, 64)
            program.tensors[picked][1][:] = rows
        program.check_all()
    assert driver.get("bytes_in_fault") == 0


def churn(program: Program, rounds: int, words: int = WORDS) -> None:
    """Do at random what programs do, and look at the data now and then."""
    for _ in range(rounds):
        live = list(program.tensors)
        choice = program.random.integers(10)
        if choice < 3 or len(live) < 8:
            program.new(
                int(program.random.integers(64, 2 * words)), int(program.random.integers(99))
            )
        elif choice < 5 or len(live) > 40:
            program.drop(int(program.random.choice(live)))
        elif choice < 7:
            program.axpy(*(int(t) for t in program.random.choice(live, 2)), 3)
        elif choice < 8:
            program.copy(*(int(t) for t in program.random.choice(live, 2, replace=False)))
        elif choice < 9:
            tensor = int(program.random.choice(live))
            program.upload(tensor, np.arange(min(1000, program.tensors[tensor][0].count)))
        else:
            program.check(int(program.random.choice(live)))
        if program.random.integers(60) == 0:
            program.allocator.empty()
    program.check_all()


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_programs_are_right(driver: Driver, policy: str, seed: int) -> None:
    with session(driver, policy, delay_us=200) as (_, machine):
        driver.delay("exec:kernel", 0, MS // 2)
        churn(Program(machine, seed), 400)


@on_fake(memory_bytes=CARD, timeout=20)
def test_a_launch_of_a_second_stream_waits_behind_many_of_the_first(driver: Driver) -> None:
    with session(driver, "noop") as (_, machine):
        first, second = Program(machine), Program(machine)
        training(first, LAYERS, WORDS, 1)  # memory is short from here on
        gate, tensor = driver.pinned(1), second.new(64, 1)
        second.check(tensor)
        driver.call("cuStreamWaitValue32_v2", second.stream, gate.address, c_uint(1), c_uint(0))
        second.launch("nothing", 1)  # not finished when the next one of its stream is submitted
        for k in range(20):
            first.axpy(k, k + 1, 3)
        second.launch("nothing", 1)
        gate.words[0] = 1
        first.check_all()
        second.check(tensor)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("policy", POLICIES)
def test_threads_and_streams_side_by_side(driver: Driver, policy: str) -> None:
    errors: list[BaseException] = []
    with session(driver, policy, delay_us=200) as (_, machine):
        driver.delay("exec:kernel", 0, MS // 2)

        def work(seed: int) -> None:
            try:
                driver.enter()
                churn(Program(machine, seed), 120)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


def hostile(how: str) -> Any:
    """Return a policy that does its worst."""
    from deepum.policy import Policy

    class Hostile(Policy):
        name = "hostile"

        def __init__(self) -> None:
            super().__init__()
            self.random = random.Random(5)
            self.seen: list[int] = []
            self.calls = 0

        def on_launch(self, view: Any, launch: Any) -> None:
            self.calls += 1
            self.seen += [address >> 21 for address, _ in launch.ranges or ()]
            if how == "raises" and self.calls > 20:
                raise RuntimeError("no more")
            for _ in range(3):
                if not self.seen:
                    return
                block = self.random.choice(self.seen) + self.random.randrange(-2, 3)
                if how in ("evicts", "both"):
                    view.evict(block)
                if how in ("prefetches", "both"):
                    view.prefetch(block, self.random.randrange(1, 50))

        def victims(self, view: Any, count: int) -> Any:
            return [self.random.choice(self.seen) for _ in range(count)] if self.seen else ()

    return Hostile


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("gates", [True, False])
@pytest.mark.parametrize("how", ["evicts", "prefetches", "both"])
def test_a_hostile_policy_costs_time_alone(driver: Driver, how: str, gates: bool) -> None:
    with session(driver, hostile(how), gates=gates, ranges=True) as (_, machine):
        driver.delay("exec:kernel", 0, MS // 2)
        training(Program(machine), LAYERS, WORDS, 2)


@on_fake(memory_bytes=CARD)
def test_a_policy_that_raises_is_set_aside(driver: Driver) -> None:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(driver, hostile("raises"), ranges=True) as (backend, machine):
            training(Program(machine), LAYERS, WORDS, 2)
            assert "no more" in backend.set_aside
    assert sum("no more" in str(one.message) for one in caught) == 1


@on_fake(memory_bytes=CARD)
def test_policies_are_swapped_while_the_program_runs(driver: Driver) -> None:
    with session(driver, "chained") as (backend, machine):
        program = Program(machine, 3)
        for policy in ("noop", "arguments", "single-level", "chained"):
            backend.policy = policy
            churn(program, 60)
        assert backend.stats["policy"] == "chained"

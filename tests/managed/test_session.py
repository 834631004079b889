# SPDX-License-Identifier: Apache-2.0
"""The session that people open, on the fake driver."""

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import BUDGET, CARD, LAYERS, WORDS, machine_for, nothing_read_after_its_discard
from .stand_in import OutOfMemoryError, Program, training


@on_fake(memory_bytes=CARD)
def test_a_session_trains_and_swaps_its_policy(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)
    with deepum.Session("chained", 16, BUDGET, backend="managed") as session:
        assert session.backend == "managed"
        program = Program(machine)
        training(program, LAYERS, WORDS, 1)
        session.policy = "single-level"
        assert session.policy.name == session.stats["policy"] == "single-level"
        training(program, LAYERS, WORDS, 1)
        with pytest.raises(deepum.DeepUMError, match="PyTorch allocates and launches"):
            session.empty(3)
        with pytest.raises(deepum.DeepUMError, match="traces run in the simulator"):
            session.run("bert-large-b14")
    stats = session.stats
    assert stats["bytes_out"] > 0
    assert stats["failure"] == ""
    nothing_read_after_its_discard(driver)


@on_fake(memory_bytes=CARD)
def test_auto_is_the_gpu_where_there_is_one(driver: Driver) -> None:
    import deepum

    machine_for(driver)
    with deepum.Session(memory_limit=BUDGET, backend="auto") as session:
        assert session.backend == "managed"


@on_fake(memory_bytes=CARD)
def test_an_error_for_lack_of_memory_says_what_to_do(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)
    session = deepum.Session(
        memory_limit=BUDGET, backend="managed", options={"host_limit": "64MiB"}
    )
    with pytest.raises(OutOfMemoryError) as caught, session:
        training(Program(machine), 10 * LAYERS, WORDS, 1)
    assert any("raise host_limit" in note for note in caught.value.__notes__)


@on_fake(memory_bytes=CARD, concurrent_managed=0)
def test_where_memory_does_not_migrate(driver: Driver) -> None:
    import deepum

    machine_for(driver)
    with pytest.raises(deepum.DeepUMError, match="no concurrent managed access"):
        deepum.Session(memory_limit=BUDGET, backend="managed")

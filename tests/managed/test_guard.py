# SPDX-License-Identifier: Apache-2.0
"""Where a session is refused, and what the user reads."""

from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import BUDGET, CARD, LAYERS, WORDS, machine_for, session
from .stand_in import BLOCK, OutOfMemoryError, Program, training

GIB = 1 << 30


def refused(driver: Driver, **options: Any) -> str:
    """Return the one line that a session is refused with; nothing may be left of it."""
    from deepum.errors import DeepUMError

    before = [driver.get(name) for name in ("allocations", "streams", "managed_bytes")]
    with pytest.raises(DeepUMError) as caught, session(driver, "chained", **options):
        pass
    text = str(caught.value)
    assert "\n" not in text
    assert [driver.get(name) for name in ("allocations", "streams", "managed_bytes")] == before
    return text


@on_fake(memory_bytes=CARD, concurrent_managed=0)
def test_a_card_that_does_not_migrate(driver: Driver) -> None:
    assert "no concurrent managed access" in refused(driver)


@on_fake(memory_bytes=CARD, driver_version=12080)
def test_an_older_driver(driver: Driver) -> None:
    assert "driver 580" in refused(driver)


@on_fake(memory_bytes=CARD)
def test_a_budget_of_next_to_nothing(driver: Driver) -> None:
    assert "too small" in refused(driver, limit=BUDGET - 1)


@on_fake(memory_bytes=CARD, other_bytes=CARD - GIB)
def test_a_budget_beyond_what_is_free(driver: Driver) -> None:
    text = refused(driver, limit=GIB + BLOCK)
    assert "more than the 1.0 GiB that GPU 0 has free" in text


@on_fake(memory_bytes=CARD, other_bytes=CARD - GIB)
def test_more_managed_memory_than_the_card_has_free(driver: Driver) -> None:
    from deepum.backends.managed import RESERVE

    with session(driver, "chained") as (backend, machine):
        program = Program(machine)
        with pytest.raises(OutOfMemoryError):
            for k in range(400):
                program.new(WORDS, k)
        assert driver.get("managed_bytes") <= GIB - RESERVE // 2
        assert "pass oversubscribe=True" in backend.refused
        program.check_all()  # and it goes on with what it has
        for tensor in list(program.tensors):
            program.drop(tensor)
        training(program, 20, WORDS, 1)


@on_fake(memory_bytes=CARD, other_bytes=CARD - GIB)
def test_the_user_may_ask_for_more_than_the_card(driver: Driver) -> None:
    with session(driver, "chained", oversubscribe=True) as (_, machine):
        training(Program(machine), 2 * LAYERS, WORDS, 1)
        program = Program(machine)
        for k in range(200):
            program.new(WORDS, k)
        assert driver.get("managed_bytes") > GIB // 2
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_host_memory_that_would_run_out(driver: Driver) -> None:
    with session(driver, "chained", oversubscribe=True, host_limit=64 << 20) as (backend, machine):
        program = Program(machine)
        with pytest.raises(OutOfMemoryError):
            for k in range(100):
                program.new(WORDS, k)
        assert driver.get("managed_bytes") <= BUDGET + (64 << 20)
        assert "raise host_limit" in backend.refused
        program.check_all()


@on_fake(memory_bytes=CARD)
def test_one_session_at_a_time(driver: Driver) -> None:
    from deepum.errors import DeepUMError

    machine = machine_for(driver)
    with session(driver, "chained", machine=machine):
        with (
            pytest.raises(DeepUMError, match="a session is open"),
            session(driver, "chained", machine=machine),
        ):
            pass
        training(Program(machine), LAYERS, WORDS, 1)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("options", [{"max_run": 0}, {"window": "x"}, {"no_such_option": 1}])
def test_bad_options(driver: Driver, options: dict) -> None:
    assert refused(driver, **options)
    with session(driver, "chained") as (_, machine):  # nothing of it stands in the way
        training(Program(machine), 4, WORDS, 1)

# SPDX-License-Identifier: Apache-2.0
"""A program that uses much of the fake at once, under ThreadSanitizer and AddressSanitizer."""

import subprocess

import pytest

from .build import built
from .harness import on_fake
from .steer import PAGE, TO_DEVICE, TO_HOST, Driver

# The first of them builds the core anew, for the sanitizer.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def exercise(sanitize: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(built(sanitize) / "exercise"), *args],
        env={"TSAN_OPTIONS": "exitcode=66 halt_on_error=1", "ASAN_OPTIONS": "exitcode=66"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("sanitize", ["thread", "address"])
def test_no_report(sanitize: str) -> None:
    done = exercise(sanitize)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_discard_that_nothing_orders_is_reported() -> None:
    """A discard races with a kernel of another stream: the sanitizer sees what it does."""
    done = exercise("thread", "race")
    assert done.returncode == 66
    assert "data race" in done.stderr
    assert "discard(" in done.stderr


def test_an_overrun_of_a_launchs_arguments_is_reported() -> None:
    done = exercise("address", "overrun")
    assert done.returncode == 66
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("sanitize", ["thread", "address"])
def test_python_runs_on_a_sanitized_fake(sanitize: str) -> None:
    sanitized_moves = {"thread": moves_under_thread, "address": moves_under_address}
    sanitized_moves[sanitize]()


def moves(driver: Driver) -> None:
    stream, array = driver.stream(), driver.managed(4 * PAGE // 4)
    for value in range(5):
        driver.fill(array, value, stream)
        driver.prefetch(array, TO_HOST if value % 2 else TO_DEVICE, stream)
    driver.discard(array, stream=stream)
    driver.sync(stream)
    driver.free(array)


@on_fake(sanitize="thread")
def moves_under_thread(driver: Driver) -> None:
    moves(driver)


@on_fake(sanitize="address")
def moves_under_address(driver: Driver) -> None:
    moves(driver)

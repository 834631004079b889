# SPDX-License-Identifier: Apache-2.0
"""Which launches have one execution ID: those of one kernel on the same memory, where it counts."""

from typing import Any

from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver, wait_until

from .live import CARD, WORDS, session
from .stand_in import Program

LARGE = (64 << 10) // 4  # words


def noting(ids: list[int]) -> Any:
    """Return a policy that writes down execution IDs."""
    from deepum.policy import Policy

    class Noting(Policy):
        name = "noting"

        def on_launch(self, view: Any, launch: Any) -> None:
            ids.append(launch.exec_id)

    return Noting


def ids_of(driver: Driver, sizes: list[int], pairs: list[tuple[int, int]]) -> list[int]:
    """Return the IDs of one kernel on each pair of some tensors."""
    ids: list[int] = []
    with session(driver, noting(ids)) as (_, machine):
        program = Program(machine)
        tensors = [program.new(size, 1) for size in sizes]
        for y, x in pairs:
            # The same count for all: by their other arguments launches do not differ.
            program.launch(
                "axpy", program.tensors[tensors[y]][0].address,
                program.tensors[tensors[x]][0].address, 16, 0,
            )  # fmt: skip
        driver.sync()
        wait_until(lambda: len(ids) >= len(sizes) + len(pairs))  # the policy is told a little later
    assert len(ids) == len(sizes) + len(pairs)
    return ids[len(sizes) :]


@on_fake(memory_bytes=CARD)
def test_where_a_small_tensor_lies_makes_no_other_launch(driver: Driver) -> None:
    ids = ids_of(driver, [WORDS, WORDS, 64, 4000], [(0, 2), (0, 3), (1, 2), (2, 0), (0, 1), (0, 2)])
    assert ids[0] == ids[1] == ids[3] == ids[5]
    assert len({ids[0], ids[2], ids[4]}) == 3


@on_fake(memory_bytes=CARD)
def test_what_counts_as_small(driver: Driver) -> None:
    below = LARGE - 128  # a tensor's bytes are a multiple of 512
    ids = ids_of(driver, [WORDS, below, below, LARGE, LARGE], [(0, 1), (0, 2), (0, 3), (0, 4)])
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@on_fake(memory_bytes=CARD)
def test_launches_on_small_tensors_alone_are_told_apart(driver: Driver) -> None:
    ids = ids_of(driver, [64, 64, 64], [(0, 1), (1, 0), (0, 2), (0, 1)])
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]

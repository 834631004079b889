# SPDX-License-Identifier: Apache-2.0
"""A prefetch under way that a launch waits for goes before what later launches wait for."""

from typing import Any

import pytest

from .harness import BLOCK, Bench

PREFETCH, HURRY = 1, 0x100
DEMAND = 1
A = 1


def commands(bench: Bench) -> list[tuple[int, int, int, int]]:
    return [
        tuple(int(c[f]) for f in ("type", "block", "count", "flags")) for c in bench.engine.drain()
    ]


@pytest.mark.parametrize("hurries", [False, True])
def test_the_engine_says_so_once(hurries: bool) -> None:
    bench = Bench(16, "noop", gated=True, hurries=hurries)
    bench.alloc(0, 4)
    engine = bench.engine
    from deepum import policy as policies

    class Ahead(policies.Policy):
        name = "ahead"

        def on_alloc(self, view: Any, allocation: Any) -> None:
            view.prefetch(allocation.address // BLOCK)

    engine.set_policy(policies.make_native(Ahead()))
    bench.alloc(8, 1)
    assert commands(bench) == [(PREFETCH, 8, 1, 0)]
    assert engine.state(8) == "incoming"
    for _ in range(2):
        bench.name(8)
        bench.launch(A)
    wanted = [(HURRY, 8, 1, DEMAND)] if hurries else []
    assert commands(bench) == wanted
    assert engine.stats["late"] == 1
    engine.event("arrived", address=8 * BLOCK)
    bench.name(8)
    bench.launch(A)
    assert commands(bench) == []


def managed_mover() -> Any:
    cuda_mover = pytest.importorskip("deepum._core.cuda_mover", reason="the core has no CUDA")
    from deepum._core.feed import Feed

    return cuda_mover.CudaMover(Feed(), 0, executes_faults=True)


def test_managed_memory_moves_it_first() -> None:
    mover = managed_mover()
    for block in (10, 20, 30):
        mover.ask(PREFETCH, block, 4)
    mover.ask(PREFETCH, 50, 2, DEMAND)
    mover.ask(HURRY, 23, 1, DEMAND)  # within a run: all of that goes
    assert mover.waiting == [[50, 20], [10, 30], [], []]
    mover.ask(HURRY, 24, 6, DEMAND)  # between the runs
    mover.ask(HURRY, 20, 1, DEMAND)  # on demand already
    assert mover.waiting == [[50, 20], [10, 30], [], []]
    mover.ask(HURRY, 13, 18, DEMAND)  # reaches into both
    assert mover.waiting == [[50, 20, 10, 30], [], [], []]


def test_vmm_moves_it_first() -> None:
    pytest.importorskip("deepum._core.cuda_vmm_mover", reason="the core has no CUDA")
    from deepum._core.cuda_vmm import VmmMemory
    from deepum._core.cuda_vmm_mover import VmmMover
    from deepum._core.feed import Feed

    mover = VmmMover(VmmMemory(Feed(), 0))
    for block in (8, 16, 24, 32):
        mover.put(1, block)
    mover.put(0, 80)
    mover.hurry_up(16, 9)  # two chunks begin there
    assert mover.waiting == [[80, 16, 24], [8, 32], [], []]
    mover.hurry_up(40, 8)
    assert mover.waiting == [[80, 16, 24], [8, 32], [], []]

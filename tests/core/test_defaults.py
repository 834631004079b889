# SPDX-License-Identifier: Apache-2.0
"""Every default by what it does: whoever changes one changes a number here, and says why."""

import time

import pytest

from deepum._core.block_table import BlockTable
from deepum._core.engine import Engine
from deepum._core.python_policy import MAX_COMMANDS
from deepum.policy import HOOKS, Policy, make, make_native

from .harness import BLOCK, MIB, Bench, brief, native

pytestmark = pytest.mark.slow  # large budgets and limits on time: not for a traced build


def test_a_block_is_2_mib():
    bench = Bench(8)
    assert BLOCK == 2 * MIB == 1 << 21
    bench.engine.event("fault", address=5 * (1 << 21) - 1)
    bench.engine.event("fault", address=5 * (1 << 21))
    assert brief(bench.drain()) == ["prefetch 4-5!"]


def repeat(bench: Bench, kernels: int) -> None:
    """Teach a loop of kernels of one block each, then take the blocks away."""
    for _ in range(2):
        for exec_id in range(kernels):
            bench.run(exec_id, exec_id)
    bench.run(0, 0)
    bench.engine.event("unmanage", address=0, bytes=4096 * BLOCK)
    bench.manage(0, 4096)
    bench.engine.set_policy(native("chained"))


def test_depth_is_32_kernels():
    bench = Bench(1024, "chained")
    repeat(bench, 60)
    bench.launch(1)
    assert brief(bench.settle()) == ["prefetch 1-16", "prefetch 17-32", "prefetch 33"]
    bench.complete()
    assert brief(bench.settle()) == ["prefetch 34"]


@pytest.mark.parametrize(
    ("budget", "low", "high"),
    [(1024, 32, 64), (256, 32, 64), (255, 31, 63), (128, 16, 32), (8, 1, 2)],
)
def test_pre_eviction_from_32_to_64_free_frames_or_an_eighth_to_a_quarter(budget, low, high):
    bench = Bench(budget, "chained")
    for block in range(budget - low):
        assert brief(bench.run(block, block)) == [f"prefetch {block}!"]
    assert bench.engine.free_frames == low
    last = budget - low
    bench.run(last, last)
    assert bench.engine.free_frames == high
    assert bench.engine.stats["discarded"] == high - low + 1


def test_pre_eviction_is_off_in_the_smallest_budgets():
    bench = Bench(7, "chained")
    for block in range(7):
        bench.run(block, block)
    assert bench.engine.free_frames == 0
    bench.run(9, 9)
    assert bench.engine.free_frames == 0


class Wants(Policy):
    """Asks for many blocks at the first launch."""

    def on_launch(self, view, launch):
        self.accepted = view.prefetch(0, 3000)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(65536, 32), (64, 32), (63, 31), (4, 2), (3, 1), (2, 1), (1, 1)],
)
def test_the_window_is_32_blocks_or_half_the_budget(budget, expected):
    bench = Bench(budget, Wants(), queue=3000)
    bench.launch(1)
    assert sum(count for _, _, count, _, _ in bench.drain()) == expected


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(65536, 1024), (8192, 1024), (8191, 1023), (800, 100), (15, 1), (8, 1), (1, 1)],
)
def test_1024_prefetches_wait_or_an_eighth_of_the_budget(budget, expected):
    policy = Wants()
    Bench(budget, policy).launch(1)
    assert policy.accepted == expected


def test_moves_are_of_16_blocks_at_most():
    bench = Bench(64)
    bench.fault(*range(40))
    assert brief(bench.drain()) == ["prefetch 0-15!", "prefetch 16-31!", "prefetch 32-39!"]


@pytest.mark.parametrize("table", [BlockTable(), None])
def test_block_tables_have_2048_rows_2_ways_4_successors_1_level(table):
    if table is None:  # the engine's: its tables are seen through what they remember
        bench = Bench(64, "chained", prefetch=False)
        bench.run(1, 0, 2048)
        assert bench.engine.correlator.blocks_of(1) == [0, 2048]
        bench.manage(4096, 1)
        bench.run(1, 4096)  # a third in a row of two: the oldest goes
        assert {*bench.engine.correlator.blocks_of(1)} - {0} == {2048, 4096}
        bench.run(2, 1, 2047, 2049)
        assert {*bench.engine.correlator.blocks_of(2)} == {1, 2047, 2049}
        return
    for block in (0, 2048, 4096):
        table.record(block)
    assert table.row(0) == [4096, 2048]
    for follower in (5, 6, 7, 8, 9):
        table.begin()
        table.record(2048)
        table.record(follower)
    assert table.successors(2048) == [9, 8, 7, 6]
    with pytest.raises(ValueError, match="the table has 1 level"):
        table.successors(2048, 1)


def test_the_engines_tables_keep_4_successors():
    bench = Bench(64, "chained", queue=20, window=32)
    for follower in (5, 7, 9, 11, 13, 15):
        bench.engine.event("unmanage", address=0, bytes=64 * BLOCK)
        bench.manage(0, 64)
        bench.engine.set_policy(native("noop"))
        bench.engine.set_policy(native("chained"))
        bench.launch(1)
        bench.fault(1, follower)
        bench.drain()
        bench.carry_out([("prefetch", b, 1, False, 0) for b in range(64) if in_flight(bench, b)])
        bench.complete()
    bench.engine.event("unmanage", address=0, bytes=64 * BLOCK)
    bench.manage(0, 64)
    bench.engine.set_policy(native("chained"))
    bench.launch(2)
    bench.settle()
    bench.complete()
    bench.launch(1)
    bench.fault(1)
    assert brief(bench.drain())[:5] == [
        "prefetch 1!", "prefetch 15", "prefetch 13", "prefetch 11", "prefetch 9",
    ]  # fmt: skip


def in_flight(bench: Bench, block: int) -> bool:
    return bench.engine.state(block) == "incoming"


def test_single_level_has_65536_rows_2_ways_4_successors_1_level():
    bench = Bench(64, "single-level", blocks=0)
    for k in range(4):
        bench.manage(k * 65536, 100)
    bench.fault(0, 65536, 2 * 65536, 7)  # the third displaces 0, so all that 0 led to is lost
    bench.settle()
    forget = [("unmanage", k) for k in range(4)]
    for kind, k in forget:
        bench.engine.event(kind, address=k * 65536 * BLOCK, bytes=100 * BLOCK)
        bench.manage(k * 65536, 100)
    bench.fault(0)
    assert brief(bench.settle()) == ["prefetch 0!"]
    bench.fault(65536)
    assert brief(bench.settle()) == ["prefetch 65536!"]
    bench = Bench(64, "single-level", blocks=70_000)
    bench.fault(0, 65536, 32768, 2048)
    bench.settle()
    bench.engine.event("unmanage", address=0, bytes=70_000 * BLOCK)
    bench.manage(0, 70_000)
    bench.fault(0)  # still there, with one successor at one level
    assert brief(bench.settle()) == ["prefetch 0!", "prefetch 65536"]


def test_single_level_keeps_4_successors():
    bench = Bench(64, "single-level", queue=20)
    for follower in (5, 7, 9, 11, 13, 15):
        bench.fault(1, follower)
        bench.settle()
        bench.engine.event("unmanage", address=0, bytes=64 * BLOCK)
        bench.manage(0, 64)
    bench.fault(1)
    assert [c[1] for c in bench.settle()] == [1, 15, 13, 11, 9]


def test_everything_is_on_by_default():
    bench = Bench(64, "chained")
    bench.alloc(0, 3)
    bench.launch(1)
    assert brief(bench.settle()) == ["prefetch 0-2"]  # allocations are learnt, prefetches go out
    bench.free(0)
    assert bench.engine.inspect(0)["inactive"]


@pytest.mark.parametrize(("took", "stays"), [(1.0, True), (1.01, False)])
@pytest.mark.parametrize("hook", ["on_launch", "victims"])
def test_a_hook_may_take_a_second(monkeypatch, hook, took, stays):
    clock = [0.0]

    class Slow(Policy):
        def on_launch(self, view, launch):
            clock[0] += took if hook == "on_launch" else 0

        def victims(self, view, count):
            clock[0] += took if hook == "victims" else 0

    bench = Bench(2, make_native(Slow(), lambda *_: None))
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock[0])
        for exec_id in range(3):
            bench.run(exec_id, exec_id)
    assert clock[0] > 0
    assert (bench.engine.policy.name == "Slow") is stays


def test_a_hook_may_ask_for_65536_blocks():
    assert MAX_COMMANDS == 65536


def test_4096_launches_may_wait():
    bench = Bench(8)
    for seq in range(4096):
        bench.launch(seq)
    with pytest.raises(ValueError, match="4096"):
        bench.launch(1)


@pytest.mark.parametrize(
    ("name", "learns", "pre_evicts", "invalidates"),
    [
        ("noop", False, False, False),
        ("single-level", False, True, True),
        ("chained", True, True, True),
    ],
)
def test_what_the_built_in_policies_use(name, learns, pre_evicts, invalidates):
    policy = native(name)
    assert policy.name == name
    assert policy.learns is learns
    assert policy.pre_evicts is pre_evicts
    assert policy.invalidates is invalidates
    assert policy.plain_memory is False
    assert policy.wants_ranges is False
    assert policy.queue == 0
    described = make(name)
    assert described.name == name
    assert (described.learns, described.pre_evicts) == (learns, pre_evicts)
    assert described.invalidates is invalidates


def test_what_a_policy_of_ones_own_uses():
    assert (Policy.learns, Policy.pre_evicts, Policy.invalidates) == (True, True, True)
    assert (Policy.plain_memory, Policy.wants_ranges, Policy.queue) == (False, False, 0)
    assert HOOKS == ("on_launch", "on_fault", "on_complete", "on_alloc", "on_free", "victims")


def test_an_engine_needs_a_budget_and_a_policy():
    for arguments in ((), (64,)):
        with pytest.raises(TypeError):
            Engine(*arguments)
    with pytest.raises(TypeError):
        Engine(64, native("noop"), 32)  # the rest goes by name

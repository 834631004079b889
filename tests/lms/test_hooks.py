# SPDX-License-Identifier: Apache-2.0
"""What the plug-in interface offers to policies that think in tensors."""

from __future__ import annotations

from typing import Any

import pytest

import deepum
from deepum._core.engine import Engine
from deepum.errors import OutOfMemoryError
from deepum.policy import make_native
from deepum.trace import Trace

MIB = 1 << 20
BASE = 1 << 40


class Witness(deepum.Policy):
    """Writes down what it hears."""

    wants_ranges = True

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Any, ...]] = []

    def on_alloc(self, view: Any, allocation: Any) -> None:
        self.heard.append(("alloc", allocation.address, allocation.bytes, allocation.kind))

    def on_free(self, view: Any, allocation: Any) -> None:
        self.heard.append(("free", allocation.address, allocation.bytes))

    def on_launch(self, view: Any, launch: Any) -> None:
        self.heard.append(("launch", launch.seq, *launch.ranges))


def test_allocations_and_operands_reach_the_policy_in_order() -> None:
    b = Trace.builder("t")
    weight = b.alloc(3 * MIB, "parameter")
    b.step()
    made = b.alloc(5 * MIB, "activation")
    b.launch("k", [(weight, "r"), (made, "w"), (weight, "w")])
    b.free(made)
    trace = b.build(loop=False)
    columns = trace.columns()
    where = dict(
        zip(
            columns["tensor_kind"].tolist(),
            zip(
                columns["tensor_address"].tolist(),
                columns["tensor_block_bytes"].tolist(),
                strict=True,
            ),
            strict=True,
        )
    )
    policy = Witness()
    run = deepum.simulate(trace, policy=policy, iterations=1)
    assert run.set_aside == ""
    assert policy.heard == [
        ("alloc", *where[1], "parameter"),
        ("alloc", *where[4], "activation"),
        ("launch", 1, where[1], where[4]),
        ("free", *where[4]),
    ]


def test_ranges_are_named_only_if_wanted() -> None:
    class Quiet(Witness):
        wants_ranges = False

    b = Trace.builder("t")
    b.step()
    b.launch("k", [(b.alloc(MIB), "w")])
    policy = Quiet()
    deepum.simulate(b.build(loop=False), policy=policy, iterations=1)
    assert ("launch", 1) in policy.heard


def test_a_hook_that_raises_is_set_aside_but_out_of_memory_ends_the_run() -> None:
    class Broken(deepum.Policy):
        reason: Exception = ValueError("no")

        def on_alloc(self, view: Any, allocation: Any) -> None:
            raise self.reason

    class Full(Broken):
        reason = OutOfMemoryError("nothing left")

    b = Trace.builder("t")
    b.step()
    b.launch("k", [(b.alloc(MIB), "w")])
    trace = b.build(loop=False)
    with pytest.warns(deepum.policy.PolicyWarning, match="no"):
        run = deepum.simulate(trace, policy=Broken, iterations=1)
    assert "no" in run.set_aside
    with pytest.raises(OutOfMemoryError, match="nothing left"):
        deepum.simulate(trace, policy=Full, iterations=1)


def engine(policy: deepum.Policy, budget: int = 64, **options: Any) -> Engine:
    e = Engine(budget, make_native(policy), **options)
    e.event("manage", address=BASE, bytes=1 << 30)
    return e


def accepted(policy: deepum.Policy, **options: Any) -> int:
    e = engine(policy, **options)
    e.event("launch", exec_id=1)
    return policy.accepted  # type: ignore[attr-defined, no-any-return]


class Greedy(deepum.Policy):
    """Asks for more than waits by default."""

    accepted = 0

    def on_launch(self, view: Any, launch: Any) -> None:
        self.accepted = view.prefetch(BASE >> 21, 100)


class Patient(Greedy):
    """Asks for room to wait as well."""

    queue = 40


def test_the_queue_is_as_long_as_the_policy_wants() -> None:
    assert accepted(Greedy()) == 64 // 8
    assert accepted(Patient()) == 40
    assert accepted(Greedy(), queue=50) == 50
    assert accepted(Patient(), queue=20) == 20
    assert accepted(Greedy(), queue=1000) == 64  # the budget bounds it


def test_the_queue_follows_a_change_of_policy() -> None:
    greedy, patient = Greedy(), Patient()
    e = engine(greedy)
    for number in range(3):
        for policy in (greedy, patient):
            e.set_policy(make_native(policy))
            e.event("launch", exec_id=number)
            e.check()
    assert (greedy.accepted, patient.accepted) == (8, 40)


def test_prefetches_wait_for_evictions_that_are_to_end_first() -> None:
    class Swap(deepum.Policy):
        pre_evicts = False
        queue = 8

        def on_launch(self, view: Any, launch: Any) -> None:
            first = BASE >> 21
            if launch.seq == 1:
                view.prefetch(first)
            else:
                view.evict(first)
                view.wait_for_evictions()
                view.prefetch(first + 1)

    e = engine(Swap())
    e.event("alloc", address=BASE, bytes=4 * MIB)
    e.event("launch", exec_id=1)
    assert len(e.drain()) == 1
    e.event("arrived", address=BASE)
    e.event("complete", seq=1)
    e.event("launch", exec_id=2)
    assert [int(c["type"]) for c in e.drain()] == [2]  # the eviction alone, with frames to spare
    e.event("departed", address=BASE)
    assert len(e.drain()) == 1
    e.check()

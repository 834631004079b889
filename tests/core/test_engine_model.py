# SPDX-License-Identifier: Apache-2.0
"""The engine against its model and a witness, under arbitrary events and every kind of policy."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from deepum.policy import HOOKS, Policy, make_native
from how_many import examples

from .harness import BLOCK, Witness, decode, engine, native, records
from .models import ChainedModel, EngineModel, HooksModel, NoopModel, SingleLevelModel

UNIT = BLOCK // 4
# Chunks of six blocks: two around a boundary of leaves, one far away, one low.
SPAN = 6
CHUNKS = [1024 - SPAN, 1024, 1 << 30, 0]
BLOCKS = [chunk + i for chunk in CHUNKS for i in range(SPAN)]


class Erratic(Policy):
    """Asks for whatever its dice say; the same for the same seed."""

    name = "erratic"

    def __init__(self, seed: int, **flags: bool) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        for flag, value in flags.items():
            setattr(self, flag, value)

    def act(self, view: Any) -> None:
        dice = self.dice
        if dice.randrange(4) == 0:
            view.wait_for_evictions()
            view.wait_for_kernels()
        for _ in range(dice.randrange(4)):
            block = dice.choice([*BLOCKS, 999])
            count = dice.choice([1, 1, 3])
            choice = dice.randrange(6)
            if choice == 0:
                view.evict(block, count)
            elif choice == 1 and view.resident_blocks:
                view.evict(dice.choice(view.resident_blocks))
            elif choice == 2 and view.running is not None:
                for exec_id in view.predict(view.running.exec_id, dice.randrange(4)):
                    for learnt in view.blocks_of(exec_id):
                        view.prefetch(learnt)
            elif choice == 3 and view.free_blocks * 2 < view.budget_blocks:
                view.evict(block)
            elif not view.is_resident(block):
                view.prefetch(block, count)

    def on_launch(self, view: Any, launch: Any) -> None:
        for address, size in launch.ranges:
            view.prefetch(address // BLOCK, size // BLOCK)
        self.act(view)

    def on_fault(self, view: Any, fault: Any) -> None:
        view.prefetch(fault.block + 1)
        self.act(view)

    def on_complete(self, view: Any, launch: Any) -> None:
        if launch.seq % 2:
            self.act(view)

    def on_alloc(self, view: Any, allocation: Any) -> None:
        view.prefetch(allocation.address // BLOCK, 1 + allocation.bytes // BLOCK)
        assert allocation.kind == ""

    def on_free(self, view: Any, allocation: Any) -> None:
        view.evict(allocation.address // BLOCK)
        if allocation.bytes % BLOCK:
            self.act(view)

    def victims(self, view: Any, count: int) -> list[int] | None:
        if self.dice.randrange(3) == 0:
            return None
        return self.dice.sample(BLOCKS, min(len(BLOCKS), count + 2))


class SomeHooks(Erratic):
    """Overrides two hooks only, over a built-in policy."""

    native = "chained"
    defaults: ClassVar[dict[str, Any]] = {}
    queue = 5
    on_fault = Policy.on_fault
    on_free = Policy.on_free
    victims = Policy.victims


def pair(kind: str, seed: int, flags: dict[str, bool]) -> tuple[Any, NoopModel]:
    """Return a policy for the engine and the same for the model."""
    if kind == "noop":
        return native("noop"), NoopModel()
    if kind == "single-level":
        geometry = {"rows": 4, "ways": 2, "successors": 2, "levels": 1 + seed % 2}
        return native("single-level", **geometry), SingleLevelModel(**geometry)
    if kind == "chained":
        return native("chained"), ChainedModel()
    cls = SomeHooks if kind == "some-hooks" else Erratic
    hooks = [hook for hook in HOOKS if getattr(cls, hook) is not getattr(Policy, hook)]
    inner = ChainedModel() if cls is SomeHooks else None
    if inner:
        flags = {**flags, "learns": True}  # chaining is nothing without its tables
    model = HooksModel(cls(seed, **flags), inner, hooks)
    return make_native(cls(seed, **flags), refuse_to_be_set_aside), model


def refuse_to_be_set_aside(policy: Policy, reason: object) -> None:
    raise AssertionError(f"{policy.name} was set aside: {reason}")


KINDS = st.sampled_from(["noop", "single-level", "chained", "chained", "erratic", "some-hooks"])
FLAGS = st.fixed_dictionaries(
    {"learns": st.booleans(), "pre_evicts": st.booleans(), "invalidates": st.booleans()}
)
SEEDS = st.integers(0, 1000)
OPTIONS = st.fixed_dictionaries(
    {
        "depth": st.integers(0, 4),
        "prefetch": st.sampled_from([True, True, True, False]),
        "pre_evict": st.sampled_from([True, True, False]),
        "invalidate": st.sampled_from([True, True, False]),
        "learn_allocations": st.booleans(),
        "drop_clean": st.booleans(),
        "auto_depth": st.sampled_from([False, False, True]),
        "gated": st.booleans(),
        "frees_early": st.booleans(),
        "batches_demand": st.booleans(),
        "low": st.integers(0, 2),
        "high": st.integers(2, 4),
        "window": st.integers(1, 6),
        "max_run": st.integers(1, 3),
        "queue": st.sampled_from([0, 0, 1, 3, 100]),
        "rows": st.sampled_from([2, 64]),
        "ways": st.integers(1, 2),
        "successors": st.integers(1, 3),
        "levels": st.integers(1, 2),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """Feeds one engine event by event, another in batches, and the model; compares everything.

    `eager` drains after each event, which is when a witness can judge each command.
    """

    eager = True

    @initialize(
        budget=st.integers(1, 26), kind=KINDS, seed=SEEDS, flags=FLAGS, options=OPTIONS,
        ready=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def make(self, budget, kind, seed, flags, options, ready) -> None:
        first, model = pair(kind, seed, flags)
        second, _ = pair(kind, seed, flags)
        self.engine = engine(budget, first, **options)
        self.batched = engine(budget, second, **options)
        self.model = EngineModel(budget, model, **options)
        self.witness = Witness(budget)
        self.batch: list[tuple[str, dict[str, int]]] = []
        self.moving_in: list[int] = []
        self.moving_out: list[int] = []
        self.tensors: list[tuple[int, int]] = []
        self.used: set[int] = set()  # units of a quarter block that tensors hold
        self.launched = self.completed = 0
        if ready:
            for chunk in CHUNKS:
                self.send("manage", address=chunk * BLOCK, bytes=SPAN * BLOCK)

    # sending and comparing

    def send(self, kind: str, **fields: int) -> None:
        self.engine.event(kind, **fields)
        self.model.feed(kind, **fields)
        self.batch.append((kind, fields))
        if self.eager:
            self.witness.event(kind, fields)
            self.drain()
        self.compare()

    def compare(self) -> None:
        e, m = self.engine, self.model
        e.check()
        assert e.stats == m.stats
        assert e.resident_blocks() == m.resident_blocks()
        assert e.resident == len(m.resident_blocks())
        assert e.free_frames == m.free_frames() >= 0
        assert e.pinned == sum(block.pinned > m.completed for block in m.blocks.values())
        assert e.in_flight == (m.count("incoming"), m.count("outgoing"))
        running = m.completed + 1 if m.launched > m.completed else None
        assert e.running == running
        assert e.running_exec_id == (None if running is None else m.exec_ids[running])
        for number in BLOCKS:
            block, inspected = m.get(number), e.inspect(number)
            if block is None:
                assert inspected is None
                assert e.state(number) is None
                continue
            assert inspected == {
                "state": block.state, "active_bytes": block.active, "needed": block.needed,
                "pinned": block.pinned, "content": block.content, "ahead": block.ahead,
                "queued": block.queued, "inactive": block in m.dead, "stamp": block.stamp,
            }  # fmt: skip
            assert e.is_resident(number) == (block.state == "resident")

    def drain(self) -> None:
        commands = decode(self.engine.drain())
        assert commands == self.model.drain()
        self.batched.feed(records(self.batch))
        self.batch = []
        assert decode(self.batched.drain()) == commands
        assert self.batched.stats == self.engine.stats
        assert self.batched.resident_blocks() == self.engine.resident_blocks()
        for kind, first, count, _, _ in commands:
            if self.eager:
                self.witness.command(kind, first, count)
            if kind == "prefetch":
                self.moving_in.extend(range(first, first + count))
            elif kind == "evict":
                self.moving_out.extend(range(first, first + count))
        if self.eager:
            self.witness.agrees(self.engine)

    # memory

    @rule(chunk=st.sampled_from(CHUNKS))
    def manage(self, chunk: int) -> None:
        self.send("manage", address=chunk * BLOCK, bytes=SPAN * BLOCK)

    @rule(chunk=st.sampled_from(CHUNKS), ragged=st.booleans())
    def unmanage(self, chunk: int, ragged: bool) -> None:
        if any(chunk <= unit // 4 < chunk + SPAN for unit in self.used):
            return
        # A range that ends inside blocks gives back whole ones only.
        cut = UNIT if ragged else 0
        self.send("unmanage", address=chunk * BLOCK + cut, bytes=SPAN * BLOCK - 2 * cut)

    @rule(
        chunk=st.sampled_from(CHUNKS), start=st.integers(0, 4 * SPAN - 1), size=st.integers(1, 16),
        odd=st.sampled_from([0, 0, 1]),
    )  # fmt: skip
    def alloc(self, chunk: int, start: int, size: int, odd: int) -> None:
        units = range(chunk * 4 + start, chunk * 4 + min(4 * SPAN, start + size))
        if self.used & {*units} or any(self.model.get(u // 4) is None for u in units):
            return
        tensor = (units.start * UNIT, len(units) * UNIT - odd)
        self.used.update(units)
        self.tensors.append(tensor)
        self.send("alloc", address=tensor[0], bytes=tensor[1])

    @precondition(lambda self: self.tensors)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        address, size = self.tensors.pop(data.draw(st.integers(0, len(self.tensors) - 1)))
        self.used -= {*range(address // UNIT, -(-(address + size) // UNIT))}
        self.send("free", address=address, bytes=size)

    # kernels

    @rule(exec_id=st.integers(1, 4))
    def launch(self, exec_id: int) -> None:
        self.launched += 1
        self.send("launch", exec_id=exec_id)

    @rule(block=st.sampled_from(BLOCKS), units=st.integers(0, 9))
    def name_range(self, block: int, units: int) -> None:
        # Never more than leaves every second block free: what all is pinned cannot go on.
        self.send("range", address=block * BLOCK + UNIT, bytes=units * UNIT)

    @rule(count=st.integers(0, 3))
    def complete(self, count: int) -> None:
        self.completed = min(self.launched, self.completed + count)
        self.send("complete", seq=self.completed)

    @rule(block=st.sampled_from(BLOCKS))
    def fault(self, block: int) -> None:
        if self.model.get(block) is not None:
            self.send("fault", address=block * BLOCK + 5)

    @rule(start=st.integers(0, len(BLOCKS) - 1), count=st.integers(1, 6), exec_id=st.integers(1, 4))
    def program(self, start: int, count: int, exec_id: int) -> None:
        """A kernel from launch to end, with a backend that does what it is told."""
        self.launch(exec_id)
        for block in (BLOCKS * 2)[start : start + count]:
            self.fault(block)
            self.settle()
        self.complete(4)

    # the backend

    @rule()
    def settle(self) -> None:
        for _ in range(100):
            self.drain()
            if not self.moving_in and not self.moving_out:
                return
            for moving, kind in ((self.moving_in, "arrived"), (self.moving_out, "departed")):
                while moving:
                    self.send(kind, address=moving.pop(0) * BLOCK)
        raise AssertionError("the engine never comes to rest")

    @precondition(lambda self: self.moving_in)
    @rule(data=st.data())
    def arrived(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.moving_in) - 1))
        self.send("arrived", address=self.moving_in.pop(place) * BLOCK + 7)

    @precondition(lambda self: self.moving_out)
    @rule(data=st.data())
    def departed(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.moving_out) - 1))
        self.send("departed", address=self.moving_out.pop(place) * BLOCK)

    @rule()
    def drain_now(self) -> None:
        self.drain()
        self.compare()

    @rule(kind=KINDS, seed=SEEDS, flags=FLAGS)
    def set_policy(self, kind: str, seed: int, flags: dict[str, bool]) -> None:
        self.drain()
        first, model = pair(kind, seed, flags)
        self.engine.set_policy(first)
        self.batched.set_policy(pair(kind, seed, flags)[0])
        self.model.set_policy(model)
        self.compare()


class LazyEngineMachine(EngineMachine):
    """Drains now and then only: events come in while commands wait."""

    eager = False


TestEngine = EngineMachine.TestCase
TestLazyEngine = LazyEngineMachine.TestCase
TestEngine.settings = TestLazyEngine.settings = examples(
    60,
    stateful_step_count=40,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

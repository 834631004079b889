# SPDX-License-Identifier: Apache-2.0
"""Driving an engine by name: events as tuples, commands as tuples, and an independent witness."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from deepum._core.engine import (
    COMMAND_DEMAND,
    COMMAND_DTYPE,
    COMMAND_TYPES,
    EVENT_DTYPE,
    EVENT_TYPES,
    Engine,
)
from deepum.policy import Policy, make_native

MIB = 1 << 20
BLOCK = 2 * MIB
KINDS = {number: kind for kind, number in COMMAND_TYPES.items()}


Command = tuple[str, int, int, bool, int]
"""Kind, first block, count, whether on the path of a fault, launch."""


def native(name: str, **options: Any) -> Any:
    """Return a built-in policy of the core."""
    module = importlib.import_module("deepum._core." + name.replace("-", "_"))
    return getattr(module, name.title().replace("-", "") + "Policy")(**options)


def engine(budget: int, policy: Any = "noop", **options: Any) -> Engine:
    """Return an engine under a built-in policy's name, a native policy, or a `Policy`."""
    if isinstance(policy, str):
        policy = native(policy)
    elif isinstance(policy, Policy):
        policy = make_native(policy)
    return Engine(budget, policy, **options)


def records(events: Iterable[tuple[str, dict[str, int]]]) -> np.ndarray:
    """Return events as the array that `Engine.feed` takes."""
    events = [*events]
    array = np.zeros(len(events), EVENT_DTYPE)
    for record, (kind, fields) in zip(array, events, strict=True):
        record["type"] = EVENT_TYPES[kind]
        for name, value in fields.items():
            record[name] = value
    return array


def decode(array: np.ndarray) -> list[Command]:
    """Return drained commands as tuples."""
    assert array.dtype == COMMAND_DTYPE
    assert not array["device"].any()
    assert not array["tier"].any()
    assert not array["reserved"].any()
    return [
        (
            KINDS[int(c["type"])],
            int(c["block"]),
            int(c["count"]),
            bool(c["flags"] & COMMAND_DEMAND),
            int(c["seq"]),
        )
        for c in array
    ]


def brief(commands: Iterable[Command]) -> list[str]:
    """Return commands in short, for reading: ``"prefetch 3-5"``, ``"evict 7!"`` for demand."""
    return [
        f"{kind} {block}" + (f"-{block + count - 1}" if count > 1 else "") + "!" * demand
        for kind, block, count, demand, _ in commands
    ]


class Bench:
    """An engine at work: its backend does at once what it is told."""

    def __init__(self, budget: int, policy: Any = "noop", blocks: int = 4096, **options: Any):
        self.engine = engine(budget, policy, **options)
        self.log: list[Command] = []
        self.manage(0, blocks)

    def manage(self, block: int, count: int) -> None:
        self.engine.event("manage", address=block * BLOCK, bytes=count * BLOCK)

    def alloc(self, block: int, count: int = 1) -> None:
        self.engine.event("alloc", address=block * BLOCK, bytes=count * BLOCK)

    def free(self, block: int, count: int = 1) -> None:
        self.engine.event("free", address=block * BLOCK, bytes=count * BLOCK)

    def name(self, block: int, count: int = 1) -> None:
        self.engine.event("range", address=block * BLOCK, bytes=count * BLOCK)

    def launch(self, exec_id: int) -> None:
        self.engine.event("launch", exec_id=exec_id)

    def complete(self, seq: int | None = None) -> None:
        seq = self.engine.stats["launches"] if seq is None else seq
        self.engine.event("complete", seq=seq)

    def fault(self, *blocks: int) -> None:
        for block in blocks:
            self.engine.event("fault", address=block * BLOCK)

    def drain(self) -> list[Command]:
        """Return the commands due, carrying nothing out."""
        return decode(self.engine.drain())

    def carry_out(self, commands: Iterable[Command]) -> None:
        for kind, first, count, _, _ in commands:
            for block in range(first, first + count):
                if kind == "prefetch":
                    self.engine.event("arrived", address=block * BLOCK)
                elif kind == "evict":
                    self.engine.event("departed", address=block * BLOCK)

    def settle(self) -> list[Command]:
        """Drain and carry out until nothing is due; return all commands."""
        done: list[Command] = []
        while commands := self.drain():
            self.carry_out(commands)
            done += commands
        self.engine.check()
        self.log += done
        return done

    def touch(self, *blocks: int) -> list[Command]:
        """Touch blocks one by one as a kernel does: those absent fault. Return the commands."""
        done = []
        for block in blocks:
            if not self.engine.is_resident(block):
                self.fault(block)
            done += self.settle()
            assert self.engine.is_resident(block)
        return done

    def run(self, exec_id: int, *blocks: int) -> list[Command]:
        """Launch a kernel, let it touch its blocks, complete it; return all commands."""
        self.launch(exec_id)
        done = [*self.settle(), *self.touch(*blocks)]
        self.complete()
        return [*done, *self.settle()]


class Witness:
    """Watches events and commands from outside and knows what must never happen."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.managed: set[int] = set()
        self.active: dict[int, int] = {}
        self.where: dict[int, str] = {}  # blocks with a frame: "incoming", "resident", "outgoing"
        self.pinned: dict[int, int] = {}
        self.ranges: list[range] = []
        self.launched = self.completed = 0

    def event(self, kind: str, fields: dict[str, int]) -> None:
        address, size = fields.get("address", 0), fields.get("bytes", 0)
        block = address // BLOCK
        blocks = range(block, (address + size - 1) // BLOCK + 1) if size else range(0)
        if kind == "manage":
            self.managed.update(blocks)
        elif kind == "unmanage":
            for gone in range(-(-address // BLOCK), (address + size) // BLOCK):
                self.managed.discard(gone)
                if self.where.get(gone) == "resident":
                    del self.where[gone]
        elif kind in ("alloc", "free"):
            for part in blocks:
                here = min(address + size, (part + 1) * BLOCK) - max(address, part * BLOCK)
                sign = 1 if kind == "alloc" else -1
                self.active[part] = self.active.get(part, 0) + sign * here
        elif kind == "range":
            self.ranges.append(blocks)
        elif kind == "launch":
            self.launched += 1
            for named in self.ranges:
                self.pinned.update(dict.fromkeys(self.managed & {*named}, self.launched))
            self.ranges = []
        elif kind == "complete":
            self.completed = max(self.completed, fields["seq"])
        elif kind == "fault":
            if self.launched > self.completed:
                self.pinned[block] = max(self.pinned.get(block, 0), self.completed + 1)
        elif kind == "arrived":
            assert self.where.pop(block) == "incoming"
            if block in self.managed:
                self.where[block] = "resident"
        elif kind == "departed":
            assert self.where.pop(block) == "outgoing"

    def command(self, kind: str, first: int, count: int) -> None:
        assert count >= 1
        for block in range(first, first + count):
            assert block in self.managed, "a command for memory that is not managed"
            if kind == "prefetch":
                assert block not in self.where, "brought in twice"
                self.where[block] = "incoming"
                assert len(self.where) <= self.budget, "over the budget"
                continue
            assert self.where[block] == "resident", "evicted while not resident"
            assert self.pinned.get(block, 0) <= self.completed, "evicted while a launch needs it"
            if kind == "evict":
                self.where[block] = "outgoing"
            else:
                assert kind == "discard"
                assert not self.active.get(block), "dropped while a tensor lives in it"
                del self.where[block]

    def agrees(self, engine: Engine) -> None:
        """Compare with what the engine says of each block."""
        for block in self.managed:
            assert engine.state(block) == self.where.get(block, "absent")
        assert engine.budget - engine.free_frames == len(self.where)

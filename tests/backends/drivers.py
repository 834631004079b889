# SPDX-License-Identifier: Apache-2.0
"""One program, several backends: what drives a simulated and a real session the same way.

A program is a list of steps; a step is a list of calls. Tensors are named by letters and measured
in blocks. ``("alloc", "a", 3)``, ``("free", "a")``, and ``("run", "kernel", "ab")``: the kernel
touches every block of ``a``, then of ``b``, in order.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np

import deepum
from deepum._core.engine import Engine
from deepum.backends.host import HostBackend
from deepum.backends.sim import SimBackend
from deepum.machine import Machine
from deepum.policy import make, make_native
from deepum.record.allocator import BASE, CachingAllocator

from ..core.harness import decode

MIB = 1 << 20
BLOCK = 2 * MIB

Call = tuple[Any, ...]
Program = list[list[Call]]

COUNTS = (
    "faults", "prefetched", "pre_evictions", "fault_evictions", "discarded", "refused",
)  # fmt: skip

# Kernels that take so long that nothing is under way when the next begins, and one fault at a
# time, as a single thread makes them.
SLOW = dataclasses.replace(
    Machine.load("v100-pcie3-32g"), fault_window_blocks=1, fault_evict_ahead_blocks=0
)


def touch(array: np.ndarray, block: int) -> None:
    """Write to a block of a byte array; so much of it that numpy lets the GIL go."""
    array[block * BLOCK : block * BLOCK + 8192] += 1


@dataclasses.dataclass
class Outcome:
    """What a step left: blocks from the first one of the mapping on, and counts."""

    resident: list[int]
    counts: dict[str, int]


class Simulated:
    """The simulator runs the program as a trace."""

    name = "sim"

    def run(
        self, program: Program, policy: Any, budget: int, setup: list[Call] = (), **options: Any
    ) -> list[Outcome]:
        b = deepum.Trace.builder("program", times="measured")
        held: dict[str, int] = {}
        self._play(b, held, setup)
        for step in program:
            b.step()
            self._play(b, held, step)
        backend = SimBackend(b.build(), SLOW, policy, memory=budget * BLOCK, **options)
        outcomes = []
        for _ in program:
            done = backend.run(1).iterations[0]
            blocks = [block - (BASE // BLOCK) for block in backend.engine.resident_blocks()]
            counts = {name: getattr(done, name) for name in COUNTS}
            outcomes.append(Outcome(sorted(blocks), counts))
        return outcomes

    @staticmethod
    def _play(b: Any, held: dict[str, int], calls: list[Call]) -> None:
        for what, name, *more in calls:
            if what == "alloc":
                held[name] = b.alloc(more[0] * BLOCK, "parameter")
            elif what == "free":
                b.free(held.pop(name))
            else:
                b.launch(name, [(held[t], "rw") for t in more[0]], time_ns=10**9)


class Host:
    """A host backend runs the program; everything settles before it goes on."""

    def __init__(self, name: str, open_mechanism: Any, **options: Any) -> None:
        self.name = name
        self.open_mechanism = open_mechanism
        self.options = options

    def backend(self, policy: Any, budget: int, **more: Any) -> HostBackend:
        options = {**self.options, **more.pop("options", {})}
        return HostBackend(
            self.name, self.open_mechanism, policy, memory_limit=budget * BLOCK,
            options=options, **more,
        )  # fmt: skip

    def run(
        self, program: Program, policy: Any, budget: int, setup: list[Call] = (), **more: Any
    ) -> list[Outcome]:
        options = {"ranges": False, **more.pop("options", {})}
        backend = self.backend(policy, budget, options=options, **more)
        try:
            return list(self._run(backend, program, setup))
        finally:
            backend.close()

    def _run(self, backend: HostBackend, program: Program, setup: list[Call]) -> Any:
        held: dict[str, Any] = {}
        first = backend.mechanism.address // BLOCK
        before = backend.stats
        self._play(backend, held, setup)
        for step in program:
            self._play(backend, held, step)
            now = backend.stats
            counts = {name: now[name] - before[name] for name in COUNTS}
            before = now
            blocks = [block - first for block in backend.mechanism.present()]
            with backend.live.held() as engine:
                engine.check()
                assert sorted(engine.resident_blocks()) == [b + first for b in blocks]
            yield Outcome(blocks, counts)

    @staticmethod
    def _play(backend: HostBackend, held: dict[str, Any], calls: list[Call]) -> None:
        for what, name, *more in calls:
            if what == "alloc":
                held[name] = backend.empty(more[0] * BLOCK, np.uint8)
            elif what == "free":
                del held[name]
            else:
                with backend.launch(name, [held[t] for t in more[0]]):
                    assert backend.settle()
                    for tensor in more[0]:
                        for block in range(len(held[tensor]) // BLOCK):
                            touch(held[tensor], block)
                            assert backend.settle()
            assert backend.settle()


class Stepped:
    """The engine with a mechanism in plain Python: one block at a time, nothing at once.

    This is what every mechanism must come to when nothing else disturbs it.
    """

    name = "engine"

    def run(
        self, program: Program, policy: Any, budget: int, setup: list[Call] = (), **options: Any
    ) -> list[Outcome]:
        self.engine = Engine(
            budget,
            make_native(make(policy)),
            follows=True,
            depth=options.get("depth", 32),
            prefetch="prefetch" not in options.get("without", ()),
            pre_evict="pre-evict" not in options.get("without", ()),
            invalidate="invalidate" not in options.get("without", ()),
        )
        self.heap = CachingAllocator()
        self.held: dict[str, Any] = {}
        self.frames = budget
        self.where: dict[int, str] = {}  # "present", or the queue it waits in
        self.queues: dict[str, list[int]] = {"urgent": [], "ahead": [], "out": []}
        self.order: dict[int, int] = {}
        self.clock = 0
        self.waiting: set[int] = set()
        self.seq = 0
        before = self._counts()
        self._play(setup)
        outcomes = []
        for step in program:
            self._play(step)
            now = self._counts()
            present = sorted(b for b, at in self.where.items() if at == "present")
            assert sorted(self.engine.resident_blocks()) == present
            outcomes.append(
                Outcome(
                    [block - BASE // BLOCK for block in present],
                    {name: now[name] - before[name] for name in COUNTS},
                )
            )
            before = now
        return outcomes

    def _counts(self) -> dict[str, int]:
        stats = self.engine.stats
        names = {"pre_evictions": "pre_evicted", "fault_evictions": "demand_evicted"}
        return {name: stats[names.get(name, name)] for name in COUNTS}

    def _play(self, calls: list[Call]) -> None:
        for what, name, *more in calls:
            if what == "alloc":
                block = self.heap.from_cache(more[0] * BLOCK)
                if block is None:
                    address, size = self.heap.segment_for(more[0] * BLOCK)
                    self.tell("manage", address=address, bytes=size)
                    block = self.heap.from_driver(more[0] * BLOCK)
                self.held[name] = block
                self.tell("alloc", address=block.address, bytes=block.block_bytes)
            elif what == "free":
                block = self.held.pop(name)
                self.heap.free(block.address)
                self.tell("free", address=block.address, bytes=block.block_bytes)
            else:
                self.seq += 1
                self.tell("launch", exec_id=zlib.crc32(f"{name}{self._where(more[0])}".encode()))
                for tensor in more[0]:
                    first = self.held[tensor].address // BLOCK
                    for block in range(first, first + self.held[tensor].block_bytes // BLOCK):
                        self.touch(block)
                self.tell("complete", seq=self.seq)

    def _where(self, tensors: str) -> list[int]:
        return [self.held[tensor].address for tensor in tensors]

    def touch(self, block: int) -> None:
        if self.where.get(block) == "present":
            return
        self.waiting.add(block)
        self.tell("fault", address=block * BLOCK)
        assert self.where[block] == "present"

    def tell(self, kind: str, **fields: int) -> None:
        self.engine.event(kind, **fields)
        self.route()
        while (report := self.move()) is not None:
            self.engine.event(report[0], address=report[1] * BLOCK)
            self.route()
        assert not self.waiting
        self.engine.check()

    def push(self, block: int, queue: str, front: bool) -> None:
        self.clock += 1
        self.order[block] = self.clock
        self.queues[queue].insert(0 if front else len(self.queues[queue]), block)
        self.where[block] = queue

    def route(self) -> None:
        for kind, first, count, demand, _ in decode(self.engine.drain()):
            for block in range(first, first + count):
                if kind == "prefetch":
                    assert block not in self.where
                    urgent = demand or block in self.waiting
                    self.push(block, "urgent" if urgent else "ahead", front=False)
                elif kind == "evict":
                    assert self.where[block] == "present"
                    self.push(block, "out", front=demand)
                else:
                    assert self.where.pop(block) == "present"
                    self.frames += 1

    def move(self) -> tuple[str, int] | None:
        urgent, ahead, out = self.queues["urgent"], self.queues["ahead"], self.queues["out"]
        if urgent:
            assert self.frames
            return self.bring(urgent.pop(0))
        if out and (self.waiting or not ahead or self.order[out[0]] < self.order[ahead[0]]):
            block = out.pop(0)
            del self.where[block]
            self.frames += 1
            return "departed", block
        if ahead:
            assert self.frames
            return self.bring(ahead.pop(0))
        return None

    def bring(self, block: int) -> tuple[str, int]:
        self.frames -= 1
        self.where[block] = "present"
        self.waiting.discard(block)
        return "arrived", block

# SPDX-License-Identifier: Apache-2.0
"""The core again in plain Python: short and slow, for comparison.

Nothing here is shared with the compiled code but the meaning: dicts, lists and recursion instead
of hash tables, linked lists and rings.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MIB2 = 1 << 21
ADDRESS_END = (1 << 53) - MIB2


# -- tables ---------------------------------------------------------------------------------------


class ExecModel:
    """Which kernel follows which: contexts of 3, 2 and 1 predecessors in one dict."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.following: dict[tuple[int | None, ...], int] = {}
        self.records: dict[tuple[int, tuple[int | None, ...], int], list[int]] = {}
        self.clock = 0

    @staticmethod
    def split(context: Sequence[int]) -> tuple[int, tuple[int | None, ...]]:
        """Return the current kernel and its three predecessors, nearest first."""
        newest_first = [*reversed(context)][:4]
        padded = [*newest_first, None, None, None, None][:4]
        return newest_first[0], tuple(padded[1:])

    def update(self, context: Sequence[int], exec_id: int) -> None:
        self.known.update(context[-4:])
        self.known.add(exec_id)
        if not context:
            return
        current, before = self.split(context)
        self.clock += 1
        for length in (3, 2, 1):
            self.following[(current, *before[:length])] = exec_id
        record = self.records.setdefault((current, before, exec_id), [0, 0])
        record[0] += 1
        record[1] = self.clock

    def predict(self, context: Sequence[int]) -> int | None:
        if not context:
            return None
        current, before = self.split(context)
        for length in (3, 2, 1):
            found = self.following.get((current, *before[:length]))
            if found is not None:
                return found
        return None

    def predict_chain(self, context: Sequence[int], depth: int) -> list[int]:
        context, chain = [*context], []
        while len(chain) < depth and (found := self.predict(context)) is not None:
            chain.append(found)
            context.append(found)
        return chain

    def records_of(self, exec_id: int) -> list[tuple[tuple[int, ...], int, int, int]]:
        found = [
            (tuple(p for p in reversed(before) if p is not None), following, count, recency)
            for (current, before, following), (count, recency) in self.records.items()
            if current == exec_id
        ]
        return sorted(found, key=lambda record: -record[3])


@dataclasses.dataclass(eq=False)
class Way:
    """One way of a row; when its block is replaced, the way stays."""

    block: int
    successors: list[list[int]]


class BlockModel:
    """One UM-block table: rows of ways, most recently used first."""

    def __init__(
        self, rows: int = 2048, ways: int = 2, successors: int = 4, levels: int = 1
    ) -> None:
        self.rows, self.ways, self.kept, self.levels = rows, ways, successors, levels
        self.table: dict[int, list[Way]] = {}
        self.made: list[Way] = []  # all ways, oldest first
        self.start: int | None = None
        self.end: int | None = None
        self.last: list[int] = []

    def row(self, block: int) -> list[Way]:
        return self.table.get(block % self.rows, [])

    def find(self, block: int) -> Way | None:
        return next((way for way in self.row(block) if way.block == block), None)

    def touch(self, block: int) -> None:
        row = self.table.setdefault(block % self.rows, [])
        way = self.find(block)
        if way is None and len(row) == self.ways:
            way = row[-1]
            way.block, way.successors = block, [[] for _ in range(self.levels)]
        elif way is None:
            way = Way(block, [[] for _ in range(self.levels)])
            self.made.append(way)
            row.append(way)
        row.remove(way)
        row.insert(0, way)

    def link(self, block: int, follower: int, level: int) -> None:
        way = self.find(block)
        if way is not None:
            kept = [other for other in way.successors[level] if other != follower]
            way.successors[level] = [follower, *kept][: self.kept]

    def begin(self) -> None:
        self.last = []

    def record(self, block: int) -> None:
        new = self.find(block) is None
        if self.start is None:
            self.start = self.end = block
        elif not self.last:
            if new and block != self.end:
                assert self.end is not None
                self.link(self.end, block, 0)
                self.end = block
        else:
            if new:
                self.end = block
            for level, before in enumerate(self.last):
                self.link(before, block, level)
        self.touch(block)
        self.last = [block, *self.last][: self.levels]

    def enter(self, block: int) -> None:
        """Enter an allocated block; a full row keeps what it has."""
        if self.find(block) is None and len(self.row(block)) < self.ways:
            last, self.last = self.last, []
            self.record(block)
            self.last = last

    def walk(self, block: int | None = None) -> WalkModel:
        """Walk from a block to what is reachable; without one from the start, then what is left."""
        return WalkModel(self, self.start if block is None else block, block is None)

    def __len__(self) -> int:
        return sum(len(row) for row in self.table.values())


class WalkModel:
    """Depth first, most recent successor first; the table may change between two steps."""

    def __init__(self, table: BlockModel, first: int | None, whole: bool) -> None:
        self.table, self.whole = table, whole
        self.stack = [] if first is None else [first]
        self.expanded: list[Way] = []

    def __iter__(self) -> WalkModel:
        return self

    def __next__(self) -> int:
        while True:
            if not self.stack and self.whole:
                rest = (way.block for way in self.table.made if way not in self.expanded)
                self.stack = [*rest][:1]
            if not self.stack:
                raise StopIteration
            block = self.stack.pop()
            way = self.table.find(block)
            if way is None:
                return block
            if way not in self.expanded:
                self.expanded.append(way)
                for level in reversed(way.successors):
                    self.stack.extend(reversed(level))
                return block


# -- engine ---------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class Block:
    """What the engine knows of a block."""

    number: int
    order: int  # of its leaf of 1024 blocks
    state: str = "absent"
    active: int = 0
    needed: int = 0
    pinned: int = 0
    freed: int = 0
    stamp: int = 0
    managed: bool = False
    content: bool = False
    ahead: bool = False
    queued: bool = False


class NoopModel:
    """Plain demand paging."""

    learns = pre_evicts = invalidates = False
    queue = 0

    def on_launch(self, engine: EngineModel, seq: int, kernel: int) -> None: ...

    def on_fault(self, engine: EngineModel, block: int) -> None: ...

    def on_complete(self, engine: EngineModel, seq: int) -> None: ...

    def on_alloc(self, engine: EngineModel, address: int, size: int) -> None: ...

    def on_free(self, engine: EngineModel, address: int, size: int) -> None: ...

    def advance(self, engine: EngineModel) -> None: ...

    def victim(self, engine: EngineModel, wanted: int, demand: bool) -> int | None:
        """Return a block to evict; None leaves the choice to the engine."""
        return None


class SingleLevelModel(NoopModel):
    """Pair correlation on faults."""

    pre_evicts = invalidates = True

    def __init__(self, **geometry: int) -> None:
        self.table = BlockModel(**{"rows": 65536, **geometry})

    def on_fault(self, engine: EngineModel, block: int) -> None:
        self.table.record(block)
        way = self.table.find(block)
        assert way is not None
        for level in way.successors:
            for successor in level:
                if engine.room():
                    engine.want(successor, 0)


class ChainedModel(NoopModel):
    """Chained prefetching."""

    learns = pre_evicts = invalidates = True

    def __init__(self) -> None:
        self.chain: Iterator[int] | None = None
        self.context: list[int] = []  # oldest first
        self.position = 0
        self.expected: dict[int, int] = {}
        self.after_fault: Iterator[int] | None = None
        self.fault_position = 0
        self.fault_kernel = -1
        self.named: dict[int, list[tuple[int, int]]] = {}  # kernel -> what it named last
        self.spoken: dict[int, int] = {}  # launch to come -> blocks that the chain wants for it

    def on_launch(self, engine: EngineModel, seq: int, kernel: int) -> None:
        if engine.ranges:  # the launch names its memory: no need to wait for faults
            changed = not engine.gated or self.named.get(kernel) != engine.ranges
            self.named[kernel] = engine.ranges
            if engine.gated and changed:
                engine.tables[kernel] = BlockModel(**engine.geometry)
                if self.fault_kernel == kernel:
                    self.after_fault = None
            if changed:
                for address, size in engine.ranges:
                    for number in outer(address, size):
                        engine.tables[kernel].enter(number)
            if engine.gated and changed and self.chain and self.context[-1] == kernel:
                self.chain = engine.tables[kernel].walk()
            if not engine.gated:
                self.fault_kernel = kernel
                self.fault_position = engine.launched
                self.after_fault = engine.tables[kernel].walk()
        if self.chain is None or seq > self.position or self.expected.get(seq) != kernel:
            self.context = [*engine.context]
            self.position = engine.launched
            self.spoken = {}
            self.expected[self.position] = kernel
            self.chain = engine.tables[kernel].walk()

    def on_fault(self, engine: EngineModel, block: int) -> None:
        kernel = engine.running_kernel()
        if kernel is not None:
            self.fault_kernel = kernel
            self.fault_position = engine.completed + 1
            self.after_fault = engine.tables[kernel].walk(block)

    def advance(self, engine: EngineModel) -> None:
        while self.after_fault is not None and engine.room():
            block = next(self.after_fault, None)
            if block is None:
                self.after_fault = None
            else:
                engine.want(block, self.fault_position)
        while self.chain is not None and engine.room():
            block = next(self.chain, None)
            if block is not None:
                engine.want(block, self.position)
                self.spoken[self.position] = self.spoken.get(self.position, 0) + 1
                continue
            if self.position >= engine.completed + 1 + engine.depth:
                return
            spoken = sum(n for seq, n in self.spoken.items() if seq > engine.completed)
            pinned = sum(block.pinned > engine.completed for block in engine.blocks.values())
            spoken += pinned if engine.gated else 0
            if (engine.auto_depth or engine.gated) and spoken * 4 > engine.budget * 3:
                return
            kernel = engine.execs.predict(self.context)
            if kernel is None:
                self.chain = None
                return
            self.context = [*self.context, kernel][-4:]
            self.position += 1
            self.expected[self.position] = kernel
            self.chain = engine.tables[kernel].walk()


class HooksModel(NoopModel):
    """A policy in Python: its hooks are called with a `ViewModel`, after its native part."""

    def __init__(self, policy: Any, native: NoopModel | None, hooks: Sequence[str]) -> None:
        self.policy, self.native, self.hooks = policy, native or NoopModel(), hooks
        self.learns, self.pre_evicts = policy.learns, policy.pre_evicts
        self.invalidates, self.queue = policy.invalidates, policy.queue
        self.answers: deque[int] = deque()

    def call(self, hook: str, engine: EngineModel, event: Event | Allocation) -> None:
        if hook in self.hooks:
            self.answers.clear()
            getattr(self.policy, hook)(ViewModel(engine), event)

    def on_launch(self, engine: EngineModel, seq: int, kernel: int) -> None:
        self.native.on_launch(engine, seq, kernel)
        event = engine.event_of(seq)
        self.call("on_launch", engine, dataclasses.replace(event, ranges=tuple(engine.ranges)))

    def on_fault(self, engine: EngineModel, block: int) -> None:
        self.native.on_fault(engine, block)
        event = Event(0, 0, block=block)
        if engine.launched > engine.completed:
            event = dataclasses.replace(engine.event_of(engine.completed + 1), block=block)
        self.call("on_fault", engine, event)

    def on_complete(self, engine: EngineModel, seq: int) -> None:
        self.native.on_complete(engine, seq)
        self.call("on_complete", engine, engine.event_of(seq))

    def on_alloc(self, engine: EngineModel, address: int, size: int) -> None:
        self.native.on_alloc(engine, address, size)
        self.call("on_alloc", engine, Allocation(address, size))

    def on_free(self, engine: EngineModel, address: int, size: int) -> None:
        self.native.on_free(engine, address, size)
        self.call("on_free", engine, Allocation(address, size))

    def advance(self, engine: EngineModel) -> None:
        self.native.advance(engine)

    def victim(self, engine: EngineModel, wanted: int, demand: bool) -> int | None:
        if "victims" not in self.hooks:
            return self.native.victim(engine, wanted, demand)
        if not self.answers:
            answer = self.policy.victims(ViewModel(engine), wanted)
            self.answers.extend([*(answer or [])][:wanted])
        while self.answers:
            block = self.answers.popleft()
            if engine.may_evict(block):
                return block
            engine.stats["refused"] += 1
        return None


@dataclasses.dataclass(frozen=True)
class Event:
    """What a hook is told: a `Launch` or a `Fault`."""

    exec_id: int
    seq: int
    ranges: tuple[tuple[int, int], ...] = ()
    block: int = 0


@dataclasses.dataclass(frozen=True)
class Allocation:
    """What a hook is told of memory."""

    address: int
    bytes: int
    kind: str = ""


class ViewModel:
    """What a hook may ask."""

    def __init__(self, engine: EngineModel) -> None:
        self.engine = engine
        self.budget_blocks = engine.budget

    @property
    def free_blocks(self) -> int:
        return self.engine.free_frames()

    @property
    def resident_blocks(self) -> list[int]:
        return self.engine.resident_blocks()

    def prefetch(self, block: int, count: int = 1) -> int:
        return sum(self.engine.want(block + i, 0) for i in range(count))

    def evict(self, block: int, count: int = 1) -> int:
        accepted = 0
        for number in range(block, block + count):
            if self.engine.may_evict(number):
                self.engine.evict(self.engine.blocks[number], False)
                accepted += 1
            else:
                self.engine.stats["refused"] += 1
        return accepted

    def wait_for_evictions(self) -> None:
        self.engine.fenced = self.engine.count("outgoing") > 0

    def wait_for_kernels(self) -> None:
        """Do nothing: it matters to backends where the program runs ahead of its kernels."""

    def is_resident(self, block: int) -> bool:
        known = self.engine.get(block)
        return known is not None and known.state == "resident"

    def predict(self, exec_id: int, depth: int = 1) -> list[int]:
        context = self.engine.context
        if not context or context[-1] != exec_id:
            context = [exec_id]
        return self.engine.execs.predict_chain(context, depth)

    def blocks_of(self, exec_id: int) -> list[int]:
        table = self.engine.tables.get(exec_id)
        return [] if table is None else [*table.walk()]

    @property
    def running(self) -> Event | None:
        engine = self.engine
        if engine.launched == engine.completed:
            return None
        return engine.event_of(engine.completed + 1)


COUNTERS = (
    "launches", "faults", "misses", "prefetched", "prefetch_used", "late", "wasted", "pre_evicted",
    "demand_evicted", "discarded", "refused",
)  # fmt: skip


class EngineModel:
    """Events in, commands out: each a tuple (kind, first block, count, demand, launch)."""

    def __init__(
        self,
        budget: int,
        policy: NoopModel,
        *,
        depth: int = 32,
        prefetch: bool = True,
        pre_evict: bool = True,
        invalidate: bool = True,
        learn_allocations: bool = True,
        drop_clean: bool = False,
        auto_depth: bool = False,
        gated: bool = False,
        frees_early: bool = False,
        batches_demand: bool = False,
        low: int = 32,
        high: int = 64,
        window: int = 32,
        max_run: int = 16,
        queue: int = 0,
        **geometry: int,
    ) -> None:
        # Without a backend that knows about writes, all that has arrived counts as written.
        del drop_clean
        self.budget, self.max_run, self.geometry = budget, max_run, geometry
        self.depth, self.auto_depth = 1023 if auto_depth else depth, auto_depth
        self.allowed = (prefetch, pre_evict, invalidate)
        self.learn_allocations = learn_allocations
        self.gated, self.frees_early, self.batches_demand = gated, frees_early, batches_demand
        self.low, self.high = min(low, budget // 8), min(high, budget // 4)
        self.window = max(1, min(window, budget // 2))
        self.queue_asked = queue
        self.blocks: dict[int, Block] = {}
        self.leaves: list[int] = []
        self.migrated: list[Block] = []  # least recently migrated first
        self.dead: list[Block] = []  # resident and inactive, first freed first
        self.clock = 0
        self.launched = self.completed = 0
        self.exec_ids: dict[int, int] = {}
        self.kernels: dict[int, int | None] = {}
        self.fresh: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.queue: deque[Block] = deque()
        self.demand: deque[Block] = deque()
        self.commands: list[list[Any]] = []
        self.stats = dict.fromkeys(COUNTERS, 0)
        self.execs = ExecModel()
        self.tables: dict[int, BlockModel] = {}
        self.context: list[int] = []
        self.fault_seq = 0
        self.fault_last: list[int] = []
        self.set_policy(policy)

    # policies

    def set_policy(self, policy: NoopModel) -> None:
        self.policy = policy
        for block in self.queue:
            block.queued = False
        self.queue.clear()
        self.fenced = False
        limit = self.queue_asked or policy.queue
        self.queue_limit = min(limit, self.budget) or max(1, min(1024, self.budget // 8))
        self.prefetches = self.allowed[0]
        self.pre_evicts = self.allowed[1] and policy.pre_evicts
        self.invalidates = self.allowed[2] and policy.invalidates
        for block in sorted(self.blocks.values(), key=lambda b: (b.order, b.number)):
            dead = self.invalidates and block.active == 0
            if block.state == "resident" and dead != (block in self.dead):
                self.change_list(block, dead)
            elif block.state == "absent" and dead:
                block.content = False

    # events

    def feed(self, kind: str, **fields: int) -> None:
        address, size = fields.get("address", 0), fields.get("bytes", 0)
        if address >= ADDRESS_END or size > ADDRESS_END - address:
            raise ValueError("above 2^53")
        handler: Callable[..., None] = getattr(self, "on_" + kind)
        if kind == "launch":
            handler(fields.get("exec_id", 0))
        elif kind == "complete":
            handler(fields.get("seq", 0))
        elif kind in ("fault", "arrived", "departed"):
            block = self.get(address >> 21)
            if block is None and kind != "fault":
                block = self.blocks.get(address >> 21)
            if block is None:
                raise ValueError("unmanaged")
            handler(block)
        else:
            handler(address, size)

    def on_launch(self, exec_id: int) -> None:
        if self.launched - self.completed >= 4096:
            raise ValueError("too many launches")
        self.launched += 1
        self.stats["launches"] += 1
        kernel = exec_id if self.policy.learns else None
        if kernel is not None:
            table = self.tables.setdefault(kernel, BlockModel(**self.geometry))
            self.execs.known.add(kernel)
            if self.context:
                self.execs.update(self.context, kernel)
            self.context = [*self.context, kernel][-4:]
            for block in self.fresh:
                table.enter(block)
        self.fresh = []
        self.kernels[self.launched] = kernel
        self.exec_ids[self.launched] = exec_id
        for address, size in self.ranges:
            for number in outer(address, size):
                if (found := self.get(number)) is not None:
                    found.pinned = self.launched
        self.policy.on_launch(self, self.launched, exec_id)
        if self.gated:
            self.demand_ranges()
        self.ranges = []

    def demand_ranges(self) -> None:
        for number in (n for address, size in self.ranges for n in outer(address, size)):
            block = self.get(number)
            if block is None:
                continue
            if block.state in ("incoming", "resident"):
                if block.ahead:
                    block.ahead = False
                    self.stats["prefetch_used"] += 1
                    self.stats["late"] += block.state == "incoming"
            elif block not in self.demand:
                self.stats["misses"] += not block.queued
                self.demand.append(block)

    def on_complete(self, seq: int) -> None:
        if seq > self.launched:
            raise ValueError("completed before it was submitted")
        if seq > self.completed:
            self.completed = seq
            self.policy.on_complete(self, seq)

    def on_range(self, address: int, size: int) -> None:
        self.ranges.append((address, size))

    def on_fault(self, block: Block) -> None:
        if self.launched > self.completed:
            block.pinned = max(block.pinned, self.completed + 1)
        if block.state == "resident":
            return
        if block.state == "incoming":
            if block.ahead:
                block.ahead = False
                self.stats["late"] += 1
                self.stats["prefetch_used"] += 1
            return
        if block in self.demand:
            return
        self.demand.append(block)
        if block.queued:
            return
        self.stats["faults"] += 1
        if self.launched > self.completed:
            seq = self.completed + 1
            kernel = self.kernels[seq]
            if kernel is not None:
                table = self.tables[kernel]
                table.last = self.fault_last if self.fault_seq == seq else []
                table.record(block.number)
                self.fault_seq, self.fault_last = seq, table.last
        self.policy.on_fault(self, block.number)

    def on_arrived(self, block: Block) -> None:
        if block.state != "incoming":
            raise ValueError("was not on its way")
        self.clock += 1
        block.state, block.stamp, block.content = "resident", self.clock, True
        if not block.managed:
            block.state, block.content = "absent", False
        elif self.invalidates and block.active == 0:
            self.dead.append(block)
        else:
            self.migrated.append(block)

    def on_departed(self, block: Block) -> None:
        if block.state != "outgoing":
            raise ValueError("was not evicted")
        block.state = "absent"
        self.fenced = self.fenced and self.count("outgoing") > 0
        if not block.managed or (self.invalidates and block.active == 0):
            block.content = False

    def on_manage(self, address: int, size: int) -> None:
        for number in outer(address, size):
            if number >> 10 not in self.leaves:
                self.leaves.append(number >> 10)
            order = self.leaves.index(number >> 10)
            self.blocks.setdefault(number, Block(number, order)).managed = True

    def on_unmanage(self, address: int, size: int) -> None:
        inner = range(-(-address // MIB2), (address + size) // MIB2)
        found = [block for number in inner if (block := self.get(number)) is not None]
        if any(block.active for block in found):
            raise ValueError("a tensor lives in it")
        for block in found:
            self.stats["wasted"] += block.ahead
            block.managed = block.content = block.ahead = False
            if block.state == "resident":
                self.unlist(block)
                block.state = "absent"

    def pieces(self, address: int, size: int) -> Iterator[tuple[Block | None, int]]:
        for number in outer(address, size):
            start, stop = max(address, number * MIB2), min(address + size, (number + 1) * MIB2)
            yield self.get(number), stop - start

    def on_alloc(self, address: int, size: int) -> None:
        pieces = [*self.pieces(address, size)]
        for block, part in pieces:
            if block is None or block.active + part > MIB2:
                raise ValueError("unmanaged or allocated twice")
        for block, part in pieces:
            assert block is not None
            if block in self.dead:
                self.change_list(block, False)
            block.active += part
            if self.policy.learns and self.learn_allocations and len(self.fresh) < self.budget:
                self.fresh.append(block.number)
        self.policy.on_alloc(self, address, size)

    def on_free(self, address: int, size: int) -> None:
        pieces = [*self.pieces(address, size)]
        for block, part in pieces:
            if block is None or block.active < part:
                raise ValueError("not allocated")
        for block, part in pieces:
            assert block is not None
            block.active -= part
            if block.active == 0 and self.frees_early:
                block.freed = self.launched
            if block.active == 0 and self.invalidates:
                if block.state == "resident":
                    self.change_list(block, True)
                elif block.state == "absent":
                    block.content = False
        self.policy.on_free(self, address, size)

    # what a policy asks for

    def get(self, number: int) -> Block | None:
        block = self.blocks.get(number)
        return block if block is not None and block.managed else None

    def event_of(self, seq: int) -> Event:
        return Event(self.exec_ids[seq], seq)

    def running_kernel(self) -> int | None:
        return self.kernels[self.completed + 1] if self.launched > self.completed else None

    def room(self) -> bool:
        return self.prefetches and len(self.queue) < self.queue_limit

    def want(self, number: int, position: int) -> bool:
        block = self.get(number)
        if block is None:
            self.stats["refused"] += 1
            return False
        block.needed = max(block.needed, position)
        if not self.prefetches or block.queued or block.state in ("incoming", "resident"):
            return True
        if len(self.queue) >= self.queue_limit:
            self.stats["refused"] += 1
            return False
        block.queued = True
        self.queue.append(block)
        return True

    def may_evict(self, number: int) -> bool:
        block = self.get(number)
        return block is not None and block.state == "resident" and block.pinned <= self.completed

    # frames

    def change_list(self, block: Block, dead: bool) -> None:
        self.unlist(block)
        if dead:
            self.dead.append(block)
        else:
            self.clock += 1
            block.stamp = self.clock
            self.migrated.append(block)

    def unlist(self, block: Block) -> None:
        (self.dead if block in self.dead else self.migrated).remove(block)

    def count(self, state: str) -> int:
        return sum(block.state == state for block in self.blocks.values())

    def free_frames(self) -> int:
        return self.budget - (len(self.blocks) - self.count("absent"))

    def resident_blocks(self) -> list[int]:
        return [block.number for block in (*self.dead, *self.migrated)]

    def victim(self, demand: bool, wanted: int) -> Block | None:
        chosen = self.policy.victim(self, wanted, demand)
        if chosen is not None:
            return self.blocks[chosen]
        for block in (*self.dead, *self.migrated):
            expected = self.pre_evicts and block.needed > self.completed
            expected |= block in self.dead and block.freed > self.completed
            if not expected and block.pinned <= self.completed:
                return block
        if demand:
            for block in (*reversed(self.dead), *reversed(self.migrated)):
                if block.pinned <= self.completed:
                    return block
        return None

    def evict(self, block: Block, demand: bool) -> None:
        self.stats["wasted"] += block.ahead
        block.ahead = False
        self.unlist(block)
        if self.invalidates and block.active == 0 and block.freed <= self.completed:
            block.state, block.content = "absent", False
            self.stats["discarded"] += 1
            self.say("discard", block, demand, 0)
        else:
            block.state = "outgoing"
            self.stats["demand_evicted" if demand else "pre_evicted"] += 1
            self.say("evict", block, demand, 0)

    def take_frame(self, block: Block) -> bool:
        while self.free_frames() <= 0:
            if self.count("outgoing"):
                return False
            victim = self.victim(True, 1)
            if victim is None:
                return False
            self.evict(victim, True)
        block.state = "incoming"
        return True

    # commands

    def drain(self) -> list[tuple[Any, ...]]:
        self.serve_demand()
        while True:
            before = self.stats["prefetched"]
            if self.room():
                self.policy.advance(self)
            if self.pre_evicts:
                self.make_room()
            self.issue()
            if self.stats["prefetched"] == before:
                break
        commands, self.commands = self.commands, []
        return [tuple(command) for command in commands]

    def serve_demand(self) -> None:
        while self.demand:
            block = self.demand[0]
            if block.state == "outgoing":
                return
            if block.state == "absent" and block.managed:
                queued = block.queued
                if not self.take_frame(block):
                    self.free_ahead()
                    return
                if queued:
                    block.queued = False
                    for counter in ("prefetched", "prefetch_used", "late"):
                        self.stats[counter] += 1
                self.say("prefetch", block, True, self.completed + 1)
            self.demand.popleft()

    def free_ahead(self) -> None:
        while self.batches_demand and self.count("outgoing") < min(len(self.demand), self.window):
            victim = self.victim(True, 1)
            if victim is None:
                return
            self.evict(victim, True)

    def make_room(self) -> None:
        free = self.free_frames() + self.count("outgoing")
        managed = sum(block.managed for block in self.blocks.values())
        if free >= self.low or managed <= self.budget:
            return
        while free < self.high:
            victim = self.victim(False, self.high - free)
            if victim is None:
                return
            self.evict(victim, False)
            free += 1

    def issue(self) -> None:
        if self.fenced:
            return
        while self.queue and self.count("incoming") < self.window:
            block = self.queue[0]
            if block.state == "outgoing":
                return
            if block.state == "absent" and block.queued and block.managed:
                if self.free_frames() <= 0:
                    if self.pre_evicts or self.count("outgoing") or self.count("incoming"):
                        return
                    victim = self.victim(False, 1)
                    if victim is not None:
                        self.evict(victim, False)
                    if self.free_frames() <= 0:
                        return
                    continue
                block.state, block.ahead = "incoming", True
                self.stats["prefetched"] += 1
                self.say("prefetch", block, False, block.needed)
            block.queued = False
            self.queue.popleft()

    def say(self, kind: str, block: Block, demand: bool, seq: int) -> None:
        if self.commands:
            last = self.commands[-1]
            same = (last[0], last[3]) == (kind, demand) and last[1] + last[2] == block.number
            if same and last[2] < self.max_run:
                last[2] += 1
                return
        self.commands.append([kind, block.number, 1, demand, seq])


def outer(address: int, size: int) -> range:
    """Return the blocks that a range touches."""
    return range(address // MIB2, (address + size - 1) // MIB2 + 1) if size else range(0)

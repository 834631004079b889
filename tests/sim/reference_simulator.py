# SPDX-License-Identifier: Apache-2.0
"""The simulator once more, in plain Python and for small traces: what the fast one must equal.

It models the hardware of docs/simulator.md, and of the engine what a policy needs that keeps no
tables: residency, the prefetch queue, pre-eviction, invalidation and the choice of victims. A
policy here is a `Script`: what it asks for at each launch, fault and completion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

BLOCK = 1 << 21
PAGE = 1 << 12
ABSENT, INCOMING, RESIDENT, OUTGOING = "absent", "incoming", "resident", "outgoing"
FOREVER = 1e300

Wish = tuple[str, int, int]  # "prefetch" or "evict", first block, count; or "wait", 0, 0
STRIDED = ("conv", "batch_norm", "pool")


@dataclass
class Script:
    """What a policy asks for, a function of what happened."""

    launch: Callable[[int], Iterable[Wish]] = lambda seq: ()
    fault: Callable[[int], Iterable[Wish]] = lambda block: ()
    complete: Callable[[int], Iterable[Wish]] = lambda seq: ()
    pre_evicts: bool = False
    invalidates: bool = False
    plain_memory: bool = False
    queue: int = 0


@dataclass
class Touch:
    block: int
    pages: int  # 4 KiB pages of it that the kernel touches
    moved: int  # and that a fault on it brings
    write: bool
    random: bool


@dataclass
class Lowered:
    touches: list[Touch]
    share: float


def lower(columns: dict[str, Any], scattered: int = 16) -> list[Lowered]:
    """Return the touches of each kernel row; `scattered` pages come with each random one."""
    kernels = []
    starts = columns["kernel_operand_start"]
    for k in range(len(columns["kernel_name"])):
        touches: dict[int, Touch] = {}
        share = 1.0
        for o in range(int(starts[k]), int(starts[k + 1])):
            tensor = int(columns["operand_tensor"][o])
            start = int(columns["tensor_address"][tensor]) + int(columns["operand_offset"][o])
            end = start + int(columns["operand_length"][o])
            if start == end:
                continue
            blocks = range(start // BLOCK, (end - 1) // BLOCK + 1)
            random = bool(columns["operand_pattern"][o] == 1 and len(blocks) > 1)
            rows = int(columns["operand_touches"][o]) / len(blocks) if random else 0.0
            if random:
                share = min(share, 1.0 - math.exp(-rows))
            for block in blocks:
                first = max(start, block * BLOCK) // PAGE
                last = -(-min(end, (block + 1) * BLOCK) // PAGE)
                pages, moved = last - first, 512
                if rows:
                    moved = max(scattered, int(pages * (1.0 - math.exp(-rows * scattered / 512))))
                    pages = max(1, int(pages * (1.0 - math.exp(-rows / 512))))
                write = bool(columns["operand_mode"][o] & 2)
                if block in touches:
                    touch = touches[block]
                    touch.write |= write
                    touch.pages = min(512, touch.pages + pages)
                    touch.moved = max(touch.moved, moved)
                else:
                    touches[block] = Touch(block, pages, moved, write, random)
        kernels.append(Lowered(list(touches.values()), share))
    return kernels


@dataclass
class Block:
    number: int
    state: str = ABSENT
    content: bool = False
    active: int = 0
    ahead: bool = False
    queued: bool = False
    pinned: int = 0
    stamp: int = 0
    inactive: bool = False  # listed apart, to be dropped first
    filled: int = 512  # pages of it that are there
    dirty: bool = False  # differs from what the host has
    size: int = 1  # blocks that move with it; `number` is the first one's


@dataclass
class Move:
    block: Block
    opens: bool
    ready: float = 0.0  # when the kernels that may still use it have ended


@dataclass
class Reference:
    """Runs a trace, step by step.

    `machine` has the fields of a profile, `budget` is in blocks, `times` in seconds.
    """

    columns: dict[str, Any]
    names: list[str]
    times: Any
    machine: Any
    budget: int
    script: Script = field(default_factory=Script)
    allow: frozenset[str] = frozenset({"prefetch", "pre-evict", "invalidate"})
    low: int = 32
    high: int = 64
    window: int = 32
    queue_asked: int = 0
    names_ranges: bool = False
    drops_clean: bool = False

    def __post_init__(self) -> None:
        c, m = self.columns, self.machine
        self.kernels = lower(c, m.scattered_pages)
        self.block_in = BLOCK / m.bus_in_bytes_s
        self.block_out = BLOCK / m.bus_out_bytes_s
        share = min(1.0, m.bus_both_bytes_s / (m.bus_in_bytes_s + m.bus_out_bytes_s))
        self.block_in_both = BLOCK / (m.bus_in_bytes_s * share)
        self.block_out_both = BLOCK / (m.bus_out_bytes_s * share)
        self.prefetches = "prefetch" in self.allow
        self.pre_evicts = "pre-evict" in self.allow and self.script.pre_evicts
        self.invalidates = "invalidate" in self.allow and self.script.invalidates
        self.low = min(self.low, self.budget // 8)
        self.high = min(self.high, self.budget // 4)
        self.queue_limit = max(1, min(1024, self.budget // 8))
        if asked := self.queue_asked or self.script.queue:
            self.queue_limit = min(asked, self.budget)
        self.fenced = False
        self.window = max(1, min(self.window, self.budget // 2))
        self.blocks: dict[int, Block] = {}
        for start, size in zip(c["segment_address"], c["segment_bytes"], strict=True):
            for number in range(int(start) // BLOCK, (int(start) + int(size)) // BLOCK):
                self.blocks[number] = Block(number)
        self.chunks = list(self.blocks.values())
        self.migrated: list[Block] = []
        self.dead: list[Block] = []
        self.queue: deque[Block] = deque()
        self.commands: list[list[Any]] = []
        self.in_fifo: deque[Move] = deque()
        self.out_urgent: deque[Move] = deque()
        self.out_fifo: deque[Move] = deque()
        self.in_move: tuple[float, Block] | None = None
        self.out_move: tuple[float, Block] | None = None
        self.servicing = False
        self.now = 0.0
        self.kernels_done = 0.0  # plain memory: when the kernels submitted have ended
        self.launched = self.completed = 0
        self.random_state = 1
        for tensor in c["initial"]:
            for block, size in self.pieces(int(tensor)):
                block.active += size
                block.content = True
        self.n = self.fresh_counts()

    def fresh_counts(self) -> dict[str, float]:
        names = (
            "time compute host stall_fault stall_evict stall_late page_faults bytes_in bytes_out "
            "bytes_dropped launches faults prefetched prefetch_used late wasted pre_evicted "
            "demand_evicted discarded refused"
        )
        return dict.fromkeys(names.split(), 0)

    def pieces(self, tensor: int) -> list[tuple[Block, int]]:
        """Blocks under a tensor's PT block, and how many of its bytes lie in each."""
        start = int(self.columns["tensor_address"][tensor])
        end = start + int(self.columns["tensor_block_bytes"][tensor])
        return [
            (self.blocks[n], min(end, (n + 1) * BLOCK) - max(start, n * BLOCK))
            for n in range(start // BLOCK, (end - 1) // BLOCK + 1)
        ]

    # What the engine decides

    def frames_free(self) -> int:
        return self.budget - sum(b.size for b in self.chunks if b.state != ABSENT)

    def count(self, state: str) -> int:
        return sum(b.size for b in self.chunks if b.state == state)

    def alloc(self, tensor: int) -> None:
        for block, size in self.pieces(tensor):
            if block.inactive:
                self.dead.remove(block)
                self.migrated.append(block)
                block.inactive = False
            block.active += size

    def free(self, tensor: int) -> None:
        for block, size in self.pieces(tensor):
            block.active -= size
            if block.active == 0 and self.invalidates:
                if block.state == RESIDENT:
                    self.set_inactive(block)
                elif block.state == ABSENT:
                    block.content = False

    def set_inactive(self, block: Block) -> None:
        self.migrated.remove(block)
        self.dead.append(block)
        block.inactive = True

    def ask(self, wishes: Iterable[Wish]) -> None:
        for what, first, count in wishes:
            if what == "wait":
                self.fenced = self.count(OUTGOING) > 0
                continue
            for number in range(first, first + count):
                block = self.blocks.get(number)
                accepted = block is not None and (
                    self.want(block) if what == "prefetch" else self.let_go(block)
                )
                if not accepted:
                    self.n["refused"] += 1

    def want(self, block: Block) -> bool:
        if not self.prefetches or block.queued or block.state in (INCOMING, RESIDENT):
            return True
        if len(self.queue) >= self.queue_limit:
            return False
        block.queued = True
        self.queue.append(block)
        return True

    def let_go(self, block: Block) -> bool:
        if block.state != RESIDENT or block.pinned > self.completed:
            return False
        self.evict(block, False)
        return True

    def evict(self, block: Block, demand: bool) -> None:
        if block.ahead:
            block.ahead = False
            self.n["wasted"] += block.size
        (self.dead if block.inactive else self.migrated).remove(block)
        block.inactive = False
        if self.invalidates and block.active == 0 and self.ended(block):
            block.state, block.content = ABSENT, False
            self.n["discarded"] += block.size
            self.say("discard", block, demand)
            return
        if self.drops_clean and not block.dirty:
            block.state = ABSENT
            self.n["discarded"] += block.size
            self.say("drop", block, demand)
            return
        block.state = OUTGOING
        self.n["demand_evicted" if demand else "pre_evicted"] += block.size
        self.say("evict", block, demand)

    def ended(self, block: Block) -> bool:
        """Whether no launch can use what the program has freed."""
        return True

    def victim(self) -> Block | None:
        for block in self.dead + self.migrated:
            if block.pinned <= self.completed:
                return block
        return None

    def say(self, kind: str, block: Block, demand: bool) -> None:
        if self.commands:
            last = self.commands[-1]
            blocks = last[2]
            if (
                last[:2] == [kind, demand]
                and blocks[-1].number + 1 == block.number
                and len(blocks) < self.machine.max_run_blocks
            ):
                blocks.append(block)
                return
        self.commands.append([kind, demand, [block]])

    def pump(self) -> None:
        while True:
            before = self.n["prefetched"]
            if self.pre_evicts:
                self.make_room()
            self.issue()
            if self.n["prefetched"] == before:
                return

    def make_room(self) -> None:
        free = self.frames_free() + self.count(OUTGOING)
        if free >= self.low or len(self.blocks) <= self.budget:
            return
        while free < self.high:
            victim = self.victim()
            if victim is None:
                return
            self.evict(victim, False)
            free += victim.size

    def issue(self) -> None:
        if self.fenced:
            return
        while self.queue and self.count(INCOMING) < self.window:
            block = self.queue[0]
            if block.state == OUTGOING:
                return
            if block.state == ABSENT and block.queued:
                if self.frames_free() < block.size:
                    if self.pre_evicts or self.count(OUTGOING) or self.count(INCOMING):
                        return
                    if victim := self.victim():
                        self.evict(victim, False)
                    if victim is None or self.frames_free() <= 0:
                        return
                    continue
                block.state, block.ahead = INCOMING, True
                self.n["prefetched"] += block.size
                self.say("prefetch", block, False)
            block.queued = False
            self.queue.popleft()

    def arrived(self, block: Block) -> None:
        block.dirty = not block.content
        block.state, block.content = RESIDENT, True
        self.migrated.append(block)
        if self.invalidates and block.active == 0:
            self.set_inactive(block)

    def departed(self, block: Block) -> None:
        block.state = ABSENT
        if not self.count(OUTGOING):
            self.fenced = False
        if self.invalidates and block.active == 0:
            block.content = False

    # The movers

    def next_done(self) -> float:
        return min(m[0] if m else FOREVER for m in (self.in_move, self.out_move))

    def route(self, t: float) -> None:
        for kind, demand, blocks in self.commands:
            if kind in ("discard", "drop"):
                self.n["bytes_dropped"] += BLOCK * len(blocks)
                continue
            moves = [Move(block, i == 0, self.kernels_done) for i, block in enumerate(blocks)]
            if kind == "prefetch":
                self.in_fifo.extend(moves)
            else:
                (self.out_urgent if demand else self.out_fifo).extend(moves)
        self.commands = []
        self.start_out(t)
        self.start_in(t)

    def start_out(self, t: float) -> None:
        if self.out_move or not (self.out_urgent or self.out_fifo):
            return
        move = (self.out_urgent or self.out_fifo).popleft()
        cost = self.machine.move_out_s if move.opens else 0.0
        cost += move.block.filled / 512 * (self.block_out_both if self.in_move else self.block_out)
        self.out_move = (max(t, move.ready) + cost, move.block)
        self.n["bytes_out"] += move.block.filled * PAGE

    def start_in(self, t: float) -> None:
        if self.in_move or self.servicing or not self.in_fifo:
            return
        move = self.in_fifo.popleft()
        cost = self.machine.move_in_s if move.opens else 0.0
        if move.block.content:
            cost += self.block_in_both if self.out_move else self.block_in
            self.n["bytes_in"] += BLOCK
        elif self.script.plain_memory:
            cost = 0.0
        else:
            cost += self.machine.populate_s
        move.block.filled = 512
        self.in_move = (t + cost, move.block)

    def settle(self, t: float) -> None:
        if not self.servicing:
            self.pump()
        self.route(t)

    def advance(self, t: float) -> None:
        while self.next_done() <= t:
            done = self.next_done()
            if self.in_move and self.in_move[0] == done:
                block, self.in_move = self.in_move[1], None
                self.arrived(block)
            else:
                assert self.out_move
                block, self.out_move = self.out_move[1], None
                self.departed(block)
            self.settle(done)

    def wait(self) -> None:
        assert self.next_done() < FOREVER, "waits for nothing"
        self.now = max(self.now, self.next_done())
        self.advance(self.now)

    # The compute stream

    def touch_sequence(self, kernel: int) -> list[Touch]:
        low = self.kernels[kernel]
        touches = low.touches
        if not (touches and touches[0].random) and low.share >= 1.0:
            return touches
        kept = []
        for touch in touches:
            left_out = touch.random and low.share < 1.0
            if left_out and (self.draw() >> 11) / (1 << 53) >= low.share:
                continue
            kept.append(touch)
        for i in range(len(kept) - 1, 0, -1):
            j = (self.draw() >> 33) % (i + 1)
            kept[i], kept[j] = kept[j], kept[i]
        return kept

    def draw(self) -> int:
        self.random_state = (self.random_state * 6364136223846793005 + 1) % (1 << 64)
        return self.random_state

    def run_kernel(self, kernel: int) -> None:
        touches = self.touch_sequence(kernel)
        self.launched += 1
        self.n["launches"] += 1
        if self.names_ranges:
            for touch in touches:
                self.blocks[touch.block].pinned = self.launched
        self.ask(self.script.launch(self.launched))
        time = float(self.times[kernel])
        self.n["compute"] += time
        if self.script.plain_memory and self.submit(kernel, touches):
            self.kernels_done += time
        else:
            self.run_touches(kernel, touches, time)
            self.kernels_done = self.now if self.script.plain_memory else 0.0
        shuffled = touches is not self.kernels[kernel].touches
        for touch in touches:
            self.blocks[touch.block].dirty |= shuffled or touch.write
        self.completed = self.launched
        self.ask(self.script.complete(self.completed))

    def submit(self, kernel: int, touches: list[Touch]) -> bool:
        """Without page faults kernels run behind the program, once their memory is there."""
        evict, late = self.n["stall_evict"], self.n["stall_late"]
        self.settle(self.now)
        self.gate(kernel)
        idle = max(0.0, self.now - self.kernels_done)
        waited = min(idle, self.n["stall_late"] - late)
        self.n["stall_late"] = late + waited
        self.n["stall_evict"] = evict + idle - waited
        self.kernels_done = max(self.now, self.kernels_done)
        blocks = [self.blocks[touch.block] for touch in touches]
        if any(block.state != RESIDENT for block in blocks):
            self.now = self.kernels_done
            self.advance(self.now)
            return False
        for block in blocks:
            self.n["prefetch_used"] += block.ahead
            block.ahead = False
        return True

    def run_touches(self, kernel: int, touches: list[Touch], time: float) -> None:
        """With page faults the kernel's time goes by from touch to touch."""
        self.settle(self.now)
        each = time / max(1, len(touches))
        for j, touch in enumerate(touches):
            self.advance(self.now)
            block = self.blocks[touch.block]
            while block.state != RESIDENT:
                self.miss(touches, j, kernel)
            if block.ahead:
                block.ahead = False
                self.n["prefetch_used"] += 1
            self.now += each
        if not touches:
            self.now += each

    def gate(self, kernel: int) -> None:
        """A launch without page faults waits for its tensors, and for evictions if asked to."""
        start = self.now
        while self.fenced and self.next_done() < FOREVER:
            self.wait()
        self.n["stall_evict"] += self.now - start
        start = self.now
        operands = self.columns["kernel_operand_start"]
        for o in range(int(operands[kernel]), int(operands[kernel + 1])):
            for block, _ in self.pieces(int(self.columns["operand_tensor"][o])):
                while (
                    block.state == INCOMING or (block.queued and block.state != RESIDENT)
                ) and self.next_done() < FOREVER:
                    self.wait()
        self.n["stall_late"] += self.now - start

    def faulting_pages(self, kernel: int, touch: Touch) -> int:
        name = self.names[int(self.columns["kernel_name"][kernel])]
        percent = self.machine.fault_page_percent
        if any(part in name for part in STRIDED):
            percent = self.machine.fault_page_percent_strided
        if touch.random:
            percent = 100.0
        return math.ceil(touch.pages * percent / 100)

    def miss(self, touches: list[Touch], j: int, kernel: int) -> None:
        block = self.blocks[touches[j].block]
        if block.state == INCOMING:
            self.wait_late(block)
        elif block.queued:
            self.hurry(block)
        else:
            self.serve_faults(touches, j, kernel)

    def wait_late(self, block: Block) -> None:
        start = self.now
        if block.ahead:
            block.ahead = False
            self.n["late"] += 1
            self.n["prefetch_used"] += 1
        for i, move in enumerate(self.in_fifo):
            if move.block is block:
                del self.in_fifo[i]
                self.in_fifo.appendleft(Move(block, move.opens or i > 0))
                break
        while block.state == INCOMING:
            self.wait()
        self.now += self.machine.fault_batch_s
        self.n["stall_late"] += self.now - start

    def hurry(self, block: Block) -> None:
        start = self.now
        if self.take_frame(block, queued=True):
            self.in_fifo.appendleft(Move(block, True))
            self.settle(self.now)
        self.n["stall_evict"] += self.now - start
        self.wait_late(block)

    def take_frame(self, block: Block, queued: bool = False) -> bool:
        """Return whether the block has got a frame here, not meanwhile by a prefetch."""
        while block.state == OUTGOING:
            self.wait()
        while block.state == ABSENT:
            taken = self.try_frame(block)
            if taken and queued:
                block.queued = False
                for name in ("prefetched", "prefetch_used", "late"):
                    self.n[name] += 1
            self.route(self.now)
            if taken:
                return True
            if not self.count(OUTGOING) and not self.in_move and self.in_fifo:
                # Prefetches hold the frames and wait for this fault: one of them goes first.
                waits, self.servicing = self.servicing, False
                self.start_in(self.now)
                self.servicing = waits
            self.wait()
        return False

    def try_frame(self, block: Block) -> bool:
        while self.frames_free() <= 0:
            if self.count(OUTGOING):
                return False
            victim = self.victim()
            if victim is None:
                assert self.count(INCOMING), "every frame is pinned"
                return False
            self.evict(victim, True)
        block.state = INCOMING
        return True

    def serve_faults(self, touches: list[Touch], j: int, kernel: int) -> None:
        self.servicing = True
        window = min(64, self.machine.fault_window_blocks)
        batch = []
        for touch in touches[j : j + 2 * window]:
            block = self.blocks[touch.block]
            if block.state in (ABSENT, OUTGOING) and not block.queued and len(batch) < window:
                pages = self.faulting_pages(kernel, touch)
                batch.append((block, pages, touch.moved))
                self.n["page_faults"] += pages
        self.now += self.machine.fault_batch_s
        self.n["stall_fault"] += self.machine.fault_batch_s
        self.advance(self.now)
        for block, _, _ in batch:
            self.n["faults"] += 1
            block.pinned = max(block.pinned, self.completed + 1)
            self.ask(self.script.fault(block.number))
        if ahead := min(len(batch), self.machine.fault_evict_ahead_blocks):
            self.clear_ahead(ahead)
        for block, pages, moved in batch:
            self.serve(block, pages, moved)
        self.servicing = False
        self.settle(self.now)

    def clear_ahead(self, frames: int) -> None:
        while self.frames_free() + self.count(OUTGOING) < frames:
            victim = self.victim()
            if victim is None:
                break
            self.evict(victim, True)
        self.route(self.now)

    def serve(self, block: Block, pages: int, moved: int) -> None:
        start = self.now
        self.take_frame(block)
        self.n["stall_evict"] += self.now - start
        start = self.now
        self.now += self.machine.fault_page_s * pages
        if block.content:
            if self.in_move:
                self.now = max(self.now, self.in_move[0])
            self.advance(self.now)
            self.now += moved / 512 * (self.block_in_both if self.out_move else self.block_in)
            self.n["bytes_in"] += moved * PAGE
            block.filled = moved
        else:
            block.filled = 512
            self.now += self.machine.populate_s
        self.advance(self.now)
        self.arrived(block)
        self.n["stall_fault"] += self.now - start

    def run_step(self, step: int) -> dict[str, float]:
        """Run one step's events and return its counts."""
        began = max(self.now, self.kernels_done)
        self.n = self.fresh_counts()
        starts = self.columns["step_start"]
        for e in range(int(starts[step]), int(starts[step + 1])):
            op, arg = int(self.columns["event_op"][e]), int(self.columns["event_arg"][e])
            if op == 0:
                self.run_kernel(arg)
            elif op == 1:
                self.alloc(arg)
            elif op == 2:
                self.free(arg)
            else:
                self.now = max(self.now, self.kernels_done)
                self.n["host"] += arg * 1e-9
                self.settle(self.now)
                self.now += arg * 1e-9
                self.advance(self.now)
                self.kernels_done = self.now if self.script.plain_memory else 0.0
        self.n["time"] = max(self.now, self.kernels_done) - began
        return self.n

# SPDX-License-Identifier: Apache-2.0
"""Memory mode vmm once more, in plain Python: what the fast simulator must equal there too."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from reference_simulator import (
    ABSENT,
    BLOCK,
    FOREVER,
    INCOMING,
    OUTGOING,
    PAGE,
    RESIDENT,
    Block,
    Reference,
)


@dataclass(eq=False)
class Chunk(Block):
    """Blocks that move as one."""

    freed: int = 0  # last launch that may use it though all in it has been freed
    written: int = 0  # last launch submitted that writes it
    demanded: bool = False


@dataclass
class Lane:
    """One direction of the bus. `moving` is None while a launch uses host memory."""

    waiting: deque[Chunk] = field(default_factory=deque)
    done: float = FOREVER
    moving: Chunk | None = None

    @property
    def busy(self) -> bool:
        return self.done < FOREVER


def chunks_of(first: int, end: int, most: int) -> list[tuple[int, int]]:
    """Divide blocks into chunks: powers of two up to `most`, each at a multiple of its size."""
    chunks = []
    while first < end:
        size = most
        while size > end - first or first % size:
            size //= 2
        chunks.append((first, size))
        first += size
    return chunks


@dataclass
class ReferenceVmm(Reference):
    """`columns` are those with aligned segments; `chunk` is in blocks."""

    chunk: int = 16
    ahead: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        costs = self.machine.vmm
        share = min(1.0, costs.bus_both_bytes_s / (costs.bus_in_bytes_s + costs.bus_out_bytes_s))
        self.block_in, self.block_out = BLOCK / costs.bus_in_bytes_s, BLOCK / costs.bus_out_bytes_s
        self.block_in_both, self.block_out_both = self.block_in / share, self.block_out / share
        self.chunks = []
        for start, size in zip(
            self.columns["segment_address"], self.columns["segment_bytes"], strict=True
        ):
            first = int(start) // BLOCK
            for number, blocks in chunks_of(first, first + int(size) // BLOCK, self.chunk):
                made = Chunk(number, size=blocks)
                self.chunks.append(made)
                self.blocks.update(dict.fromkeys(range(number, number + blocks), made))
        for tensor in self.columns["initial"]:
            for block, size in self.pieces(int(tensor)):
                block.active += size
                block.content = True
        self.inward, self.outward = Lane(), Lane()
        self.copies = False  # what moves in has contents
        self.demands: deque[Chunk] = deque()
        self.waiting: deque[int] = deque()  # kernel rows submitted and not ended
        self.run_done = FOREVER
        self.barren = False

    # What the engine decides

    def named(self, kernel: int) -> dict[int, tuple[Chunk, bool]]:
        """Chunks of the kernel's PT blocks in order, and whether it writes to them."""
        found: dict[int, tuple[Chunk, bool]] = {}
        starts = self.columns["kernel_operand_start"]
        for o in range(int(starts[kernel]), int(starts[kernel + 1])):
            write = bool(self.columns["operand_mode"][o] & 2)
            for block, _ in self.pieces(int(self.columns["operand_tensor"][o])):
                written = write or (block.number in found and found[block.number][1])
                found[block.number] = (block, written)
        return found

    def ended(self, block: Block) -> bool:
        return block.freed <= self.completed

    def expendable(self, block: Block) -> bool:
        return block.pinned <= self.completed and not (block.inactive and not self.ended(block))

    def victim(self, demand: bool = False) -> Block | None:
        if not self.barren:
            for block in self.dead + self.migrated:
                if self.expendable(block):
                    return block
            self.barren = True
        if demand:
            for block in self.dead[::-1] + self.migrated[::-1]:
                if block.pinned <= self.completed:
                    return block
        return None

    def free(self, tensor: int) -> None:
        for block, size in self.pieces(tensor):
            block.active -= size
            if block.active:
                continue
            block.freed = self.launched
            if self.invalidates and block.state == RESIDENT:
                self.set_inactive(block)
            elif self.invalidates and block.state == ABSENT and block.pinned <= self.completed:
                block.content = False

    def set_inactive(self, block: Block) -> None:
        if not block.inactive:
            super().set_inactive(block)

    def say(self, kind: str, block: Block, demand: bool) -> None:
        self.commands.append([kind, demand, [block]])

    def try_frame(self, block: Block) -> bool:
        while self.frames_free() < block.size:
            if self.count(OUTGOING):
                return False
            victim = self.victim(demand=True)
            if victim is None:
                return False
            self.evict(victim, True)
        block.state = INCOMING
        return True

    def serve_demand(self) -> None:
        while self.demands:
            chunk = self.demands[0]
            if chunk.state == OUTGOING:
                return
            if chunk.state == ABSENT and chunk.demanded:
                if not self.try_frame(chunk):
                    self.free_ahead()
                    return
                if chunk.queued:
                    chunk.queued = False
                    for name in ("prefetched", "prefetch_used", "late"):
                        self.n[name] += chunk.size
                self.say("prefetch", chunk, True)
            chunk.demanded = False
            self.demands.popleft()

    def free_ahead(self) -> None:
        wanted = min(self.window, sum(chunk.size for chunk in self.demands))
        while self.frames_free() + self.count(OUTGOING) < wanted:
            victim = self.victim(demand=True)
            if victim is None:
                return
            self.evict(victim, True)

    def pump(self) -> None:
        self.serve_demand()
        super().pump()

    def arrived(self, block: Block) -> None:
        if block.pinned <= self.completed:
            self.barren = False
        super().arrived(block)
        block.dirty = not self.copies or block.written > self.completed

    def departed(self, block: Block) -> None:
        content = block.content and block.pinned > self.completed
        super().departed(block)
        block.content |= content  # a launch that waits is going to read it

    # The movers

    def route(self, t: float) -> None:
        for kind, _, [chunk] in self.commands:
            if kind in ("discard", "drop"):
                self.n["bytes_dropped"] += BLOCK * chunk.size
            else:
                (self.inward if kind == "prefetch" else self.outward).waiting.append(chunk)
        self.commands = []
        if self.outward.waiting and not self.outward.busy:
            chunk = self.outward.moving = self.outward.waiting.popleft()
            each = self.block_out_both if self.inward.busy else self.block_out
            self.outward.done = t + chunk.size * each
            self.n["bytes_out"] += chunk.size * BLOCK
        if self.inward.waiting and not self.inward.busy:
            chunk = self.inward.moving = self.inward.waiting.popleft()
            self.copies = chunk.content
            self.inward.done = t + self.remap_s(chunk.size)
            if self.copies:
                each = self.block_in_both if self.outward.busy else self.block_in
                self.inward.done += chunk.size * each
                self.n["bytes_in"] += chunk.size * BLOCK

    def remap_s(self, blocks: int) -> float:
        """A remap's cost, on a straight line over the logarithm between two measured sizes."""
        sizes, costs = self.machine.vmm.remap_bytes, self.machine.vmm.remap_s
        size = blocks * BLOCK
        if size <= sizes[0]:
            return costs[0]
        for i in range(1, len(sizes)):
            if size <= sizes[i]:
                part = math.log2(size / sizes[i - 1]) / math.log2(sizes[i] / sizes[i - 1])
                return costs[i - 1] + part * (costs[i] - costs[i - 1])
        return costs[-1]

    def settle(self, t: float) -> None:
        self.pump()
        self.route(t)
        self.start_kernel(t)

    def next_done(self) -> float:
        return min(self.inward.done, self.outward.done, self.run_done)

    def missing(self) -> list[tuple[Chunk, bool]]:
        """What the next launch still lacks."""
        return [(c, w) for c, w in self.named(self.waiting[0]).values() if c.state != RESIDENT]

    def tick(self, t: float) -> None:
        if self.run_done == FOREVER and self.waiting:
            late = self.missing()[0][0].state == INCOMING
            self.n["stall_late" if late else "stall_evict"] += t - self.now
        self.now = t

    def advance(self, t: float) -> None:
        while self.next_done() <= t:
            done = self.next_done()
            self.tick(done)
            if self.inward.done == done:
                chunk, self.inward.done = self.inward.moving, FOREVER
                if chunk:
                    self.arrived(chunk)
            elif self.outward.done == done:
                chunk, self.outward.done = self.outward.moving, FOREVER
                if chunk:
                    self.departed(chunk)
            else:
                self.run_done = FOREVER
                self.completed += 1
                self.waiting.popleft()
                self.barren = False
                self.ask(self.script.complete(self.completed))
            self.settle(done)
        self.tick(t)

    def wait(self) -> None:
        if self.next_done() == FOREVER:
            self.use_host_memory()
        else:
            self.advance(self.next_done())

    # Launches

    def admits(self, kernel: int) -> bool:
        if not self.waiting:
            return True
        if len(self.waiting) > self.ahead:
            return False
        if len(self.blocks) <= self.budget:
            return True
        pinned = {c.number: c.size for c in self.chunks if c.pinned > self.completed}
        pinned.update({c.number: c.size for c, _ in self.named(kernel).values()})
        return sum(pinned.values()) <= self.budget // 2

    def run_kernel(self, kernel: int) -> None:
        while not self.admits(kernel):
            self.wait()
        chunks = self.named(kernel).values()
        self.launched += 1
        self.n["launches"] += 1
        self.waiting.append(kernel)
        for chunk, write in chunks:
            chunk.pinned = self.launched
            if write:
                chunk.written, chunk.dirty = self.launched, True
        self.ask(self.script.launch(self.launched))
        for chunk, _ in chunks:
            if chunk.state in (INCOMING, RESIDENT):
                if chunk.ahead:
                    chunk.ahead = False
                    self.n["prefetch_used"] += chunk.size
                    self.n["late"] += chunk.size * (chunk.state == INCOMING)
            elif not chunk.demanded:
                chunk.demanded = True
                self.demands.append(chunk)
        self.settle(self.now)

    def start_kernel(self, t: float) -> None:
        if self.run_done == FOREVER and self.waiting and not self.missing():
            time = float(self.times[self.waiting[0]])
            self.run_done = t + time
            self.n["compute"] += time

    def use_host_memory(self) -> None:
        kernel = self.waiting[0]
        inward = outward = 0.0
        for chunk, write in self.missing():
            chunk.demanded = False
            size = self.used_bytes(kernel, chunk)
            if chunk.content:
                inward += size
            if write:
                outward += size
                chunk.content = True
        self.n["bytes_in"] += int(inward)
        self.n["bytes_out"] += int(outward)
        rate = self.machine.vmm.zero_copy_bytes_s
        self.inward.moving = self.outward.moving = None
        self.inward.done = self.now + inward / rate
        self.outward.done = self.now + outward / rate
        time = float(self.times[kernel])
        longest = max(time, inward / rate, outward / rate)
        self.run_done = self.now + longest
        self.n["compute"] += time
        self.n["stall_late"] += longest - time

    def used_bytes(self, kernel: int, chunk: Chunk) -> int:
        """What of a chunk the kernel reads or writes: whole blocks, of a gather the rows alone."""
        touches = self.kernels[kernel].touches
        each = int(self.columns["kernel_bytes"][kernel]) / max(1, len(touches))
        return sum(
            int(min(t.pages * PAGE, each)) if t.random else BLOCK
            for t in touches
            if self.blocks[t.block] is chunk
        )

    def run_step(self, step: int) -> dict[str, Any]:
        """Run one step's events and return its counts; a step ends when all its kernels have."""
        began = self.now
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
                self.finish()
                self.n["host"] += arg * 1e-9
                self.advance(self.now + arg * 1e-9)
        self.finish()
        self.n["time"] = self.now - began
        return self.n

    def finish(self) -> None:
        while self.waiting:
            self.wait()

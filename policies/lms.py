# SPDX-License-Identifier: Apache-2.0
"""IBM's PyTorch Large Model Support (LMS), a tensor swapper over plain device memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

from deepum.errors import OutOfMemoryError, PolicyError
from deepum.policy import Policy
from deepum.record.allocator import Block, CachingAllocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deepum._core.python_policy import Allocation, Launch, View

BLOCK = 1 << 21
GIB = 1 << 30
BASE = BLOCK  # of LMS's own addresses: where a tensor lies in the trace says nothing here


class _Storage:
    """A tensor's memory: where the trace has it, and which block of the device it has now."""

    __slots__ = ("address", "bytes", "key", "leaving", "pins", "place")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.bytes = size
        self.place: Block | None = None  # None while swapped out, or not yet allocated
        self.pins = 0
        self.leaving = False  # copied out ahead of being reclaimed
        self.key = 0  # names it from one iteration to the next; 0 before its first use


class _History:
    """Which of a tensor's idle periods ended in its being reclaimed: last time, and so far."""

    __slots__ = ("before", "now")

    def __init__(self) -> None:
        self.before: list[bool] = []
        self.now: list[bool] = []

    def restart(self) -> None:
        self.before, self.now = self.now, []

    def expects(self) -> bool:
        n = len(self.now)
        return n < len(self.before) and self.before[n] and self.before[:n] == self.now


class LMS(Policy):
    """IBM PyTorch LMS: no page faults; idle tensors are swapped out when an allocation fails.

    As IBM/pytorch-large-model-support has it. A tensor is pinned while a kernel uses it and idle
    afterwards; a kernel's output is idle only once another kernel has used it, and tensors of
    less than `minimum` bytes stay. Where there is no cached block for an allocation,

    - `patch` 1.3 (all before 1.4) would rather reuse memory than ask for more: it swaps out the
      smallest idle tensor that is large enough; else all idle tensors of the segments that are
      large enough; else it asks the driver; else all idle tensors go;
    - `patch` 1.5 (from 1.4) asks the driver first, up to 95 % of the device; else it swaps out
      the first idle tensor, longest idle first, whose block is large enough with its free
      neighbours; else all of the segments that are large enough; else all.

    If that does not help, cached segments go back to the driver, which is asked once more; else
    the run ends, out of memory. The program waits for every copy. With 1.3 a copy to the device
    does not wait for the kernels submitted before; with 1.5 it does, but what an earlier
    iteration had to swap out begins to leave as soon as it is idle. With `release_every`, cached
    segments also go back every so many kernels (the paper's LMS-mod).
    """

    name = "lms"
    learns = False
    pre_evicts = False
    plain_memory = True
    wants_ranges = True
    queue = 1 << 16
    patience = 60.0  # a model of another system: a busy machine is no reason to give it up
    defaults: ClassVar[dict[str, str | int]] = {
        "patch": "1.3",
        "minimum": 1 << 20,
        "release_every": 0,
    }

    def __init__(self, **options: str | int) -> None:
        super().__init__(**options)
        patch = str(self.options["patch"])
        if patch not in ("1.3", "1.5"):
            raise PolicyError(f"option patch is 1.3 or 1.5, not {patch}")
        self._grows = patch == "1.5"
        self._device: CachingAllocator | None = None
        self._storages: dict[int, _Storage] = {}
        self._new: dict[int, _Storage] = {}  # allocated since the last launch
        self._idle: OrderedDict[int, _Storage] = OrderedDict()  # longest idle first
        self._flying: dict[int, list[_Storage]] = {}  # pinned, by launch
        self._tenants: dict[int, int] = {}  # tensors on the device in a UM block that some share
        self._histories: dict[int, _History] = {}
        self._keyed = 0
        self._launches = 0

    # -- hooks --------------------------------------------------------------------------------

    def on_alloc(self, view: View, allocation: Allocation) -> None:
        storage = _Storage(allocation.address, allocation.bytes)
        self._storages[storage.address] = storage
        self._new[storage.address] = storage

    def on_free(self, view: View, allocation: Allocation) -> None:
        storage = self._storages.pop(allocation.address, None)
        if storage is None:
            return
        self._new.pop(storage.address, None)
        if storage.key:
            self._keyed -= 1
        if storage.place is not None:
            if self._idle.pop(storage.address, None) is not None:
                self._record(storage, False)
            self._give_up(view, storage)

    def on_launch(self, view: View, launch: Launch) -> None:
        if not self._launches:
            self._set_up(view)
        self._launches += 1
        operands = []
        for address, size in launch.ranges:
            if address not in self._storages:  # allocated before this policy came
                self._storages[address] = self._new[address] = _Storage(address, size)
            operands.append(self._storages[address])
        pinned = [storage for storage in operands if storage.address not in self._new]
        for storage in pinned:
            storage.pins += 1
            if storage.pins == 1 and self._idle.pop(storage.address, None) is not None:
                self._record(storage, False)
                if storage.leaving:  # it was copied out for nothing, and has to come back
                    storage.leaving = False
                    self._seat(storage)
        # What the operator allocates comes after its inputs are pinned.
        for storage in [*pinned, *self._new.values()]:
            if storage.place is None:
                if self._grows and storage.address not in self._new:
                    view.wait_for_kernels()
                storage.place = self._find(view, storage.bytes)
                self._seat(storage)
        self._new.clear()
        for storage in operands:
            first = storage.address // BLOCK
            view.prefetch(first, -(-(storage.address + storage.bytes) // BLOCK) - first)
        self._flying[launch.seq] = pinned

    def on_complete(self, view: View, launch: Launch) -> None:
        for storage in self._flying.pop(launch.seq, ()):
            storage.pins -= 1
            if not storage.pins and self._storages.get(storage.address) is storage:
                self._rest(view, storage)
        every = self.options["release_every"]
        if every and self._launches % every == 0:
            self._memory(view).release_cached()

    # -- idle tensors -------------------------------------------------------------------------

    def _set_up(self, view: View) -> None:
        # The model is moved to the device one tensor after the other.
        for storage in self._new.values():
            storage.place = self._find(view, storage.bytes)
            self._seat(storage)
            self._rest(view, storage)
        self._new.clear()

    def _rest(self, view: View, storage: _Storage) -> None:
        if storage.bytes < self.options["minimum"]:
            return
        self._idle[storage.address] = storage
        if not self._grows:
            return
        if not storage.key:
            # Tensors have no names: its size and how many there were say which one it is.
            self._keyed += 1
            storage.key = (storage.bytes << 24) + (self._keyed << 12) + len(self._idle)
            self._histories.setdefault(storage.key, _History()).restart()
        if self._histories[storage.key].expects():
            storage.leaving = True
            self._unseat(view, storage)

    def _record(self, storage: _Storage, reclaimed: bool) -> None:
        if storage.key:
            self._histories[storage.key].now.append(reclaimed)

    def _reclaim(self, view: View, victims: Iterable[_Storage]) -> bool:
        done = False
        for storage in list(victims):
            del self._idle[storage.address]
            self._record(storage, True)
            waits = not storage.leaving
            self._give_up(view, storage)
            if waits:
                view.wait_for_evictions()
            done = True
        return done

    def _give_up(self, view: View, storage: _Storage) -> None:
        assert storage.place is not None
        self._memory(view).free(storage.place.address)
        storage.place = None
        if not storage.leaving:
            self._unseat(view, storage)
        storage.leaving = False

    # -- device memory ------------------------------------------------------------------------

    def _memory(self, view: View) -> CachingAllocator:
        if self._device is None:
            share = 0.95 if self._grows else 1.0  # 1.5 leaves the rest to others
            self._device = CachingAllocator(BASE, int(view.budget_blocks * BLOCK * share))
        return self._device

    def _find(self, view: View, size: int) -> Block:
        device = self._memory(view)
        block = device.from_cache(size)
        if block is None:
            block = (self._grow if self._grows else self._reuse)(view, size)
        if block is None:
            device.release_cached()
            block = device.from_driver(size)
        if block is None:
            free = int(device.limit or 0) - device.allocated_bytes
            raise OutOfMemoryError(
                f"{self.name} is out of memory: {size / GIB:.2f} GiB asked for, {free / GIB:.2f} "
                f"GiB free in all, {device.largest_free / GIB:.2f} GiB in the largest piece"
            )
        return block

    def _reuse(self, view: View, size: int) -> Block | None:
        device = self._memory(view)
        block = None
        if size < self.options["minimum"]:
            return device.from_driver(size)
        best = min(
            (storage for storage in self._idle.values() if storage.bytes >= size),
            key=lambda storage: storage.bytes,
            default=None,
        )
        if best is not None and self._reclaim(view, [best]):
            block = device.from_cache(size)
        if block is None and self._reclaim(view, self._in_segments(view, size)):
            block = device.from_cache(size)
        block = block or device.from_driver(size)
        if block is None and self._reclaim(view, self._idle.values()):
            block = device.from_cache(size)
        return block

    def _grow(self, view: View, size: int) -> Block | None:
        device = self._memory(view)
        block = device.from_driver(size)
        while block is None and self._idle:
            victims = self._first_fit(view, size) or self._in_segments(view, size)
            self._reclaim(view, victims or self._idle.values())
            block = device.from_cache(size)
        return block

    def _first_fit(self, view: View, size: int) -> list[_Storage]:
        # Tensors of up to a MiB are in segments of their own, where no larger one fits.
        device = self._memory(view)
        for storage, place in self._placed():
            if (place.block_bytes <= 1 << 20) is (size <= 1 << 20) and (
                place.block_bytes >= size or device.reach(place.address) >= size
            ):
                return [storage]
        return []

    def _in_segments(self, view: View, size: int) -> list[_Storage]:
        device = self._memory(view)
        return [s for s, place in self._placed() if device.segment_of(place.address) >= size]

    def _placed(self) -> Iterator[tuple[_Storage, Block]]:
        return ((s, s.place) for s in self._idle.values() if s.place is not None)

    # -- UM blocks: what the engine moves -----------------------------------------------------

    def _split(self, storage: _Storage) -> tuple[int, int, list[int]]:
        # First whole block, number of whole blocks, and the blocks it shares with others.
        end = storage.address + storage.bytes
        first, last = -(-storage.address // BLOCK), end // BLOCK
        if last < first:
            return first, 0, [last]
        shared = [first - 1] if storage.address % BLOCK else []
        return first, last - first, [*shared, last] if end % BLOCK else shared

    def _seat(self, storage: _Storage) -> None:
        for block in self._split(storage)[2]:
            self._tenants[block] = self._tenants.get(block, 0) + 1

    def _unseat(self, view: View, storage: _Storage) -> None:
        first, count, shared = self._split(storage)
        if count:
            view.evict(first, count)
        for block in shared:
            self._tenants[block] -= 1
            if not self._tenants[block]:
                del self._tenants[block]
                view.evict(block)


class LMSMod(LMS):
    """LMS that gives cached segments back to the driver every so many kernels.

    The DeepUM paper's LMS-mod: less fragmentation, so that it runs where LMS is out of memory,
    and more asking of the driver.
    """

    name = "lms-mod"
    defaults: ClassVar[dict[str, str | int]] = {**LMS.defaults, "release_every": 100}

# SPDX-License-Identifier: Apache-2.0
"""Host backends: real programs, real page faults, the processor in the GPU's place.

What all of them share: memory for arrays, launch notices, policies, statistics. What moves the
memory is a `deepum.backends.mechanism.Mechanism`.
"""

from __future__ import annotations

import collections
import hashlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from deepum import policy as policies
from deepum.backends import memory
from deepum.backends import stats as counting
from deepum.backends.sim import MECHANISMS, split_options
from deepum.errors import BackendError, BudgetError, DeepUMError, PolicyError
from deepum.machine import BLOCK_BYTES
from deepum.record.allocator import CachingAllocator
from deepum.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from deepum._core.deferred import DeferredPolicy
    from deepum._core.live import LiveEngine
    from deepum.backends.hooks import PolicyThread
    from deepum.backends.mechanism import Mechanism
    from deepum.policy import Policy, PolicyLike

LEAST_BLOCKS = 8
"""Smallest budget: one instruction can touch four blocks, and two threads must not starve."""

SPACE_BLOCKS = 1 << 19
"""Addresses reserved for a mapping: 1 TiB, of which only what is used takes memory."""

MECHANISM_OPTIONS = ("moves", "patience_us")
"""Options that are a mechanism's; it ignores those of others."""

PATIENCE_S = 2.0
"""How long a hook of a policy may take."""

_open_backends: weakref.WeakSet[HostBackend] = weakref.WeakSet()


class Span:
    """Memory of one array. Its end is noted here and told to the engine at the next notice."""

    def __init__(
        self, address: int, size: int, keeper: object, freed: collections.deque[int]
    ) -> None:
        self.address = address
        self._keeper = keeper  # the mapping stays while an array lies in it
        self._freed = freed
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        # May run anywhere, in the middle of anything: nothing but this.
        self._freed.append(self.address)


class Running:
    """A kernel from its launch to its completion; use it with ``with``."""

    def __init__(self, backend: HostBackend, seq: int, ranges: npt.NDArray[np.uint64]) -> None:
        self._backend = backend
        self.seq = seq
        self._ranges = ranges

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.complete()

    def complete(self) -> None:
        """Say that the kernel has finished."""
        self._backend.complete(self.seq, self._ranges)


class HostBackend:
    """Arrays under a budget of frames, moved by an engine and served by a mechanism.

    Parameters
    ----------
    name
        The backend's name.
    open_mechanism
        Called with the engine, the blocks of addresses wanted and the mechanism's options.
    policy
        A name, ``module:Class``, a `Policy` subclass or an instance.
    memory_limit
        Budget: bytes or a text such as ``"256MiB"``.
    depth
        Prefetch distance N, kernels.
    without
        Mechanisms to switch off: ``"prefetch"``, ``"pre-evict"``, ``"invalidate"``.
    options
        Options of the engine and of the policy, and ``moves=False`` to copy where pages could
        move.

    Raises
    ------
    DeepUMError
        What cannot be, in one line.
    """

    def __init__(
        self,
        name: str,
        open_mechanism: Callable[[LiveEngine, int, dict[str, Any]], Mechanism],
        policy: PolicyLike = "chained",
        *,
        memory_limit: int | str | None = None,
        depth: int = 32,
        without: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        from deepum._core.engine import EVENT_DTYPE, EVENT_TYPES, Engine
        from deepum._core.live import LiveEngine
        from deepum._core.steps import Steps

        self.name = name
        self.budget_blocks = _budget(memory_limit)
        if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= 1023:
            raise DeepUMError(f"depth must be between 0 and 1023 kernels, not {depth!r}")
        off = {without} if isinstance(without, str) else set(without)
        for unknown in sorted(off - set(MECHANISMS)):
            raise DeepUMError(f"cannot switch off {unknown!r}; choose from {', '.join(MECHANISMS)}")
        given = dict(options or {})
        mechanism_options = {k: given.pop(k) for k in MECHANISM_OPTIONS if k in given}
        # A launch that says what it touches is believed, unless that is switched off.
        engine_options, policy_options = split_options({"ranges": True, **given})
        memory.require(self.budget_blocks * BLOCK_BYTES, "the frames of the budget")
        self._event_dtype, self._event_types = EVENT_DTYPE, EVENT_TYPES
        self._depth = depth
        self._names_ranges = bool(engine_options["ranges"])
        self._pointers = bool(engine_options["pointers"])
        self._policy = policies.make(policy, policy_options)
        native, deferred = self._native(self._policy)
        try:
            engine = Engine(
                self.budget_blocks,
                native,
                depth=depth,
                prefetch="prefetch" not in off,
                pre_evict="pre-evict" not in off,
                invalidate="invalidate" not in off,
                learn_allocations=bool(engine_options["learn_allocations"]),
                auto_depth=bool(engine_options["auto_depth"]),
                follows=True,
                low=engine_options["pre_evict_low"],
                high=engine_options["pre_evict_high"],
                window=engine_options["window"],
                queue=engine_options["queue"],
                **policies.table_options(self._policy),
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise DeepUMError(f"options: {error}") from error
        self.set_aside = ""
        self._failed = False
        self._lock = threading.RLock()
        self.live = LiveEngine(engine)
        self.mechanism = open_mechanism(self.live, SPACE_BLOCKS, mechanism_options)
        self._heap = CachingAllocator(self.mechanism.address)
        self._used: dict[int, int] = {}
        self._freed: collections.deque[int] = collections.deque()
        self._peak = self._allocated = 0
        self._seq = 0
        self._running: set[int] = set()
        self._noticed: Running | None = None
        self._named = False
        self._began = time.perf_counter()
        self._steps = Steps()
        self._steps.begin(time.perf_counter_ns())
        self._final: dict[str, Any] | None = None
        self._pid = os.getpid()
        self._threads: list[PolicyThread] = []
        self.mechanism.start()
        self._close = weakref.finalize(
            self, _shut, self.mechanism, self._used, self._freed, self._threads, self._pid
        )
        self._listen(deferred)
        _open_backends.add(self)

    # -- policies -----------------------------------------------------------------------------

    def _native(self, policy: Policy) -> tuple[Any, DeferredPolicy | None]:
        from deepum._core.deferred import DeferredPolicy

        if policy.plain_memory:
            raise PolicyError(f"policy {policy.name} models plain device memory: simulate it")
        if policy.native == "oracle":
            raise PolicyError(f"policy {policy.name} knows the future of a trace only: simulate it")
        native = policies.make_native(policy, None, DeferredPolicy)
        return native, native if isinstance(native, DeferredPolicy) and native.hooks else None

    def _listen(self, deferred: DeferredPolicy | None) -> None:
        from deepum.backends.hooks import PolicyThread

        for thread in self._threads:
            thread.close()
        self._threads.clear()
        if deferred is not None:
            self._threads.append(
                PolicyThread(deferred, self.live, self.mechanism.poke, self._depth)
            )

    @property
    def policy(self) -> Policy:
        """The policy that advises; assigning swaps it at once."""
        return self._policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        made = policies.make(policy)
        native, deferred = self._native(made)
        with self._entered():
            try:
                self.live.set_policy(native)
            except ValueError as error:
                raise PolicyError(f"policy {made.name}: {error}") from error
            self._listen(deferred)
            self._policy = made
            self.set_aside = ""

    def _look_after_policy(self) -> None:
        from deepum._core.noop import NoopPolicy

        failure = getattr(self.mechanism, "failure", None)
        if self.live.failed and not self._failed:
            self._failed = True
            self.set_aside = f"the engine failed: {failure}"
            policies.warn_set_aside(self._policy, self.set_aside)
            return
        for thread in self._threads:
            reason = thread.reason
            if reason is None and thread.overdue(PATIENCE_S):
                reason = f"a hook took more than {PATIENCE_S:g} s"
            if reason is None:
                continue
            self.live.set_policy(NoopPolicy())
            self._listen(None)
            kind = type(reason).__name__ if isinstance(reason, BaseException) else ""
            self.set_aside = f"{kind}: {reason}" if kind else str(reason)
            policies.warn_set_aside(thread.policy, reason)
            return

    # -- entering -----------------------------------------------------------------------------

    def _entered(self) -> AbstractContextManager[object]:
        """Return the lock, to be used with ``with``, after what is due at every call."""
        if os.getpid() != self._pid:
            raise BackendError("this session belongs to the parent process: open one here")
        if self._final is not None:
            raise BackendError("the session has ended; open a new one")
        with self._lock:
            self._collect()
            self._look_after_policy()
        return self._lock

    def _collect(self) -> None:
        """Tell the engine of the arrays that are gone."""
        ranges = []
        while self._freed:
            address = self._freed.popleft()
            size = self._used.pop(address)
            self._heap.free(address)
            self._allocated -= size
            ranges.append((address, size))
        if not ranges:
            return
        self._feed(*(("free", {"address": a, "bytes": n}) for a, n in ranges))
        if not self.live.failed:
            emptied = self.live.emptied(np.array(ranges, np.uint64))
            self.mechanism.forget(emptied)

    def _feed(self, *events: tuple[str, dict[str, int]]) -> None:
        records = np.zeros(len(events), self._event_dtype)
        for record, (kind, fields) in zip(records, events, strict=True):
            record["type"] = self._event_types[kind]
            for name, value in fields.items():
                record[name] = value
        self.mechanism.feed(records)

    # -- memory -------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = float) -> npt.NDArray[Any]:
        """Return a new array in the mapping; its contents are whatever was there, or zeros."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise DeepUMError("an array of Python objects cannot be moved")
        sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if any(size < 0 for size in sizes):
            raise DeepUMError(f"an array cannot have the shape {shape}")
        size = max(1, kind.itemsize * int(np.prod(sizes, dtype=object)))
        with self._entered():
            block = self._heap.from_cache(size)
            if block is None:
                self._grow(*self._heap.segment_for(size))
                block = self._heap.from_driver(size)
                assert block is not None  # no limit
            self._used[block.address] = block.block_bytes
            self._allocated += block.block_bytes
            self._peak = max(self._peak, self._allocated)
            self._feed(("alloc", {"address": block.address, "bytes": block.block_bytes}))
            span = Span(block.address, block.block_bytes, self.mechanism, self._freed)
        return np.asarray(span)[: size if np.prod(sizes) else 0].view(kind).reshape(sizes)

    def _grow(self, address: int, size: int) -> None:
        memory.require(size, "an array's place on the host")
        self._feed(("manage", {"address": address, "bytes": size}))
        try:
            self.mechanism.commit((address + size - self.mechanism.address) // BLOCK_BYTES)
        except (OSError, ValueError, MemoryError) as error:
            self._feed(("unmanage", {"address": address, "bytes": size}))
            reason = error.strerror if isinstance(error, OSError) else error
            raise BackendError(f"no room for {size >> 20} MiB more: {reason}") from error

    # -- launches -----------------------------------------------------------------------------

    def launch(
        self,
        name: str,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        args: Iterable[object] = (),
    ) -> Running:
        """Say that a kernel starts now; returns it, to be completed."""
        arrays = [(extent(array), array, "r") for array in reads]
        arrays += [(extent(array), array, "w") for array in writes]
        ranges = np.array(
            [place for place, _, _ in arrays if place[1] and self._holds(place[0])], np.uint64
        ).reshape(-1, 2)
        exec_id = self._exec_id(name, arrays, args)
        with self._entered():
            events: list[tuple[str, dict[str, int]]] = []
            if self._names_ranges:
                events = [
                    ("range", {"address": int(address), "bytes": int(size)})
                    for address, size in ranges
                ]
            # Counted before, since the engine counts so too: nothing comes in between.
            self._seq += 1
            self._running.add(self._seq)
            self._named |= len(ranges) > 0
            self._feed(*events, ("launch", {"exec_id": exec_id, "seq": self._seq}))
            return Running(self, self._seq, ranges)

    def launched(
        self,
        name: str,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        args: Iterable[object] = (),
    ) -> None:
        """Say that a kernel starts now and that the one noticed before has finished."""
        self.completed()
        self._noticed = self.launch(name, reads, writes, args)

    def completed(self) -> None:
        """Say that the kernel last noticed with `launched` has finished."""
        if self._noticed is not None:
            noticed, self._noticed = self._noticed, None
            noticed.complete()

    def complete(self, seq: int, ranges: npt.NDArray[np.uint64]) -> None:
        """Say that a kernel has finished. After the session's end, nothing happens."""
        if self._final is not None or os.getpid() != self._pid:
            return
        with self._entered():
            if seq not in self._running:
                return
            self._running.remove(seq)
            if len(ranges) and not self.live.failed:
                self.live.touched(ranges)
            # The engine takes completions in the order of the launches.
            done = min(self._running, default=self._seq + 1) - 1
            self._feed(("complete", {"seq": done}))

    def _holds(self, address: int) -> bool:
        return 0 <= address - self.mechanism.address < self.mechanism.committed * BLOCK_BYTES

    def _exec_id(
        self,
        name: str,
        arrays: Iterable[tuple[tuple[int, int], Any, str]],
        args: Iterable[object],
    ) -> int:
        # Offsets instead of addresses: the same program has the same IDs in every run.
        parts = [name]
        for (address, size), array, role in arrays:
            place = ""
            if self._pointers and self._holds(address):
                place = f"{address - self.mechanism.address:x}"
            parts.append(f"{role}{place}+{size:x}{tuple(array.shape)}{array.dtype}")
        parts += [repr(arg) for arg in args]
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    # -- state --------------------------------------------------------------------------------

    def settle(self, seconds: float = 30.0) -> bool:
        """Wait until nothing moves and the policy has heard of everything.

        Returns whether that came in time.
        """
        end = time.monotonic() + seconds
        with self._entered():
            pass
        while time.monotonic() < end:
            if not self.mechanism.settle(max(0.0, end - time.monotonic())):
                return False
            if all(thread.idle() or thread.reason is not None for thread in self._threads):
                return True
            time.sleep(0.001)
        return False

    def step(self) -> None:
        """Say that a step of the program ends here."""
        with self._entered():
            if self._steps.step(self._seq):
                self._steps.completed(self._seq, time.perf_counter_ns())

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at once."""
        return self._peak

    @property
    def stats(self) -> dict[str, Any]:
        """What happened since the session began; see `deepum.Session.stats`."""
        if self._final is not None:
            return dict(self._final)
        with self._entered():
            return self._stats()

    def _stats(self) -> dict[str, Any]:
        counts, moved = self.live.stats, self.mechanism.counts
        used, late, faults = counts["prefetch_used"], counts["late"], counts["faults"]
        prefetched = counts["prefetched"]
        known = self._named  # whether anybody said what kernels touch
        return {
            "backend": self.name,
            "time_s": time.perf_counter() - self._began,
            **counting.step_times(self._steps.count, self._steps.seconds),
            "fault_source": self.name,
            "stall_s": moved["wait_ns"] * 1e-9,
            "launches": counts["launches"],
            "faults": faults,
            "page_faults": moved["waits"],
            "bytes_in": moved["bytes_in"],
            "bytes_out": moved["bytes_out"],
            "bytes_dropped": moved["bytes_dropped"],
            "prefetched": prefetched,
            "prefetch_used": used,
            "late": late,
            "wasted": counts["wasted"],
            "fault_evictions": counts["demand_evicted"],
            "pre_evictions": counts["pre_evicted"],
            "discarded": counts["discarded"],
            "refused": counts["refused"],
            "served_alone": moved["alone"],
            **counting.ratios(*((used, late, prefetched, faults) if known else (0, 0, 0, 0))),
            "policy": self._policy.name,
            "set_aside": self.set_aside,
            "table_bytes": counts["table_bytes"],
            "budget_blocks": counts["budget_blocks"],
            "resident_blocks": counts["resident_blocks"],
            "resident_bytes": counts["resident_blocks"] * BLOCK_BYTES,
            "limit_bytes": counts["budget_blocks"] * BLOCK_BYTES,
            "peak_bytes": self._peak,
        }

    def close(self) -> None:
        """End: arrays that are still there become ordinary memory, everything else is given back.

        May be called again.
        """
        if self._final is not None or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                if self._close.alive:
                    self._collect()
                    self._look_after_policy()
            finally:
                self._final = self._final or self._stats()
                self._close()

    def leave(self) -> None:
        """In a child process: let go of what belongs to the parent."""
        if self._final is None:
            self.mechanism.leave()


def _shut(
    mechanism: Mechanism,
    used: dict[int, int],
    freed: collections.deque[int],
    threads: list[PolicyThread],
    pid: int,
) -> None:
    if os.getpid() != pid:
        return
    for thread in threads:
        thread.close()
    for thread in threads:
        thread.join(1.0)
    gone = set(freed)
    mechanism.close([(address, size) for address, size in used.items() if address not in gone])


def _leave_all() -> None:
    for backend in list(_open_backends):
        backend.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def _budget(memory_limit: int | str | None) -> int:
    if memory_limit is None:
        raise BudgetError("how much memory may be resident? give memory_limit, such as '256MiB'")
    blocks = parse_bytes(memory_limit) // BLOCK_BYTES
    if blocks < LEAST_BLOCKS:
        raise BudgetError(
            f"memory_limit must be at least {LEAST_BLOCKS * BLOCK_BYTES >> 20} MiB "
            f"({LEAST_BLOCKS} blocks), not {memory_limit}"
        )
    return blocks


def extent(array: Any) -> tuple[int, int]:
    """Return (address, bytes) of the memory an array or a CPU tensor spans.

    Raises
    ------
    DeepUMError
        It is neither.
    """
    if isinstance(array, np.ndarray):
        address = int(array.__array_interface__["data"][0])
        if array.flags.c_contiguous:
            return address, array.nbytes
        reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
        if not array.size:
            return address, 0
        below = sum(step for step in reach if step < 0)
        above = sum(step for step in reach if step > 0)
        return address + below, above - below + array.itemsize
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):
        size = int(array.element_size())
        if array.numel() == 0:
            return int(array.data_ptr()), 0
        pairs = zip(array.shape, array.stride(), strict=True)
        return int(array.data_ptr()), (1 + sum((n - 1) * s for n, s in pairs)) * size
    raise DeepUMError(f"{type(array).__name__} is neither a numpy array nor a tensor")

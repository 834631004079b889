# SPDX-License-Identifier: Apache-2.0
"""CUDA managed memory: PyTorch's allocations migrate, and the engine says when."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from deepum import policy as policies
from deepum.backends import stats as counting
from deepum.backends.watch import Recorder, Watch
from deepum.cuda import cupti, fork
from deepum.cuda.device import Device, driver_module, host_available, look
from deepum.errors import BackendError, BudgetError, DeepUMError, RecordError
from deepum.machine import BLOCK_BYTES
from deepum.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deepum._core.feed import Feed
    from deepum.cuda.counters import CounterSource
    from deepum.cuda.faults import FaultSource
    from deepum.policy import Policy, PolicyLike

OPTIONS: dict[str, Any] = {
    "pre_evict_low": None,
    "pre_evict_high": None,
    "window": 128,
    "max_run": 16,
    "queue": 0,
    "learn_allocations": None,
    "auto_depth": False,
    "gates": None,
    "ranges": None,
    "strict": True,
    "host_limit": None,
    "duplex": False,
    "in_threads": 2,
    "out_threads": 4,
    "delay_us": 0,
}
"""Options of live sessions.

Free blocks at which pre-evicting starts and ends (None: a 64th and a 32nd of the budget); blocks of
prefetch on their way at once; blocks in one move; prefetches that may wait; whether allocations
enter the block tables (None: unless launches name their memory); whether depth is what most of the
budget holds; whether launches wait for their memory, and whether they name it (None: as the policy
wants); whether launches wait while faults have brought in more than the budget; host memory that
evicted blocks may take (None: what is available); whether both directions move at once; moving
threads each way; random delay before each move, microseconds, for tests.
"""

TRACE_STEPS = 4
"""Steps in the trace of a run."""

RESERVE = 1 << 30  # for workspaces of libraries, which are not managed
_MINIMUM = 64  # blocks
_HOST_WORDS = 8192
_DONE_AT = 4096


def unavailable() -> str:
    """Return why this does not work here, in one line; empty if it seems to."""
    try:
        driver_module()
        _torch()
    except BackendError as error:
        return str(error)
    if find_spec("deepum._core.cuda_mover") is None:
        return "this copy of deepum was built without CUDA's header"
    return ""


class _Process:
    """What there is one of in a process."""

    feed: Feed | None = None
    current: ManagedBackend | None = None


def _forget() -> None:
    _Process.current = None


@dataclass
class _Threads:
    running: list[threading.Thread] = field(default_factory=list)

    def start(self, name: str, run: Callable[[], object]) -> None:
        thread = threading.Thread(target=run, name=f"deepum-{name}", daemon=True)
        thread.start()
        self.running.append(thread)

    def join(self) -> None:
        for thread in self.running:
            thread.join(10)
        self.running.clear()


class ManagedBackend:
    """One GPU whose PyTorch memory is managed, from `start` to `stop`.

    Parameters
    ----------
    policy
        A name, ``module:Class``, a `Policy` subclass or an instance.
    depth
        Prefetch distance N, kernels.
    memory_limit
        Budget: bytes or a text; what is free, less a reserve, if None.
    without
        Mechanisms to switch off: ``"prefetch"``, ``"pre-evict"``, ``"invalidate"``.
    options
        Values for `OPTIONS` and for the policy's own options.
    oversubscribe
        Whether there may be more managed memory than the card has free.
    trace
        File to record the run into, if any.
    trace_steps
        How many steps of it.
    progress
        Whether to show on standard error how it goes.

    Raises
    ------
    BackendError
        This machine cannot; the text says what to do.
    """

    def __init__(
        self,
        policy: PolicyLike = "chained",
        *,
        depth: int = 32,
        memory_limit: int | str | None = None,
        without: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
        oversubscribe: bool = False,
        trace: str | os.PathLike[str] | None = None,
        trace_steps: int = TRACE_STEPS,
        progress: bool = False,
    ) -> None:
        given = dict(options or {})
        self._options = {name: given.pop(name, value) for name, value in OPTIONS.items()}
        if "next_use" in policies.find(policy).defaults:
            # Evictions are what managed memory is slowest at: the fewest possible are worth most.
            given.setdefault("next_use", True)
        self._policy = policies.make(policy, given)
        self._depth = depth
        self._memory_limit = memory_limit
        self._without = frozenset(without)
        self._oversubscribe = oversubscribe
        self._recorder = None if trace is None else Recorder(trace, trace_steps)
        self._progress = progress
        self._threads = _Threads()
        self.set_aside = ""
        self.device: Device | None = None
        self.launches_seen = True
        self.tensors_seen = True
        self._ended: float | None = None

    # -- beginning and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Take over the memory of the current device."""
        if _Process.current is not None:
            raise DeepUMError("a session is open in this process already; close it first")
        torch = _torch()
        ordinal = torch.cuda.current_device()
        torch.zeros(1, device="cuda")  # creates the context, in PyTorch's own memory
        self.device = device = look(ordinal)
        from deepum._core import cuda_memory
        from deepum._core.conductor import Conductor
        from deepum._core.cuda_launches import Launches
        from deepum._core.cuda_mover import CudaMover
        from deepum._core.feed import Feed

        budget = self._budget(device)
        if _Process.feed is None:
            _Process.feed = Feed()
            cuda_memory.use_feed(_Process.feed)
            fork.guard(_Process.feed, _forget)
        self.feed = _Process.feed
        if self.feed.counts["managed_bytes"]:
            cuda_memory.park(self.feed)  # left over from another session
        native = policies.make_native(self._policy, self._on_set_aside)
        wants = self._policy.wants_ranges or self._policy.native == "chained"
        names = wants if self._options["ranges"] is None else bool(self._options["ranges"])
        gated = names if self._options["gates"] is None else bool(self._options["gates"])
        try:
            self.engine = self._make_engine(native, budget, gated, names)
        except (ValueError, TypeError, OverflowError) as error:
            raise DeepUMError(f"options: {error}") from error
        self.mover = CudaMover(
            self.feed,
            ordinal,
            executes_faults=gated,
            duplex=bool(self._options["duplex"]),
            delay_us=int(self._options["delay_us"]),
        )
        self.mover.use_context(cuda_memory.current_context())
        self.conductor = Conductor(
            self.engine,
            self.feed,
            self.mover,
            gated=gated,
            names=names,
            strict=bool(self._options["strict"]),
        )
        if self._recorder is not None:
            self.conductor.record(self._recorder.marks)
            self.mover.record(self._recorder.marks)
        host, on_device = cuda_memory.host_words(_HOST_WORDS)
        self._host_words = host
        self.launches = Launches(self.feed)
        self.launches.use_host_words(host + _DONE_AT, on_device, on_device + _DONE_AT)
        self.conductor.set_flag(host)
        self._began = time.monotonic()
        self._watch = self._make_watch()
        cuda_memory.allow(self._allowed(device, budget), budget if gated else 0)
        self.feed.attach()
        try:
            self._start_parts(torch, ordinal)
        except BaseException:
            self._stop_parts()
            raise
        self._pid = os.getpid()
        _Process.current = self

    def _make_engine(self, native: Any, budget: int, gated: bool, names: bool) -> Any:
        from deepum._core.engine import Engine

        options = self._options
        blocks = budget // BLOCK_BYTES
        learns = options["learn_allocations"]
        low = options["pre_evict_low"]
        high = options["pre_evict_high"]
        return Engine(
            blocks,
            native,
            depth=self._depth,
            prefetch="prefetch" not in self._without,
            pre_evict="pre-evict" not in self._without,
            invalidate="invalidate" not in self._without,
            learn_allocations=not names if learns is None else bool(learns),
            auto_depth=bool(options["auto_depth"]),
            low=max(32, blocks // 64) if low is None else low,
            high=max(64, blocks // 32) if high is None else high,
            window=options["window"],
            max_run=options["max_run"],
            queue=options["queue"],
            gated=gated,
            frees_early=True,
            batches_demand=True,
            **cast("Any", policies.table_options(self._policy)),
        )

    def _start_parts(self, torch: Any, ordinal: int) -> None:
        from deepum._core import cuda_launches, cuda_memory
        from deepum.cuda.faults import open_source
        from deepum.torch.hooks import Hooks
        from deepum.torch.pool import ManagedPool
        from deepum.torch.tracker import track

        allocate, release, on_alloc, on_free = cuda_memory.callbacks()
        self._subscription: cupti.Subscription | None = None
        self._faults: FaultSource | CounterSource | None = None
        self._hooks: Hooks | None = None
        self._pool: ManagedPool | None = None
        self._tracker: Any = None
        try:
            self._tracker = track(on_alloc, on_free)
        except BackendError as error:
            self.tensors_seen = False
            warnings.warn(f"deepum: freed tensors are not seen: {error}", stacklevel=5)
        try:
            self._faults = open_source(self.feed, ordinal)
            self._threads.start("faults", self._faults.reader.run)
        except BackendError as error:
            warnings.warn(f"deepum: {error}", stacklevel=5)
        self._threads.start("conductor", self.conductor.run)
        self._watch.start()
        for _ in range(int(self._options["in_threads"])):
            self._threads.start("in", lambda: self.mover.run(False))
        for _ in range(int(self._options["out_threads"])):
            self._threads.start("out", lambda: self.mover.run(True))
        self._threads.start("drop", self.mover.run_drops)
        cuda_launches.switch_on(self.launches)
        try:
            self._subscription = cupti.Subscription(
                cuda_launches.callback_address(), cuda_launches.CALLS
            )
        except BackendError as error:
            # Nothing is known of what runs, so nothing may be dropped.
            self.launches_seen = False
            self.conductor.locked(self.engine.keep_contents)
            warnings.warn(f"deepum: {error}", stacklevel=5)
        self._pool = ManagedPool(ordinal, allocate, release)
        self._hooks = Hooks(torch, self._stepped, self._pool.release)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Give the memory back to PyTorch's ordinary allocator; what lives, stays managed."""
        if _Process.current is not self or os.getpid() != self._pid:
            return
        _Process.current = None
        atexit.unregister(self.stop)
        self._stop_parts()

    _pid = 0

    def _stop_parts(self) -> None:
        # A device that is lost fails all that asks it. The program has been told of that by a call
        # of its own; what is left to do here has to be done all the same.
        from deepum._core import cuda_launches, cuda_memory

        torch = _torch()
        try:
            if self._hooks is not None:
                self._hooks.close()
            if self._pool is not None:
                self._pool.close()
            torch.cuda.synchronize()
            lost = False
        except Exception:
            lost = True
        finally:
            cuda_launches.switch_off()
            if self._subscription is not None:
                self._subscription.close()
            self.conductor.stop()
            self.mover.stop()
            if self._faults is not None:
                self._faults.reader.stop()
            self._threads.join()
            self._ended = time.monotonic()
            if self._faults is not None:
                self._faults.close()
            self.feed.detach()
            self.launches.forget_host_words()
            if not lost:
                cuda_memory.free_host_words(self._host_words)
            self._watch.end()

    # -- limits ------------------------------------------------------------------------------------

    def _budget(self, device: Device) -> int:
        if self._memory_limit is None:
            budget = device.free_bytes - RESERVE
        else:
            budget = parse_bytes(self._memory_limit)
        if budget < _MINIMUM * BLOCK_BYTES:
            raise BudgetError(
                f"a budget of {format_bytes(budget)} is too small: at least "
                f"{format_bytes(_MINIMUM * BLOCK_BYTES)}"
            )
        if budget > device.free_bytes and not self._oversubscribe:
            raise BudgetError(
                f"a budget of {format_bytes(budget)} is more than the "
                f"{format_bytes(device.free_bytes)} that GPU {device.ordinal} has free"
            )
        return budget

    def _allowed(self, device: Device, budget: int) -> int:
        """Bytes of managed memory there may be: what the card and the host can hold."""
        limit = self._options["host_limit"]
        host = host_available() if limit is None else parse_bytes(limit)
        allowed = budget + host
        if not self._oversubscribe:
            allowed = min(allowed, device.free_bytes - RESERVE // 2)
        self.host_bytes = host
        return allowed

    @property
    def refused(self) -> str:
        """Why the last allocation was refused, empty if none was."""
        from deepum._core import cuda_memory

        size = cuda_memory.refused()
        if not size:
            return ""
        managed = self.feed.counts["managed_bytes"]
        assert self.device is not None
        text = f"{format_bytes(size)} more than the {format_bytes(managed)} of managed memory"
        if not self._oversubscribe and managed + size > self.device.free_bytes - RESERVE // 2:
            return (
                f"{text} would not fit the {format_bytes(self.device.free_bytes)} that were free "
                "on the card: pass oversubscribe=True to allow it"
            )
        return (
            f"{text} would not fit the budget and {format_bytes(self.host_bytes)} of host memory: "
            "raise host_limit if there is more"
        )

    # -- while it runs -----------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy that advises; assigning swaps it at once."""
        return self._policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        made = policies.make(policy)
        native = policies.make_native(made, self._on_set_aside)
        self.conductor.locked(self.engine.set_policy, native)
        self._policy = made
        self.set_aside = ""

    def _on_set_aside(self, policy: Policy, reason: object) -> None:
        self.set_aside = str(reason)
        policies.warn_set_aside(policy, reason)

    def step(self) -> None:
        """Say that a step of the program ends here; what else tells of steps is not heard then."""
        self._says_steps = True
        self.feed.step()

    _says_steps = False

    def _stepped(self) -> None:
        if not self._says_steps:
            self.feed.step()

    def _make_watch(self) -> Watch:
        from deepum._core import cuda_launches

        line = None
        if self._progress:
            from deepum.report.progress import ProgressLine

            line = ProgressLine()
        return Watch(
            lambda: self.stats,
            facts=self._facts,
            names=cuda_launches.names,
            recorder=self._recorder,
            progress=line,
        )

    def _facts(self) -> dict[str, Any]:
        """What a trace notes about the session."""
        if self.launches.failed_marks or self.conductor.failure:
            raise RecordError(
                "no trace: completions could not be followed to the end, so it is not known how "
                "long kernels took"
            )
        assert self.device is not None
        return {
            "device": self.device.name,
            "policy": self._policy.name,
            "limit_bytes": self.engine.budget * BLOCK_BYTES,
            "depth": self._depth,
            "fault_source": self.fault_source,
        }

    @property
    def fault_source(self) -> str:
        """Where faults are known from: ``uvm-tools``, ``cupti`` or ``none``."""
        return "none" if self._faults is None else self._faults.name

    @property
    def stats(self) -> dict[str, Any]:
        """Counts since the start, a dict; see `deepum.Session.stats`."""
        if self._faults is not None and self._ended is None:
            self._faults.flush()
        counts = self.conductor.counts
        counts.update(self.feed.counts)
        counts.update(self.mover.counts)
        steps = self.conductor.steps
        # Which prefetches were used is known where launches say what they need.
        known = self.conductor.gated
        counts.update(
            backend="managed",
            time_s=(time.monotonic() if self._ended is None else self._ended) - self._began,
            **counting.step_times(steps.count, steps.seconds),
            **counting.ratios(
                counts["prefetch_used"] if known else 0,
                counts["late"],
                counts["prefetched"] if known else 0,
                counts["faults"] + counts["misses"] if known else 0,
            ),
            resident_bytes=counts["resident_blocks"] * BLOCK_BYTES,
            limit_bytes=counts["budget_blocks"] * BLOCK_BYTES,
            fault_source=self.fault_source,
            waits_given_up=self.launches.impatient,
            failure=self.conductor.failure,
            policy=self._policy.name,
            set_aside=self.set_aside,
        )
        return counts


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise BackendError("no PyTorch: pip install torch") from None
    if not torch.cuda.is_available():
        raise BackendError("PyTorch sees no CUDA device here")
    return torch

# SPDX-License-Identifier: Apache-2.0
"""What the backends of a GPU share: feed, launches, conductor, hooks, threads."""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, cast

from deepum import policy as policies
from deepum.backends import stats as counting
from deepum.backends.watch import Recorder, Watch
from deepum.cuda import cupti, fork
from deepum.cuda.device import Device, driver_module, look
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
    "host_limit": None,
    "delay_us": 0,
}
"""Options of every session on a GPU.

Free blocks at which pre-evicting starts and ends (None: a 64th and a 32nd of the budget); blocks of
prefetch on their way at once; blocks in one move; prefetches that may wait; whether allocations
enter the block tables (None: unless launches name their memory); whether depth is what most of the
budget holds; host memory that evicted blocks may take (None: what is available); random delay
before each move, microseconds, for tests.
"""

TRACE_STEPS = 4
"""Steps in the trace of a run."""

RESERVE = 1 << 30  # for workspaces of libraries, which are not managed
_MINIMUM = 64  # blocks
_HOST_WORDS = 8192
_DONE_AT = 4096


def unavailable(part: str) -> str:
    """Return why a module of the core does not work here, in one line; empty if it seems to."""
    try:
        driver_module()
        pytorch()
    except BackendError as error:
        return str(error)
    if find_spec(f"deepum._core.{part}") is None:
        return "this copy of deepum was built without CUDA's header"
    return ""


class Process:
    """What there is one of in a process."""

    feed: Feed | None = None
    current: GpuBackend | None = None


def _forget() -> None:
    Process.current = None


@dataclass
class Threads:
    """Threads of a session."""

    running: list[threading.Thread] = field(default_factory=list)

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Start one."""
        thread = threading.Thread(target=run, name=f"deepum-{name}", daemon=True)
        thread.start()
        self.running.append(thread)

    def join(self) -> None:
        """Wait for all to end, for a while."""
        for thread in self.running:
            thread.join(10)
        self.running.clear()


class GpuBackend:
    """One GPU whose PyTorch memory is deepum's, from `start` to `stop`.

    What a subclass adds: where memory comes from, who moves it, and how launches wait for it.

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
        Values for the backend's options and for the policy's own.
    oversubscribe
        Whether there may be more memory than the card has free.
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

    name: ClassVar[str]
    """What sessions call the backend."""
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    """Its options, and their values if not given."""

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
        self._options = {name: given.pop(name, value) for name, value in self.options.items()}
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
        self._threads = Threads()
        self.set_aside = ""
        self.device: Device | None = None
        self.launches_seen = True
        self.tensors_seen = True
        self._ended: float | None = None

    # -- beginning and end -------------------------------------------------------------------------

    def start(self) -> None:
        """Take over the memory of the current device."""
        if Process.current is not None:
            raise DeepUMError("a session is open in this process already; close it first")
        torch = pytorch()
        ordinal = torch.cuda.current_device()
        torch.zeros(1, device="cuda")  # creates the context, in PyTorch's own memory
        self.device = device = look(ordinal)
        from deepum._core import cuda_memory
        from deepum._core.cuda_launches import Launches
        from deepum._core.feed import Feed

        budget = self._budget(device)
        if Process.feed is None:
            Process.feed = Feed()
            cuda_memory.use_feed(Process.feed)
            fork.guard(Process.feed, _forget)
        self.feed = Process.feed
        self._take_over(device, budget)
        native = policies.make_native(self._policy, self._on_set_aside)
        try:
            self.engine = self._make_engine(native, budget)
        except (ValueError, TypeError, OverflowError) as error:
            raise DeepUMError(f"options: {error}") from error
        self._make_movers(ordinal)
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
        self._allow(device, budget)
        self._attach()
        try:
            self._start_parts(torch, ordinal)
        except BaseException:
            self._stop_parts()
            raise
        self._pid = os.getpid()
        Process.current = self

    # -- what a subclass adds ----------------------------------------------------------------------

    mover: Any
    conductor: Any

    def _take_over(self, device: Device, budget: int) -> None:
        """See to memory that is left over from another session."""

    def _make_movers(self, ordinal: int) -> None:
        """Make `mover` and `conductor`."""
        raise NotImplementedError

    @property
    def _names(self) -> bool:
        """Whether launches name their memory."""
        return True

    def _engine_options(self) -> dict[str, Any]:
        """Return what is special about the engine."""
        return {}

    def _allow(self, device: Device, budget: int) -> None:
        """Say how much memory there may be."""
        raise NotImplementedError

    def _attach(self) -> None:
        self.feed.attach()

    def _calls(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the driver calls to be told of, and those that older drivers do not have."""
        from deepum._core import cuda_launches

        return cuda_launches.CALLS, cuda_launches.LOADING_CALLS

    def _conduct(self) -> None:
        self.conductor.run()

    def _callbacks(self) -> tuple[int, int]:
        """Return the addresses of allocate and free, as `deepum.torch.pool` wants them."""
        raise NotImplementedError

    def _untold(self, error: BackendError) -> None:
        """Go on, or not, without the allocator's feed."""
        raise error

    def _unseen(self, error: BackendError) -> None:
        """Go on, or not, without a callback for launches."""
        raise error

    def _open_faults(self, ordinal: int) -> None:
        """Begin to hear of faults, where there are any."""

    def _start_movers(self) -> None:
        """Start the moving threads."""
        raise NotImplementedError

    def _hand_back(self, lost: bool) -> None:
        """Leave the program's memory so that it can be used without a session."""

    # ----------------------------------------------------------------------------------------------

    def _make_engine(self, native: Any, budget: int) -> Any:
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
            learn_allocations=not self._names if learns is None else bool(learns),
            auto_depth=bool(options["auto_depth"]),
            low=max(32, blocks // 64) if low is None else low,
            high=max(64, blocks // 32) if high is None else high,
            window=options["window"],
            max_run=options["max_run"],
            queue=options["queue"],
            frees_early=True,
            batches_demand=True,
            hurries=True,
            **self._engine_options(),
            **cast("Any", policies.table_options(self._policy)),
        )

    def _start_parts(self, torch: Any, ordinal: int) -> None:
        from deepum._core import cuda_launches, cuda_memory
        from deepum.torch.hooks import Hooks
        from deepum.torch.pool import ManagedPool
        from deepum.torch.tracker import track

        _, _, on_alloc, on_free = cuda_memory.callbacks()
        self._subscription: cupti.Subscription | None = None
        self._faults: FaultSource | CounterSource | None = None
        self._hooks: Hooks | None = None
        self._pool: ManagedPool | None = None
        self._tracker: Any = None
        try:
            self._tracker = track(on_alloc, on_free)
        except BackendError as error:
            self._untold(error)
        self._open_faults(ordinal)
        self._threads.start("conductor", self._conduct)
        self._watch.start()
        self._start_movers()
        cuda_launches.switch_on(self.launches)
        try:
            calls, further = self._calls()
            self._subscription = cupti.Subscription(
                cuda_launches.callback_address(), calls, further
            )
        except BackendError as error:
            self._unseen(error)
        self._pool = ManagedPool(ordinal, *self._callbacks())
        self._hooks = Hooks(torch, self._stepped, self._pool.release)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Give the memory back to PyTorch's ordinary allocator; what lives, stays where it is."""
        if Process.current is not self or os.getpid() != self._pid:
            return
        Process.current = None
        atexit.unregister(self.stop)
        self._stop_parts()

    _pid = 0

    def _stop_parts(self) -> None:
        # A device that is lost fails all that asks it. The program has been told of that by a call
        # of its own; what is left to do here has to be done all the same.
        from deepum._core import cuda_launches, cuda_memory

        torch = pytorch()
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
            self._hand_back(lost)
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

    @property
    def refused(self) -> str:
        """Why the last allocation was refused, empty if none was."""
        raise NotImplementedError

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
        if self.launches.completions.failed or self.conductor.failure:
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
        counts: dict[str, Any] = self.conductor.counts
        counts.update(self.feed.counts)
        counts.update(self.mover.counts)
        steps = self.conductor.steps
        # Which prefetches were used is known where launches say what they need.
        known = self.conductor.gated
        counts.update(
            backend=self.name,
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
            predictions_lost=getattr(self.engine.policy, "forgotten", 0),
        )
        return counts


def pytorch() -> Any:
    """Return PyTorch, if it sees a GPU.

    Raises
    ------
    BackendError
        It does not, or there is none.
    """
    try:
        import torch
    except ImportError:
        raise BackendError("no PyTorch: pip install torch") from None
    if not torch.cuda.is_available():
        raise BackendError("PyTorch sees no CUDA device here")
    return torch

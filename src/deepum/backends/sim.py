# SPDX-License-Identifier: Apache-2.0
"""The simulator as a backend: traces in, time and traffic out."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from deepum import policy as policies
from deepum.backends.results import Bound, Iteration, Run, Timeline
from deepum.errors import BudgetError, DeepUMError, PolicyError, TraceError
from deepum.machine import BLOCK_BYTES, CHUNK_BLOCKS, Machine
from deepum.trace import Trace
from deepum.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deepum._core.simulator import Simulator
    from deepum.machine import Vmm
    from deepum.policy import Policy, PolicyLike

MECHANISMS = ("prefetch", "pre-evict", "invalidate")
"""What `without` can switch off."""

MEMORY_MODES = ("managed", "vmm")
"""Unified memory with page faults; chunks remapped under stable addresses, without any."""

ENGINE_OPTIONS: dict[str, Any] = {
    "pre_evict_low": 32,
    "pre_evict_high": 64,
    "window": 32,
    "queue": 0,
    "max_run": 0,
    "learn_allocations": True,
    "drop_clean": False,
    "auto_depth": False,
    "ranges": False,
    "pointers": True,
}
"""Options of the engine, whatever the policy: free blocks at which pre-evicting starts and ends;
blocks of prefetch on their way at once; prefetches that may wait at once (0: as the policy wants);
most neighbouring blocks moved as one run (0: as the machine does best);
whether allocations enter the block tables; whether
launches name their memory; whether pointers are part of the execution ID."""

VMM_OPTIONS: dict[str, Any] = {"chunk_mib": 16, "ahead": 256}
"""Further options of memory mode ``vmm``: the largest chunk, MiB, a power of two from 2 to 128;
launches that the program submits behind the running one. `drop_clean` is on there by default."""

STRIDED = ("conv", "batch_norm", "pool")
"""Parts of kernel names that tell a kernel over image planes, which reads memory in strides."""

TOUCH_RANDOM, TOUCH_STRIDED = 2, 4  # as _core/lowering.pxd has them

_SLICE = 4096  # events between two looks at whether the policy was changed

TraceLike = Trace | str | os.PathLike[str]


class SimBackend:
    """One simulated GPU that runs one trace.

    Parameters
    ----------
    trace
        A trace, its path, or the name of a shipped one.
    machine
        A profile, its shipped name or its path.
    policy
        A name, ``module:Class``, a `Policy` subclass or an instance.
    memory
        Budget: bytes or a text such as ``"24GiB"``; the machine's memory if None.
    depth
        Prefetch distance N, kernels.
    without
        Mechanisms to switch off, of `MECHANISMS`.
    options
        Values for `ENGINE_OPTIONS` and for the policy's own options.
    memory_mode
        ``"managed"``, or ``"vmm"`` on a machine whose profile has its costs: then `VMM_OPTIONS`
        can be set as well.

    Raises
    ------
    BudgetError
        The budget is smaller than what one kernel touches, in managed memory.
    MachineError
        The machine's profile lacks the costs of the memory mode.
    DeepUMError
        Anything else that cannot be, in one line.
    """

    def __init__(
        self,
        trace: TraceLike,
        machine: Machine | str = "v100-pcie3-32g",
        policy: PolicyLike = "chained",
        *,
        memory: int | str | None = None,
        depth: int = 32,
        without: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
        memory_mode: str = "managed",
    ) -> None:
        from deepum._core.engine import Engine
        from deepum._core.lowering import Program

        self.trace = trace if isinstance(trace, Trace) else Trace.load(trace)
        self.machine = Machine.load(machine)
        self.memory_bytes = budget_bytes(self.machine, memory)
        if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= 1023:
            raise DeepUMError(f"depth must be between 0 and 1023 kernels, not {depth!r}")
        off = _mechanisms(without)
        engine_options, policy_options = split_options(options or {}, memory_mode)
        chunk = _chunk_blocks(engine_options) if memory_mode == "vmm" else 1
        # Room for two chunks at least: one that moves and one that is next.
        spare = 2 * chunk if chunk > 1 else 0
        self._policy = policies.make(policy, policy_options)
        self.set_aside = ""
        self._pending: Policy | None = None
        self._columns = self.trace.columns()
        if chunk > 1:
            self._columns = aligned(self._columns, chunk * BLOCK_BYTES)
        self._program = Program(
            self._columns,
            # A recorded live launch has its execution ID for a key, pointers included.
            pointers=bool(engine_options["pointers"]) and "live" not in self.trace.meta,
            scattered=self.machine.scattered_pages,
            strided=_named(self.trace, *STRIDED),
        )
        if memory_mode == "managed":
            check_budget(self.trace, self._program, self.memory_bytes)
        self._times = kernel_times(self.trace, self.machine)
        native = policies.make_native(self._policy, self._on_set_aside)
        try:
            self.engine = Engine(
                self.memory_bytes // BLOCK_BYTES,
                native,
                depth=depth,
                prefetch="prefetch" not in off,
                pre_evict="pre-evict" not in off,
                invalidate="invalidate" not in off,
                learn_allocations=bool(engine_options["learn_allocations"]),
                drop_clean=bool(engine_options["drop_clean"]),
                auto_depth=bool(engine_options["auto_depth"]),
                low=max(engine_options["pre_evict_low"], spare),
                high=max(engine_options["pre_evict_high"], 2 * spare),
                window=max(engine_options["window"], spare),
                max_run=engine_options["max_run"] or max(chunk, self.machine.max_run_blocks),
                queue=engine_options["queue"],
                gated=memory_mode == "vmm",
                frees_early=memory_mode == "vmm",
                batches_demand=memory_mode == "vmm",
                **cast("Any", policies.table_options(self._policy)),
            )
            self._simulator = self._make_simulator(memory_mode, engine_options, chunk)
        except (ValueError, TypeError, OverflowError) as error:
            raise DeepUMError(f"options: {error}") from error
        self.iteration = 0

    def _make_simulator(
        self, memory_mode: str, options: Mapping[str, Any], chunk: int
    ) -> Simulator:
        from deepum._core.simulator import Simulator
        from deepum._core.vmm_simulator import VmmSimulator

        machine = self.machine
        common = (
            self.engine,
            self._program,
            self._columns,
            self._times,
            _faulting_pages(self._program, machine),
            _rates(machine, machine if memory_mode == "managed" else machine.costs_of_vmm()),
        )
        if memory_mode == "managed":
            return Simulator(*common, names_ranges=bool(options["ranges"]))
        costs = machine.costs_of_vmm()
        return VmmSimulator(
            *common,
            chunk=chunk,
            ahead=options["ahead"],
            remap=costs.chunk_remap_s(),
            zero_copy_bytes_s=costs.zero_copy_bytes_s,
        )

    @property
    def policy(self) -> Policy:
        """The policy that advises; assigning swaps it at the next launch."""
        return self._pending or self._policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        self._pending = policies.make(policy)

    def _swap(self) -> None:
        if self._pending is None:
            return
        self._policy, self._pending = self._pending, None
        self.set_aside = ""
        self.engine.set_policy(policies.make_native(self._policy, self._on_set_aside))
        self._foresee(self._until)

    def _on_set_aside(self, policy: Policy, reason: object) -> None:
        name = type(reason).__name__ if isinstance(reason, Exception) else ""
        self.set_aside = f"{name}: {reason}" if name else str(reason)
        policies.warn_set_aside(policy, reason)

    def run(
        self,
        iterations: int = 1,
        *,
        timeline: bool = False,
        progress: Callable[[Iteration], object] | None = None,
    ) -> Run:
        """Run more iterations; the state goes on from the last call.

        Parameters
        ----------
        iterations
            How many.
        timeline
            Whether to sample the last one.
        progress
            Called after each iteration.
        """
        if iterations < 1:
            raise DeepUMError(f"iterations must be at least 1, not {iterations}")
        self.trace.step_at(self.iteration + iterations - 1)  # a trace may end
        self._until = self.iteration + iterations
        self._swap()
        self._foresee(self._until)
        done = []
        for _ in range(iterations):
            sampling = timeline and self.iteration == self._until - 1
            done.append(self._iterate(sampling))
            if progress is not None:
                progress(done[-1])
        samples = self._samples if timeline else None
        return Run(self._policy.name, self.engine.table_bytes, done, samples, self.set_aside)

    _until = 0
    _samples: Timeline | None = None

    def _iterate(self, sampling: bool) -> Iteration:
        step = self.trace.step_at(self.iteration)
        first, last = (int(self._columns["step_start"][step + k]) for k in (0, 1))
        began = self._simulator.now
        total: dict[str, float] = {}
        samples = []
        for start in range(first, last, _SLICE):
            self._swap()
            stop = min(last, start + _SLICE)
            part = self._simulator.run(start, stop, sampling=sampling, through=stop == last)
            if sampling:
                chunk = self._simulator.take_samples()
                chunk[:, 3] += total.get("bytes_in", 0)
                chunk[:, 4] += total.get("bytes_out", 0)
                samples.append(chunk)
            for name, value in part.items():
                total[name] = total.get(name, 0) + value
        if sampling:
            self._samples = _timeline(np.concatenate(samples), began)
        self.iteration += 1
        return _iteration(total)

    def _foresee(self, until: int) -> None:
        # The oracle is told what comes: the rest of this call and one iteration more, so that
        # the end of a run does not look like the end of the world.
        native = self.engine.policy
        foresee = getattr(native, "foresee", None)
        if foresee is None:
            return
        kernels = []
        for iteration in range(self.iteration, until + 1):
            try:
                kernels.append(self._kernels_of(self.trace.step_at(iteration)))
            except TraceError:
                break
        foresee(self._simulator, np.concatenate(kernels))

    def _kernels_of(self, step: int) -> npt.NDArray[np.uint64]:
        first, last = (int(self._columns["step_start"][step + k]) for k in (0, 1))
        is_kernel = self._columns["event_op"][first:last] == 0
        return np.asarray(self._columns["event_arg"][first:last][is_kernel], dtype=np.uint64)


def simulate(
    trace: TraceLike,
    machine: Machine | str = "v100-pcie3-32g",
    policy: PolicyLike = "chained",
    *,
    memory: int | str | None = None,
    depth: int = 32,
    iterations: int = 6,
    without: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    timeline: bool = False,
    progress: Callable[[Iteration], object] | None = None,
    memory_mode: str = "managed",
) -> Run:
    """Run a trace under a policy and return what happened.

    Parameters are those of `SimBackend` and `SimBackend.run`.

    Examples
    --------
    >>> import deepum
    >>> run = deepum.simulate("bert-large-b14", policy="chained", iterations=6)
    >>> run.iterations[-1].faults < run.iterations[0].faults
    True
    """
    backend = SimBackend(
        trace,
        machine,
        policy,
        memory=memory,
        depth=depth,
        without=without,
        options=options,
        memory_mode=memory_mode,
    )
    return backend.run(iterations, timeline=timeline, progress=progress)


def bound(
    trace: TraceLike,
    machine: Machine | str = "v100-pcie3-32g",
    memory: int | str | None = None,
    iterations: int = 6,
    memory_mode: str = "managed",
) -> Bound:
    """Return what no policy can beat in one iteration of the steady state.

    The traffic is that of Belady's next-use eviction under the budget (the fewest fetches any
    demand-fetching plan can have: L. A. Belady, IBM Systems Journal 5(2), 1966), the least over
    the iterations after the first; contents that die before they are read again move for free.
    Where a kernel may use host memory, since it alone needs more than the budget, the traffic is
    that under a budget larger by what the kernel touches: no plan that leaves part of it on the
    host can do with less.
    """
    from deepum._core.bound import least_traffic
    from deepum._core.lowering import Program

    mode_options(memory_mode)  # or there is no such mode
    trace = trace if isinstance(trace, Trace) else Trace.load(trace)
    machine = Machine.load(machine)
    memory_bytes = budget_bytes(machine, memory)
    columns = trace.columns()
    program = Program(columns, scattered=machine.scattered_pages)
    frames = memory_bytes // BLOCK_BYTES
    if memory_mode == "managed":
        check_budget(trace, program, memory_bytes)
    elif (largest := int(program.working_set.max(initial=0))) > frames:
        frames += largest
    bus = machine if memory_mode == "managed" else machine.costs_of_vmm()
    steps = [trace.step_at(iteration) for iteration in range(iterations)]
    try:
        steps.append(trace.step_at(iterations))
    except TraceError:
        steps.append(steps[-1])
    moved = least_traffic(program, columns, steps, frames)
    settled = slice(1, None) if iterations > 1 else slice(None)
    bytes_in, bytes_out = (int(part[settled].min()) * BLOCK_BYTES for part in moved)
    times = kernel_times(trace, machine)
    ideal = min(_ideal(columns, times, step) for step in steps[:-1][settled])
    floor = max(ideal, bytes_in / bus.bus_in_bytes_s, bytes_out / bus.bus_out_bytes_s)
    return Bound(ideal, floor, bytes_in, bytes_out)


def _ideal(columns: Mapping[str, Any], times: npt.NDArray[np.float64], step: int) -> float:
    first, last = (int(columns["step_start"][step + k]) for k in (0, 1))
    op = columns["event_op"][first:last]
    arg = columns["event_arg"][first:last]
    return float(times[arg[op == 0]].sum() + arg[op == 3].sum() * 1e-9)


def budget_bytes(machine: Machine, memory: int | str | None) -> int:
    """Return the budget in bytes: what is asked for, or the machine's memory."""
    size = machine.memory_bytes if memory is None else parse_bytes(memory)
    if size < BLOCK_BYTES:
        raise BudgetError(f"memory of {size} bytes is below one 2 MiB block")
    return size


def check_budget(trace: Trace, program: Any, memory_bytes: int) -> None:
    """Raise `BudgetError`, naming the kernel, if one touches more than the budget holds."""
    sizes = program.working_set
    if not len(sizes):
        return
    worst = int(sizes.argmax())
    needed = int(sizes[worst])
    if needed > memory_bytes // BLOCK_BYTES:
        kernel = trace.names[int(trace.columns()["kernel_name"][worst])]
        gib = 1 << 30
        raise BudgetError(
            f"memory of {memory_bytes / gib:.2f} GiB is too small: kernel {kernel!r} alone "
            f"touches {needed * BLOCK_BYTES / gib:.2f} GiB ({needed} blocks of 2 MiB)"
        )


def kernel_times(trace: Trace, machine: Machine) -> npt.NDArray[np.float64]:
    """Return each kernel row's time in seconds with everything resident.

    Measured times are taken as they are; estimates are made anew for the machine, and so are
    measured rows without a time.
    """
    columns = trace.columns()
    estimate = machine.kernel_time_s(
        columns["kernel_flops"],
        columns["kernel_bytes"],
        columns["kernel_dtype"],
        _named(trace, "conv"),
    )
    if trace.meta.get("times") != "measured":
        return estimate
    measured = np.asarray(columns["kernel_time_ns"], dtype=np.float64) * 1e-9
    return np.where(measured > 0, measured, estimate)


def _named(trace: Trace, *parts: str) -> npt.NDArray[np.bool_]:
    """Return, for each kernel row, whether its name contains one of the parts."""
    hit = np.array([any(part in name for part in parts) for name in trace.names], dtype=np.bool_)
    return hit[trace.columns()["kernel_name"]]


def _faulting_pages(program: Any, machine: Machine) -> npt.NDArray[np.uint16]:
    # Scattered rows fault page by page; elsewhere the driver fetches the rest of a block once
    # some of it has faulted, the later the less contiguous the kernel reads.
    flags = program.touch_flags
    percent = np.where(
        flags & TOUCH_RANDOM,
        100.0,
        np.where(
            flags & TOUCH_STRIDED, machine.fault_page_percent_strided, machine.fault_page_percent
        ),
    )
    return np.asarray(np.ceil(program.touch_pages * percent / 100), dtype=np.uint16)


def _rates(machine: Machine, bus: Machine | Vmm) -> dict[str, float]:
    inward, outward = bus.bus_in_bytes_s, bus.bus_out_bytes_s
    share = bus.bus_both_bytes_s / (inward + outward)
    return {
        "block_in": BLOCK_BYTES / inward,
        "block_out": BLOCK_BYTES / outward,
        # With both directions busy each gets its part of what the bus does in all.
        "block_in_both": BLOCK_BYTES / (inward * min(1.0, share)),
        "block_out_both": BLOCK_BYTES / (outward * min(1.0, share)),
        "move_in": machine.move_in_s,
        "move_out": machine.move_out_s,
        "fault_batch": machine.fault_batch_s,
        "fault_page": machine.fault_page_s,
        "populate": machine.populate_s,
        "discard": machine.discard_s,
        "fault_window": min(64, machine.fault_window_blocks),
        "evict_ahead": machine.fault_evict_ahead_blocks,
    }


def _mechanisms(without: Iterable[str]) -> set[str]:
    names = {without} if isinstance(without, str) else set(without)
    unknown = sorted(names - set(MECHANISMS))
    if unknown:
        raise DeepUMError(f"cannot switch off {unknown[0]!r}; choose from {', '.join(MECHANISMS)}")
    return names


def mode_options(memory_mode: str) -> dict[str, Any]:
    """Return the options of a memory mode, whatever the policy, with their defaults."""
    if memory_mode not in MEMORY_MODES:
        raise DeepUMError(f"no memory mode {memory_mode!r}; there are: {', '.join(MEMORY_MODES)}")
    if memory_mode == "managed":
        return dict(ENGINE_OPTIONS)
    return {**ENGINE_OPTIONS, "drop_clean": True, **VMM_OPTIONS}


def split_options(
    options: Mapping[str, Any], memory_mode: str = "managed"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the engine's options, complete, and those that are the policy's."""
    engine = mode_options(memory_mode)
    own = {}
    for name, value in options.items():
        if name not in engine:
            if name in VMM_OPTIONS:
                raise PolicyError(f"option {name} is for memory mode vmm")
            own[name] = value
            continue
        wanted = type(engine[name])
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is int):
            raise PolicyError(f"option {name} must be of type {wanted.__name__}, not {value!r}")
        engine[name] = value
    return engine, own


def _chunk_blocks(options: Mapping[str, Any]) -> int:
    size = options["chunk_mib"]
    sizes = [blocks * BLOCK_BYTES >> 20 for blocks in CHUNK_BLOCKS]
    if size not in sizes:
        raise DeepUMError(f"chunk_mib must be one of {', '.join(map(str, sizes))}, not {size}")
    return CHUNK_BLOCKS[sizes.index(size)]


def aligned(columns: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """Return a trace's columns with every segment at a multiple of so many bytes.

    Addresses are reserved so that a segment is divided into as few chunks as its size allows.
    """
    whole = np.uint64(unit)
    order = np.argsort(columns["segment_address"], kind="stable")
    start = columns["segment_address"][order]
    room = (columns["segment_bytes"][order] + whole - np.uint64(1)) // whole * whole
    moved = start[:1] // whole * whole + np.cumsum(room) - room
    address = np.empty_like(start)
    address[order] = moved
    tensor = columns["tensor_address"]
    place = np.searchsorted(start, tensor, side="right") - 1
    return {
        **columns,
        "segment_address": address,
        "tensor_address": tensor - start[place] + moved[place],
    }


def _iteration(total: Mapping[str, float]) -> Iteration:
    stalls = {name: float(total[name]) for name in ("stall_fault", "stall_evict", "stall_late")}
    counts = {
        name: int(total[name])
        for name in inspect.get_annotations(Iteration)
        if name in total and not name.endswith("_s")
    }
    return Iteration(
        time_s=float(total["time"]),
        compute_s=float(total["compute"]),
        host_s=float(total["host"]),
        stall_s=sum(stalls.values()),
        stall_fault_s=stalls["stall_fault"],
        stall_evict_s=stalls["stall_evict"],
        stall_late_s=stalls["stall_late"],
        fault_evictions=int(total["demand_evicted"]),
        pre_evictions=int(total["pre_evicted"]),
        **counts,
    )


def _timeline(samples: npt.NDArray[np.float64], began: float) -> Timeline:
    # A couple of thousand points are what a plot can show.
    kept = samples[:: max(1, len(samples) // 2000)]
    return Timeline(
        kept[:, 0] - began, kept[:, 1] * BLOCK_BYTES, kept[:, 2], kept[:, 3], kept[:, 4]
    )

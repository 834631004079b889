# SPDX-License-Identifier: Apache-2.0
"""Session: the one object most people touch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from deepum import policy as policies
from deepum.backends import live
from deepum.backends import stats as counting
from deepum.backends.results import Iteration, Run
from deepum.backends.sim import SimBackend, TraceLike
from deepum.errors import BackendError, DeepUMError
from deepum.machine import BLOCK_BYTES, Machine

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import numpy.typing as npt

    from deepum.backends.gpu import GpuBackend
    from deepum.backends.host import HostBackend, Running
    from deepum.backends.watch import Watch
    from deepum.policy import Policy, PolicyLike

BACKENDS = ("sim", *live.GPUS, *live.NAMES, "auto")


class Session:
    """Run a program under a memory budget, with a policy that moves blocks ahead.

    Parameters
    ----------
    policy
        A name (``"chained"``, ``"single-level"``, ``"noop"``, ``"oracle"``, or what a package
        registers), ``"module:Class"``, a `Policy` subclass or an instance.
    depth
        Prefetch distance N in kernels.
    memory_limit
        Budget: bytes or a text such as ``"24GiB"``. With the simulator, the machine's memory if
        None; the others need one.
    backend
        ``"sim"``, the simulator; ``"managed"``, PyTorch on the GPU, all it allocates in managed
        memory; ``"vmm"``, the same in memory that is remapped, without faults; ``"uffd"``, real
        page faults in this process, the processor standing in for the GPU; ``"kmod"``, the same by
        the kernel module; ``"auto"``, the best of these that works here, but for ``"vmm"``.
    memory
        On a GPU, which memory: ``"managed"``, ``"vmm"``, or ``"auto"``: ``"vmm"`` if
        ``deepum doctor --coverage`` found that it will do for this script, else ``"managed"``.
    machine
        Hardware profile to simulate: a shipped name, a TOML file or a `Machine`.
    without
        Mechanisms to switch off: ``"prefetch"``, ``"pre-evict"``, ``"invalidate"``.
    oversubscribe
        Whether a GPU may be given more managed memory than it has free.
    options
        Further options of the engine (`deepum.backends.sim.ENGINE_OPTIONS`) and of the policy.
    trace
        On a GPU, a file to record the run into: `deepum.simulate` takes it.
    trace_steps
        How many steps to record.
    progress
        Whether to show on standard error how it goes.

    Examples
    --------
    >>> import deepum
    >>> with deepum.Session(policy="chained", depth=32) as session:
    ...     first = session.run("bert-large-b14", iterations=3)
    ...     session.policy = "single-level"
    ...     more = session.run(iterations=1)
    >>> session.stats["iterations"]
    4

    A real run, on Linux:

    >>> with deepum.Session(backend="auto", memory_limit="64MiB") as session:  # doctest: +SKIP
    ...     a, b = session.empty((4096, 1024)), session.empty((4096, 1024))
    ...     with session.launch("fill", writes=[a]):
    ...         a[:] = 1
    ...     with session.launch("add", reads=[a], writes=[b]):
    ...         b[:] = a + 1
    """

    def __init__(
        self,
        policy: PolicyLike = "chained",
        depth: int = 32,
        memory_limit: int | str | None = None,
        *,
        backend: str = "sim",
        memory: str | None = None,
        machine: Machine | str = "v100-pcie3-32g",
        without: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
        oversubscribe: bool = False,
        trace: str | os.PathLike[str] | None = None,
        trace_steps: int = 4,
        progress: bool = False,
    ) -> None:
        if memory is not None:
            memory = live.choose_memory(memory)
            if backend not in ("sim", "auto", memory):
                raise BackendError(f"backend {backend!r} has no memory {memory!r}: leave one out")
            backend = memory
        if backend not in BACKENDS:
            raise BackendError(
                f"no backend named {backend!r}; this version has: {', '.join(BACKENDS)}"
            )
        backend = live.choose(backend)
        if trace is not None and backend not in live.GPUS:
            raise BackendError(
                f"backend {backend!r} records no trace: a trace is of a run on a GPU; without one, "
                "deepum record makes them"
            )
        self._machine = Machine.load(machine)
        self._policy = policies.find(policy)
        self._depth = depth
        self._memory_limit = memory_limit
        self._without = tuple([without] if isinstance(without, str) else without)
        self._options = dict(options or {})
        self._backend: SimBackend | None = None
        self._host: HostBackend | None = None
        self._done: list[Iteration] = []
        self._closed = False
        self._gpu: GpuBackend | None = None
        if backend in live.GPUS:
            self._gpu = live.open_gpu(
                backend,
                policy,
                depth=depth,
                memory_limit=memory_limit,
                without=self._without,
                options=self._options,
                oversubscribe=oversubscribe,
                trace=trace,
                trace_steps=trace_steps,
                progress=progress,
            )
            self._gpu.start()
        elif backend != "sim":
            self._host = live.open_backend(
                backend,
                self._policy,
                memory_limit=memory_limit,
                depth=depth,
                without=self._without,
                options=self._options,
            )
        self._watch = None if self._gpu is not None or not progress else _show(lambda: self.stats)
        if self._watch is not None and self._host is not None:
            self._watch.start()

    def __enter__(self) -> Self:
        if self._closed:
            raise DeepUMError("the session has ended; open a new one")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._gpu is not None and self._gpu.refused:
            error.add_note(f"deepum: {self._gpu.refused}")
        self.close()

    def close(self) -> None:
        """End the session; its statistics stay readable.

        Arrays that are still there become ordinary memory and keep their contents.
        """
        if self._watch is not None and not self._closed:
            self._watch.end()
        self._closed = True
        if self._gpu is not None:
            self._gpu.stop()
        if self._host is not None:
            self._host.close()

    @property
    def policy(self) -> Policy | type[Policy]:
        """The policy that advises. Assign a name, class or instance to swap it at any time.

        Tables, residency and what is on its way stay as they are. May be assigned from another
        thread or from a `progress` callback while the session runs.
        """
        if self._gpu is not None:
            return self._gpu.policy
        if self._host is not None:
            return self._host.policy
        return self._policy if self._backend is None else self._backend.policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        if self._gpu is not None:
            self._gpu.policy = policy
            return
        found = policies.find(policy)
        if self._host is not None:
            self._host.policy = found
        self._policy = found
        if self._backend is not None:
            self._backend.policy = found

    def run(
        self,
        trace: TraceLike | None = None,
        iterations: int = 1,
        *,
        timeline: bool = False,
        progress: Callable[[Iteration], object] | None = None,
    ) -> Run:
        """Simulate iterations of a trace.

        Parameters
        ----------
        trace
            A trace, its path, or the name of a shipped one; None goes on with the last one.
        iterations
            How many.
        timeline
            Whether to sample memory over the last one.
        progress
            Called after each iteration.

        Raises
        ------
        DeepUMError
            The session has ended, there is no trace to go on with, or something cannot be.
        """
        if self._closed:
            raise DeepUMError("the session has ended; open a new one")
        if self.backend != "sim":
            raise DeepUMError(
                f"a session with backend {self.backend!r} runs programs; traces run in the "
                "simulator: Session(backend='sim')"
            )
        if trace is not None:
            self._backend = SimBackend(
                trace,
                self._machine,
                self._policy,
                memory=self._memory_limit,
                depth=self._depth,
                without=self._without,
                options=self._options,
            )
        if self._backend is None:
            raise DeepUMError("which trace? give one to run, such as 'gpt2-xl-b3'")

        def each(iteration: Iteration) -> None:
            self._done.append(iteration)
            if self._watch is not None:
                self._watch.look()
            if progress is not None:
                progress(iteration)

        return self._backend.run(iterations, timeline=timeline, progress=each)

    # -- real programs ------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        if self._gpu is not None:
            return self._gpu.name
        return "sim" if self._host is None else self._host.name

    def _program(self) -> HostBackend:
        if self._gpu is not None:
            raise DeepUMError(
                "on a GPU PyTorch allocates and launches: torch.empty(..., device='cuda')"
            )
        if self._host is None:
            raise DeepUMError(
                "the simulator has no memory to run a program in: Session(backend='uffd')"
            )
        return self._host

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = float) -> npt.NDArray[Any]:
        """Return a new numpy array under the session's budget, its contents undefined.

        Its memory is freed when the last reference to it goes.
        """
        return self._program().empty(shape, dtype)

    def tensor(self, shape: int | Sequence[int], dtype: Any = None) -> Any:
        """Return a new PyTorch tensor under the session's budget, its contents undefined.

        Parameters
        ----------
        shape
            Its size.
        dtype
            A ``torch.dtype``; the default one if None.
        """
        return live.tensor(self._program(), shape, dtype)

    def launch(
        self,
        name: str,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        args: Iterable[object] = (),
    ) -> Running:
        """Say that a kernel starts now, and that it ends when the ``with`` block does.

        Parameters
        ----------
        name
            The kernel's name.
        reads, writes
            Arrays and tensors that it touches. What is named need not be learnt from faults.
        args
            Further arguments: what makes this launch another kernel than the last of its name.

        Examples
        --------
        ``with session.launch("matmul", reads=[a, b], writes=[c]): np.matmul(a, b, out=c)``
        """
        return self._program().launch(name, reads, writes, args)

    def launched(
        self,
        name: str,
        reads: Iterable[Any] = (),
        writes: Iterable[Any] = (),
        args: Iterable[object] = (),
    ) -> None:
        """Say that a kernel starts now and that the one noticed before has ended.

        For programs that run one kernel after another, where a ``with`` block does not fit.
        """
        self._program().launched(name, reads, writes, args)

    def completed(self) -> None:
        """Say that the kernel last noticed with `launched` has ended."""
        self._program().completed()

    def step(self) -> None:
        """Say that a step of the program ends here.

        On a GPU steps are noticed without it: by PyTorch's optimizers, else by kernels that come
        again. Called once, it is what counts. In the simulator a step is an iteration.
        """
        if self._gpu is not None:
            self._gpu.step()
        elif self._host is not None:
            self._host.step()

    @property
    def stats(self) -> dict[str, Any]:
        """What happened since the session began.

        Every backend has the counts of `deepum.backends.stats.COMMON`: among them ``steps``,
        ``step_s`` and ``last_step_s`` (seconds), ``faults`` (blocks), ``bytes_in``, ``bytes_out``,
        ``bytes_dropped``, ``resident_bytes``, ``limit_bytes``, ``prefetch_accuracy`` (used /
        prefetched), ``prefetch_coverage`` (used / (used + faults)) and ``prefetch_timeliness``
        (in time / used); each of the three is None while there is nothing to divide by.

        The simulator also has totals over all iterations under the names of `Iteration`'s fields,
        and ``iterations``. Backends that run programs on the host have ``stall_s`` (how long
        threads waited for blocks), ``served_alone`` (blocks served without the engine) and
        ``peak_bytes``; what was used is known there where launches name their arrays, and on the
        GPU where launches wait for their memory; the three ratios are None where it is not.
        docs/watching.md lists what the GPU has besides.
        """
        if self._gpu is not None:
            return self._gpu.stats
        if self._host is not None:
            return self._host.stats
        totals: dict[str, Any] = {
            name: sum(getattr(iteration, name) for iteration in self._done)
            for name in Iteration.__dataclass_fields__
        }
        used, late = totals["prefetch_used"], totals["late"]
        totals["iterations"] = len(self._done)
        times = [iteration.time_s for iteration in self._done]
        totals |= counting.step_times(len(times), times[-64:])
        totals |= counting.ratios(used, late, totals["prefetched"], totals["faults"])
        totals["backend"] = "sim"
        totals["fault_source"] = "model"
        totals["policy"] = self.policy.name
        backend = self._backend
        totals["set_aside"] = "" if backend is None else backend.set_aside
        totals["table_bytes"] = 0 if backend is None else backend.engine.table_bytes
        totals["budget_blocks"] = 0 if backend is None else backend.engine.budget
        totals["resident_blocks"] = 0 if backend is None else backend.engine.resident
        totals["launches"] = 0 if backend is None else backend.engine.stats["launches"]
        totals["limit_bytes"] = totals["budget_blocks"] * BLOCK_BYTES
        totals["resident_bytes"] = totals["resident_blocks"] * BLOCK_BYTES
        return totals


def _show(counts: Callable[[], dict[str, Any]]) -> Watch:
    from deepum.backends.watch import Watch
    from deepum.report.progress import ProgressLine

    return Watch(counts, progress=ProgressLine())

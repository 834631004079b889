# SPDX-License-Identifier: Apache-2.0
"""From a program to a trace: run its steps on a fake device, and lay out what they did.

The operators, the storages and their lifetimes are PyTorch's own. Not in a trace: workspaces of
cuBLAS and cuDNN, the several kernels that some operators launch, ranges that a kernel leaves out
inside a tensor that it is given, and anything that depends on values. Kernel times are roofline
estimates.

>>> from deepum.record.recorder import record_model
>>> trace = record_model("gpt2-l", batch=3)                        # doctest: +SKIP
>>> trace = record_script("train.py:make_step")                    # doctest: +SKIP
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum.errors import RecordError, TraceError
from deepum.machine import Machine
from deepum.record.fake import fake_device, require_torch
from deepum.trace import Operand, Trace, TraceBuilder

if TYPE_CHECKING:
    from deepum.record.tracer import Event, Tracer

Progress = Callable[[str], None]
"""Called with a few words whenever the recording reaches a new stage."""

DEFAULT_MACHINE = "v100-pcie3-32g"

_LONGEST_PERIOD = 3
_FEWEST_STEPS = 3
_MOST_STEPS = 8


def record_model(
    model: str,
    batch: int,
    machine: Machine | str = DEFAULT_MACHINE,
    progress: Progress | None = None,
) -> Trace:
    """Record the training step of a built-in model.

    Parameters
    ----------
    model
        A name from :data:`deepum.record.models.MODELS`.
    batch
        Samples a step.
    machine
        The machine whose kernel times are estimated.
    progress
        Told what is going on.

    Raises
    ------
    RecordError
        The model is unknown, the batch is not positive, or PyTorch is missing.
    """
    require_torch()
    from deepum.record.models import find

    entry = find(model)
    if batch < 1:
        raise RecordError(f"a batch has at least one sample, not {batch}")

    def make_step() -> Callable[[], Any]:
        return entry.make_step(batch)

    return record(
        make_step,
        name=f"{model}-b{batch_label(batch)}",
        machine=machine,
        host_ns=round(entry.host_ns_a_sample * batch),
        progress=progress,
        model=model,
        batch=batch,
    )


def record_script(
    script: str,
    batch: int | None = None,
    machine: Machine | str = DEFAULT_MACHINE,
    progress: Progress | None = None,
    *,
    steps: int | None = None,
    name: str | None = None,
) -> Trace:
    """Record the training step that a user's script makes.

    Parameters
    ----------
    script
        ``"train.py:make_step"``: a file and a function in it that returns a callable, which runs
        one training step and takes no arguments. `deepum.record.script` has the rules.
    batch
        Given to the function if it takes an argument.
    machine
        The machine whose kernel times are estimated.
    progress
        Told what is going on.
    steps
        Record this many steps; by default as many as it takes until they repeat.
    name
        The trace's name, by default the script's and the function's.
    """
    require_torch()
    from deepum.record.script import locate

    source = locate(script)
    return record(
        lambda: source.make_step(batch),
        name=name or source.name,
        machine=machine,
        steps=steps,
        progress=progress,
        where=source.path,
        model=source.name,
        batch=batch,
    )


def record(
    make_step: Callable[[], Callable[[], Any]],
    *,
    name: str,
    machine: Machine | str = DEFAULT_MACHINE,
    steps: int | None = None,
    host_ns: int = 0,
    progress: Progress | None = None,
    where: Path | None = None,
    device: str | None = None,
    **meta: Any,
) -> Trace:
    """Record any program.

    Parameters
    ----------
    make_step
        Called once, on the fake device, for the set-up; what it returns is called for each step.
    name
        The trace's name.
    machine
        The machine whose kernel times are estimated.
    steps
        Record exactly this many steps. By default the recording ends when the steps repeat,
        operators and addresses alike, and gives up after eight.
    host_ns
        At the beginning of each step the program gives the GPU nothing for this long.
    progress
        Told what is going on.
    where
        The file that errors point into.
    device
        The device type to fake: ``"cuda"``, or ``"cpu"`` where that is not possible.
    **meta
        Kept with the trace.
    """
    torch = require_torch()
    from deepum.record.tracer import Launch, Step, Tracer

    profile = Machine.load(machine)
    tell = progress or (lambda text: None)
    meta = {
        **meta,
        "recorded_with": f"torch {torch.__version__.split('+')[0]}",
    }
    trace: Trace | None = None
    with fake_device(device) as kind:
        meta["device"] = f"fake {kind}"
        tracer = Tracer(kind)
        try:
            with tracer, _optimizers(tracer):
                tell("set-up")
                step = _guard(make_step, where, "the set-up")
                gc.collect()
                for count in range(1, (steps or _MOST_STEPS) + 1):
                    tell(f"step {count}")
                    tracer.step()
                    if host_ns:
                        tracer.host(host_ns)
                    _guard(step, where, f"step {count}")
                    gc.collect()
                    if steps is None and count >= _FEWEST_STEPS:
                        trace = _repeating(tracer, name, meta)
                        if trace is not None:
                            break
        finally:
            tracer.close()
        step = None
    if trace is None:
        tell("addresses")
        first = tracer.log.index(Step())
        if not any(isinstance(x, Launch) for x in tracer.log[first:]):
            raise RecordError(
                f"{name}: the step launches nothing on the device that is recorded; put the model "
                'and its inputs on torch.get_default_device() or on "cuda"'
            )
        trace = _lay_out_whatever(tracer, name, meta, steps)
    return estimate(trace, profile)


def batch_label(batch: int) -> str:
    """A batch in a trace's name: ``128k`` for 128 x 1024."""
    return f"{batch // 1024}k" if batch >= 8192 and batch % 1024 == 0 else str(batch)


def lay_out(
    log: Sequence[Event], kinds: dict[int, str], name: str, meta: dict[str, Any]
) -> TraceBuilder:
    """Play a tracer's log into a trace builder: addresses and kinds, no times yet.

    What was allocated before the first step and is still alive then is the trace's initial state;
    the kernels of the set-up are left out.
    """
    from deepum.record.tracer import Alloc, Free, Host, Step

    builder = Trace.builder(name, **meta)
    handles: dict[int, int] = {}
    steps = 0
    for event in log:
        match event:
            case Alloc(storage, size):
                kind = kinds.get(storage, "activation" if steps else "other")
                handles[storage] = builder.alloc(size, kind)
            case Free(storage):
                builder.free(handles.pop(storage))
            case Host(ns):
                builder.host(ns)
            case Step():
                steps += 1
                builder.step()
            case launch if steps:
                builder.launch(
                    launch.name,
                    [
                        Operand(
                            handles[x.storage],
                            x.mode,
                            x.offset,
                            x.length,
                            "gather" if x.touches else "sequential",
                            x.touches,
                        )
                        for x in launch.operands
                    ],
                    flops=launch.flops,
                    bytes=launch.traffic,
                    dtype=launch.dtype,
                    key=launch.key,
                )
    return builder


def estimate(trace: Trace, machine: Machine | str) -> Trace:
    """Return the trace with the kernel times that a machine is expected to need.

    The times are roofline estimates; a copy between host and device takes what the bus needs.
    """
    profile = Machine.load(machine)
    columns = trace.columns()

    def named(part: str) -> Any:
        return np.array([part in name for name in trace.names])[columns["kernel_name"]]

    seconds = profile.kernel_time_s(
        columns["kernel_flops"],
        columns["kernel_bytes"],
        columns["kernel_dtype"],
        named("convolution"),
    )
    moved = columns["kernel_bytes"].astype(np.float64)
    for part, rate in (("HtoD", profile.bus_in_bytes_s), ("DtoH", profile.bus_out_bytes_s)):
        seconds = np.where(named(part), np.maximum(seconds, moved / rate), seconds)
    return trace.replace(
        meta={"machine": profile.name, "times": "estimated"},
        kernel_time_ns=np.round(seconds * 1e9).astype(np.uint64),
    )


def _repeating(tracer: Tracer, name: str, meta: dict[str, Any]) -> Trace | None:
    """The trace so far, if its last steps are the same as those before them."""
    builder = lay_out(tracer.log, tracer.kinds, name, meta)
    try:
        trace: Trace = builder.build()
    except TraceError:
        return None
    schedule = trace.schedule.tolist()
    for period in range(1, _LONGEST_PERIOD + 1):
        last, before = schedule[-period:], schedule[-2 * period : -period]
        if last == before:
            return trace
    return None


def _lay_out_whatever(tracer: Tracer, name: str, meta: dict[str, Any], steps: int | None) -> Trace:
    """The trace of steps that do not repeat, or of exactly as many as were asked for."""
    builder = lay_out(tracer.log, tracer.kinds, name, meta)
    try:
        trace: Trace = builder.build()
        note = "" if steps else f"the steps did not become equal within {_MOST_STEPS}"
    except TraceError as error:
        trace = builder.build(loop=False)
        note = f"the steps do not repeat: {error}"
    if note:
        trace = trace.replace(meta={"iterations_note": note})
    return trace


def _guard(call: Callable[[], Any], where: Path | None, stage: str) -> Any:
    """Call into a user's program; whatever it raises becomes one clear line."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    try:
        return call()
    except RecordError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise RecordError(
            f"{_place(error, where)}: {stage} needs the value of a tensor ({error.func}), and "
            "while recording tensors have none: leave out .item(), float(loss), printing of "
            "tensors, branches on them and data loaders (make a batch with torch.rand or randint)"
        ) from error
    except (Exception, SystemExit) as error:
        text = (str(error).strip() or "no message").splitlines()[0]
        raise RecordError(
            f"{_place(error, where)}: {stage} failed: {type(error).__name__}: {text}"
        ) from error


def _place(error: BaseException, where: Path | None) -> str:
    """The line of the user's program that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    if where is not None:
        mine = [x for x in frames if Path(x.filename) == where]
        if mine:
            return f"{where.name}:{mine[-1].lineno}"
        return where.name
    folders = {Path(__file__).parent, Path(require_torch().__file__).parent}
    outside = [x for x in frames if not folders & set(Path(x.filename).parents)]
    last = (outside or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


class _optimizers:  # noqa: N801, used as a function
    """While entered, every optimizer tells the tracer what its tensors are."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __enter__(self) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _before(self, optimizer: Any, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.tracer.mark(parameters, "parameter")
        self.tracer.mark([p.grad for p in parameters if p.grad is not None], "gradient")

    def _after(self, optimizer: Any, *_: Any) -> None:
        import torch

        states = optimizer.state.values()
        values = [x for s in states for x in s.values() if isinstance(x, torch.Tensor)]
        self.tracer.mark(values, "optimizer")

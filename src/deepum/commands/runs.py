# SPDX-License-Identifier: Apache-2.0
"""Running simulations, several at once when there are cores for it, in an order that is fixed."""

from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import click

from deepum.errors import DeepUMError
from deepum.report.study import Study, TraceResult, in_mode
from deepum.report.summary import batch_text, model_title
from deepum.workers import cores, work_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deepum.backends.results import Bound, Run
    from deepum.machine import Machine
    from deepum.policy import Policy
    from deepum.trace import Trace

BOUND = "bound"


@dataclass(frozen=True)
class Task:
    """One simulation, or the limits of a trace when `policy` is None. Travels between processes."""

    trace: str
    machine: Machine
    memory: int
    iterations: int
    policy: str | None = None
    depth: int = 32
    without: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    timeline: bool = False
    memory_mode: str = "managed"


@lru_cache(maxsize=1)
def _trace(name: str) -> Trace:
    from deepum.trace import Trace

    return Trace.load(name)


def perform(task: Task) -> tuple[Run | Bound, list[str]]:
    """Do a task; return its result and the warnings that it gave."""
    from deepum.backends.sim import bound, simulate

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result: Run | Bound
        if task.policy is None:
            result = bound(
                _trace(task.trace), task.machine, task.memory, task.iterations, task.memory_mode
            )
        else:
            result = simulate(
                _trace(task.trace),
                task.machine,
                task.policy,
                memory=task.memory,
                depth=task.depth,
                iterations=task.iterations,
                without=task.without,
                options=task.options,
                timeline=task.timeline,
                memory_mode=task.memory_mode,
            )
    return result, [str(warning.message) for warning in caught]


def perform_all(
    tasks: Sequence[Task], jobs: int, done: Callable[[Task], None]
) -> list[tuple[Run | Bound, list[str]]]:
    """Do all tasks, `jobs` at a time, and return the results in the order of the tasks.

    Parameters
    ----------
    done
        Called after each task, in the order in which they end.
    """
    found: dict[int, tuple[Run | Bound, list[str]]] = {}
    for place, result in work_off(perform, tasks, jobs):
        found[place] = result
        done(tasks[place])
    return [found[place] for place in range(len(tasks))]


@contextmanager
def progress(total: int) -> Iterator[Callable[[Task], None]]:
    """Show a progress bar on standard error if that is a terminal; yields what to call."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from deepum.report.tables import console

    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda task: None
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
    )
    with bar:
        running = bar.add_task("simulating", total=total)

        def done(task: Task) -> None:
            bar.update(
                running, advance=1, description=f"{task.trace}: {task.policy or 'limits'} done"
            )

        yield done


@contextmanager
def training_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of training steps; yields what to call before each of them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from deepum.report.tables import console

    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda text: None
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=shown,
        transient=True,
    )
    with bar:
        running = bar.add_task("training", total=total)
        yield lambda text: bar.update(running, advance=1, description=f"training: {text}")


def run_study(
    traces: Sequence[str],
    *,
    machine: Machine,
    memory: int | None,
    policies: Sequence[str],
    depth: int,
    iterations: int,
    without: Sequence[str] = (),
    options: dict[str, Any] | None = None,
    timeline: bool = False,
    jobs: int | None = None,
    command: str = "",
    memory_modes: Sequence[str] = ("managed",),
) -> Study:
    """Simulate every policy on every trace and put the results together.

    Everything that can be wrong with the arguments is found before the first simulation. Runs in
    another memory mode than managed have it in the name of their policy.
    """
    options = options or {}
    split = {mode: split_options(policies, options, mode, memory_modes) for mode in memory_modes}
    if "vmm" in memory_modes:
        machine.costs_of_vmm()
    budget = machine.memory_bytes if memory is None else memory
    loaded = {name: _trace(name) for name in traces}
    tasks = []
    for name in traces:
        for mode in memory_modes:
            limits = Task(name, machine, budget, iterations, memory_mode=mode)
            tasks.append(limits)
            tasks += [
                replace(
                    limits,
                    policy=policy,
                    depth=depth,
                    without=tuple(without),
                    options=split[mode][policy],
                    timeline=timeline,
                )
                for policy in policies
            ]
    with progress(len(tasks)) as done:
        outcomes = list(zip(tasks, perform_all(tasks, jobs or cores(), done), strict=True))
    results = []
    for name in traces:
        mine = [(task, *outcome) for task, outcome in outcomes if task.trace == name]
        results.append(_result(loaded[name], mine))
    return Study(
        machine=machine,
        memory_bytes=budget,
        results=results,
        iterations=iterations,
        depth=depth,
        without=tuple(without),
        options=options,
        command=command,
        memory_modes=tuple(memory_modes),
    )


def _result(trace: Trace, outcomes: Sequence[tuple[Task, Any, list[str]]]) -> TraceResult:
    bounds: dict[str, Bound] = {}
    runs, notes = [], []
    for task, result, texts in outcomes:
        if task.policy is None:
            bounds[task.memory_mode] = result
            continue
        label = in_mode(task.policy, task.memory_mode)
        runs.append(replace(result, policy=in_mode(result.policy, task.memory_mode)))
        notes += [f"{trace.name}, {label}: {text}" for text in dict.fromkeys(texts)]
    first, *others = bounds
    return TraceResult(
        trace=trace.name,
        model=model_title(trace.meta),
        batch=batch_text(trace.meta),
        peak_bytes=trace.peak_bytes,
        kernels_per_step=trace.kernels_per_step,
        estimated=trace.meta.get("times") != "measured",
        bound=bounds[first],
        runs=runs,
        warnings=notes,
        other_bounds={mode: bounds[mode] for mode in others},
    )


def split_options(
    policies: Sequence[str],
    options: dict[str, Any],
    memory_mode: str = "managed",
    memory_modes: Sequence[str] = ("managed",),
) -> dict[str, dict[str, Any]]:
    """Give each policy the options that are meant for it, and find out whether it takes them.

    ``chained.rows`` is for chained alone; ``rows`` is for every policy that has such an option.
    Options of the engine are for all, those of a memory mode for the runs in it.

    Raises
    ------
    DeepUMError
        There is no such policy, or an option is nobody's.
    """
    from deepum.backends.sim import mode_options
    from deepum.policy import find, make

    general = mode_options(memory_mode)
    elsewhere = {name for mode in memory_modes for name in mode_options(mode)} - general.keys()
    own = {policy: _option_names(find(policy)) for policy in policies}
    split: dict[str, dict[str, Any]] = {policy: {} for policy in policies}
    for key, value in options.items():
        owner, dot, name = key.rpartition(".")
        if name in elsewhere:
            continue
        if dot:
            if owner not in split:
                raise DeepUMError(f"option {key}: {owner!r} is not among the policies of this run")
            takers = [owner]
        else:
            takers = [p for p in policies if name in general or name in own[p]]
            if not takers:
                known = sorted({*general, *(n for names in own.values() for n in names)})
                raise DeepUMError(
                    f"no policy of this run has an option {name!r}; there are: {', '.join(known)}"
                )
        for taker in takers:
            split[taker][name] = value
    for policy, given in split.items():
        make(policy, {name: given[name] for name in given if name not in general})
    return split


def _option_names(policy: type[Policy] | Policy) -> set[str]:
    """Return the options that a policy names in its defaults or as arguments."""
    names = set(policy.defaults)
    kind = policy if isinstance(policy, type) else type(policy)
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            names.add(parameter.name)
    return names


def command_line() -> str:
    """Return the command line as it can be typed again."""
    import shlex
    import sys

    return shlex.join(["deepum", *sys.argv[1:]])


def show_warnings(study: Study) -> None:
    """Print what the runs warned of on standard error, each once."""
    for result in study.results:
        for text in result.warnings:
            click.echo(f"warning: {' '.join(text.split())}", err=True)

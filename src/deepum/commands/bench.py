# SPDX-License-Identifier: Apache-2.0
"""``deepum bench``: how fast the code itself is."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from deepum.commands.options import check_output, json_option, write_json

if TYPE_CHECKING:
    from deepum._core.python_policy import Fault, Launch, View
    from deepum.backends.host import HostBackend
    from deepum.trace import Trace

TRACE = "gpt2-xl-b3"


@click.group(short_help="How fast the code itself is.")
def command() -> None:
    """Measure how fast the code is on this machine."""


@command.command()
@click.option(
    "--trace", "name", default=TRACE, show_default=True, metavar="TRACE", help="What to simulate."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measurements of each figure; the median is shown.",
)
@json_option("the figures")
def core(name: str, repeats: int, json_file: str | None) -> None:
    """Measure the tables, the simulator, and policies written in Python.

    Times are of one core. Other work on the machine makes them longer.
    """
    check_output(json_file)

    from deepum.trace import Trace

    figures = measure(Trace.load(name), repeats)
    if not write_json(figures, json_file):
        from deepum.report.tables import bench_table, console

        console().print(bench_table(figures))


@command.command()
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Rounds; the median and the best are shown.",
)
@click.option("--copy", is_flag=True, help="Copy pages as on kernels before 6.8, do not move them.")
@json_option("the figures")
def uffd(repeats: int, copy: bool, json_file: str | None) -> None:
    """Measure faults and moves of the uffd backend, next to the bare copy of a block."""
    check_output(json_file)

    from deepum.backends import live
    from deepum.backends.measure import measure as measure_host
    from deepum.backends.measure import surroundings
    from deepum.commands.runs import command_line

    live.choose("uffd")

    def open_backend(policy: str, memory_limit: int, options: Any = None) -> HostBackend:
        return live.open_backend(
            "uffd",
            policy,
            memory_limit=memory_limit,
            options={**(options or {}), **({"moves": False} if copy else {})},
        )

    figures = measure_host(open_backend, repeats)
    if not write_json({**surroundings(command_line()), "figures": figures}, json_file):
        from deepum.report.live import cost_table
        from deepum.report.tables import console

        console().print(cost_table(figures))


def measure(trace: Trace, repeats: int = 5) -> dict[str, float]:
    """Measure everything.

    Returns
    -------
    Figure -> median of `repeats` measurements: nanoseconds an operation, or things a second.
    """
    from deepum._core.benchmark import block_table_ns, exec_table_ns

    measured: dict[str, list[float]] = {}
    for _ in range(repeats):
        update, predict = exec_table_ns()
        record, lookup = block_table_ns()
        for name, value in (
            ("exec_update_ns", update),
            ("exec_predict_ns", predict),
            ("block_record_ns", record),
            ("block_lookup_ns", lookup),
            ("sim_noop_accesses_per_s", accesses_per_s(trace, "noop")),
            ("sim_chained_accesses_per_s", accesses_per_s(trace, "chained")),
            ("python_policy_events_per_s", python_events_per_s(trace)),
        ):
            measured.setdefault(name, []).append(float(value))
    return {name: median(values) for name, values in measured.items()}


def accesses_per_s(trace: Trace, policy: str, iterations: int = 4) -> float:
    """Simulate a trace and return how many touches of a block went through in a second.

    The first iteration fills memory and tables and is not measured.
    """
    from deepum._core.lowering import Program
    from deepum.backends.sim import SimBackend
    from deepum.trace.columns import KERNEL

    touches = Program(trace.columns()).working_set
    backend = SimBackend(trace, policy=policy)
    backend.run(1)
    accesses = 0
    for iteration in range(1, iterations + 1):
        step = trace.step_at(iteration)
        events = slice(int(trace.step_start[step]), int(trace.step_start[step + 1]))
        kernels = trace.event_arg[events][trace.event_op[events] == KERNEL]
        accesses += int(touches[kernels.astype(int)].sum())
    began = time.perf_counter()
    backend.run(iterations)
    return accesses / (time.perf_counter() - began)


def python_events_per_s(trace: Trace) -> float:
    """Simulate a trace under a policy written in Python; return its hook calls in a second.

    The policy does almost nothing, so this is what calling it costs, the simulation included.
    """
    from deepum.backends.sim import SimBackend
    from deepum.policy import Policy

    class Counting(Policy):
        """Count events."""

        events = 0

        def on_launch(self, view: View, launch: Launch) -> None:
            self.events += 1

        def on_fault(self, view: View, fault: Fault) -> None:
            self.events += 1

        def on_complete(self, view: View, launch: Launch) -> None:
            self.events += 1

    policy = Counting()
    backend = SimBackend(trace, policy=policy)
    began = time.perf_counter()
    backend.run(2)
    return policy.events / (time.perf_counter() - began)

# SPDX-License-Identifier: Apache-2.0
"""``deepum info``: which traces there are, and what is in one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepum.commands.options import STDOUT, check_output, json_option, write_json, wrote

if TYPE_CHECKING:
    from deepum.report.summary import KernelRow, TraceDetails, TraceSummary


@click.command(short_help="Shipped traces, or what is in one.")
@click.argument("trace", required=False)
@click.option("--top", type=click.IntRange(min=1), default=8, show_default=True, help="Kernels.")
@json_option("the same facts")
@click.option("--plot", metavar="FILE", help="Plot memory over time to a .png or .svg file.")
@click.option(
    "--perfetto", metavar="FILE", help="Write a live run's timeline as Chrome trace JSON."
)
def command(
    trace: str | None,
    top: int,
    json_file: str | None,
    plot: str | None,
    perfetto: str | None,
) -> None:
    """List the shipped traces, or show what TRACE holds.

    TRACE is a file or the name of a shipped trace.
    """
    from deepum.trace import Trace

    # In `info --json gpt2-xl-b3` the trace was taken for the file to write.
    if trace is None and json_file not in {None, STDOUT} and _is_trace(str(json_file)):
        trace, json_file = json_file, STDOUT
    check_output(json_file)
    check_output(plot, suffixes=(".png", ".svg"))
    check_output(perfetto, suffixes=(".json",))
    if trace is None:
        if plot or perfetto:
            raise click.UsageError(f"--{'plot' if plot else 'perfetto'} needs a TRACE")
        _list(json_file)
        return
    if plot:
        from deepum.report.plots import require

        require()

    from deepum.report.summary import detail, memory_over_time

    loaded = Trace.load(trace)
    where = Trace.shipped().get(trace, Path(trace))
    path = Path(trace) if Path(trace).is_file() else where
    if perfetto:
        from deepum.report.perfetto import write
        from deepum.trace.timeline import LiveTimeline

        write(LiveTimeline.load(path), loaded.name, Path(perfetto))
        wrote(perfetto)
        return
    details = detail(loaded, path.stat().st_size, top)
    live = _live(loaded.meta)
    if not write_json({**details.to_json(), **({"live": live} if live else {})}, json_file):
        _show(details, live)
    if plot:
        from deepum.report.plots import save_memory

        save_memory(
            memory_over_time(loaded),
            f"{loaded.name}: live memory over a step",
            _memory_of(details.summary.machine),
            Path(plot),
        )
        wrote(plot)


def _is_trace(name: str) -> bool:
    from deepum.trace import Trace

    return name in Trace.shipped() or (Path(name).is_file() and Path(name).suffix == ".trace")


def _memory_of(machine: str) -> int | None:
    """Return the memory of the machine that a trace is meant for, if that is known here."""
    from deepum.errors import MachineError
    from deepum.machine import Machine

    try:
        return Machine.load(machine).memory_bytes if machine else None
    except MachineError:
        return None


def _list(json_file: str | None) -> None:
    from deepum.errors import TraceError
    from deepum.report.summary import summarize
    from deepum.trace import Trace

    shipped = Trace.shipped()
    if not shipped:
        raise TraceError("this installation has no traces; `deepum record` makes them")
    traces = [(Trace.load(path), path.stat().st_size) for path in shipped.values()]
    # By model, then by batch as a number: 96K before 128K.
    traces.sort(key=lambda found: (str(found[0].meta.get("model")), found[0].peak_bytes))
    rows = [summarize(trace, bytes_) for trace, bytes_ in traces]
    if not write_json([asdict(row) for row in rows], json_file):
        from deepum.report.tables import console, traces_table

        console().print(traces_table(rows))


def _live(meta: dict[str, Any]) -> dict[str, Any]:
    """Return what a recorded live run measured, nothing for another trace."""
    rows = meta.get("live")
    if not isinstance(rows, list) or not rows:
        return {}
    names = ("device", "policy", "limit_bytes", "look_ns", "doubtful_share", "fault_source")
    return {**{name: meta.get(name) for name in names}, "steps": rows}


def _show(details: TraceDetails, live: dict[str, Any]) -> None:
    from deepum.report.numbers import count, percent, seconds, size
    from deepum.report.tables import columns_table, console, pairs_table

    facts = details.summary
    memory = _memory_of(facts.machine)
    machine = facts.machine or "not named"
    if memory is not None:
        machine += f", {size(memory)} (peak is {facts.peak_bytes / memory:.2f} times that)"
    after = (
        "the program ends"
        if details.loop_from < 0
        else f"repeats from iteration {details.loop_from + 1} on"
    )
    pairs = [
        ("model", _model(facts)),
        ("kernel times", "estimated" if facts.estimated else "measured"),
        ("for machine", machine),
        ("iterations", f"{facts.iterations} recorded, {facts.steps} different; then {after}"),
        (
            "kernels",
            (
                f"{count(facts.kernels_per_step)} a step; {count(details.kernels)} different "
                f"launches of {details.kernel_names} kernels"
            ),
        ),
        ("compute", f"{seconds(facts.compute_s)} a step"),
        ("host", f"{seconds(details.host_s)} a step in which the GPU has nothing to do"),
        ("peak", f"{size(facts.peak_bytes)} live; {size(details.segment_bytes)} taken in all"),
        ("at the start", f"{size(details.initial_bytes)} live"),
        (
            "working set",
            f"{size(details.working_set_bytes)} at most, by {details.working_set_kernel}",
        ),
        ("file", size(facts.file_bytes)),
    ]
    for number, row in enumerate(live.get("steps", ()), 1):
        moved = ", ".join(f"{size(row[f'bytes_{way}'])} {way}" for way in ("in", "out", "dropped"))
        text = f"{seconds(row['time_s'])}, {count(row['fault_records'])} fault records, {moved}"
        pairs.append((f"live, step {number}", text))
    if live:
        pairs.append(("live run", _conditions(live)))
    out = console()
    out.print(pairs_table(facts.name, pairs))
    out.print()
    out.print(
        columns_table(
            "Tensors alive at the peak",
            ("kind", "tensors", "size", "share"),
            [
                (
                    row.kind,
                    count(row.tensors),
                    size(row.bytes),
                    percent(row.bytes / facts.peak_bytes if facts.peak_bytes else None),
                )
                for row in details.at_peak
            ],
        )
    )
    for title, kernels in (
        ("Kernels by time, one step", details.top_by_time),
        ("Kernels by bytes, one step", details.top_by_bytes),
    ):
        out.print(
            columns_table(title, _KERNEL_HEADS, [_kernel(row, facts.compute_s) for row in kernels])
        )


def _conditions(live: dict[str, Any]) -> str:
    from deepum.report.numbers import percent, seconds, size

    return (
        f"{live['policy']} in {size(live['limit_bytes'])} of a {live['device']}; completions seen "
        f"every {seconds(live['look_ns'] * 1e-9)}; {percent(live['doubtful_share'])} of the kernel "
        "time in doubt for faults"
    )


def _model(facts: TraceSummary) -> str:
    if not facts.model:
        return "not named"
    return f"{facts.model}, batch {facts.batch}" if facts.batch else facts.model


_KERNEL_HEADS = ("kernel", "launches", "time", "share", "bytes")


def _kernel(row: KernelRow, total_s: float) -> tuple[str, ...]:
    from deepum.report.numbers import count, percent, seconds, size

    return (
        row.name,
        count(row.launches),
        seconds(row.time_s),
        percent(row.time_s / total_s if total_s else None),
        size(row.bytes),
    )

# SPDX-License-Identifier: Apache-2.0
"""``deepum simulate``: how long a step would take under each policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deepum.commands.options import (
    DEFAULT_POLICIES,
    check_output,
    json_option,
    machine_option,
    parse_features,
    parse_memory_modes,
    parse_names,
    parse_settings,
    parse_size,
    write_json,
    wrote,
)


@click.command(short_help="How long a step takes under each policy.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@machine_option
@click.option(
    "--memory",
    callback=parse_size,
    metavar="SIZE",
    help="Act as if the GPU had this much memory, e.g. 24GiB.  [default: the machine's]",
)
@click.option(
    "--memory-mode",
    "memory_modes",
    default="managed",
    show_default=True,
    callback=parse_memory_modes,
    metavar="MODE,...",
    help="managed: unified memory with page faults; vmm: remapped chunks, no faults.",
)
@click.option(
    "--policy",
    "policies",
    default=DEFAULT_POLICIES,
    show_default=True,
    callback=parse_names,
    metavar="NAME,...",
    help="Policies to compare: names that `deepum policies` lists, or module:Class.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Prefetch distance in kernels.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Steps to simulate; the last third counts as steady state.",
)
@click.option(
    "--without",
    default="",
    callback=parse_features,
    metavar="PART,...",
    help="Switch parts off: prefetch, pre-evict, invalidate.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=parse_settings,
    metavar="[POLICY.]KEY=VALUE",
    help="Set an option of the policies that have it, or of one. Can be repeated.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Simulations at the same time.  [default: the cores there are]",
)
@json_option("the results")
@click.option("--html", metavar="FILE", help="Write a report, one self-contained page.")
@click.option("--plot", metavar="FILE", help="Write the plots to a .png or .svg file.")
def command(
    traces: tuple[str, ...],
    machine: str,
    memory: int | None,
    memory_modes: tuple[str, ...],
    policies: tuple[str, ...],
    depth: int,
    iterations: int,
    without: tuple[str, ...],
    options: dict[str, Any],
    jobs: int | None,
    json_file: str | None,
    html: str | None,
    plot: str | None,
) -> None:
    r"""Simulate training steps under a memory budget and compare policies.

    A TRACE is a file or the name of a shipped one; `deepum info` lists those.

    \b
    deepum simulate gpt2-xl-b3
    deepum simulate bert-large-b14 --memory 16GiB --policy noop,chained
    deepum simulate step.trace --html report.html
    deepum simulate step.trace --machine h200-pcie5 --memory 24GiB --memory-mode managed,vmm
    """
    if not policies:
        raise click.UsageError("--policy names no policy")
    check_output(json_file)
    check_output(html, suffixes=(".html", ".htm"))
    check_output(plot, suffixes=(".png", ".svg"))
    if html or plot:
        from deepum.report.plots import require

        require()

    from deepum.commands.runs import command_line, run_study, show_warnings
    from deepum.machine import Machine

    study = run_study(
        tuple(dict.fromkeys(traces)),
        machine=Machine.load(machine),
        memory=memory,
        policies=policies,
        depth=depth,
        iterations=iterations,
        without=without,
        options=options,
        timeline=bool(html or plot),
        jobs=jobs,
        command=command_line(),
        memory_modes=memory_modes,
    )
    show_warnings(study)
    if not write_json(study.to_json(), json_file):
        from deepum.report.tables import console, results_table

        out = console()
        for result in study.results:
            out.print(results_table(result, study.memory_bytes))
    if html:
        from deepum.report.html import write_page

        write_page(study, Path(html))
        wrote(html)
    if plot:
        from deepum.report.plots import save_study

        save_study(study, Path(plot))
        wrote(plot)

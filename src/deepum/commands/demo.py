# SPDX-License-Identifier: Apache-2.0
"""``deepum demo``: one command that shows what deepum is about, simulated or live."""

from __future__ import annotations

from pathlib import Path

import click

from deepum.commands.options import (
    DEFAULT_POLICIES,
    check_output,
    json_option,
    machine_option,
    parse_names,
    parse_size,
    warn,
    write_json,
    wrote,
)

TRACE = "gpt2-xl-b3"
PAGE = "deepum-demo.html"


@click.command(short_help="Four policies on a real training step, and a report.")
@click.argument("trace", default=TRACE)
@machine_option
@click.option("--memory", callback=parse_size, metavar="SIZE", help="GPU memory to act within.")
@click.option("--html", default=PAGE, show_default=True, metavar="FILE", help="The report.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Simulations at the same time.")
@click.option("--live", is_flag=True, help="Train for real, in half the memory that needs.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "uffd", "kmod"]),
    default="auto",
    show_default=True,
    help="With --live: what moves the memory.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="With --live: training steps.",
)
@click.option(
    "--layers",
    type=click.IntRange(min=2),
    default=32,
    show_default=True,
    help="With --live: layers of the network, 12 MiB each.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="With --live: rows of the batch; more of them are more computation.",
)
@click.option("--where-possible", is_flag=True, hidden=True)
@json_option("the results")
def command(
    trace: str,
    machine: str,
    memory: int | None,
    html: str,
    jobs: int | None,
    live: bool,
    backend: str,
    steps: int,
    layers: int,
    batch: int,
    where_possible: bool,
    json_file: str | None,
) -> None:
    """Compare four policies on a real training step and write a report.

    The step is GPT-2 XL's at batch 3, on the V100 with 32 GB of the DeepUM paper. Another TRACE,
    also one of your own that `deepum record` made, can be named.

    With --live nothing is simulated: a small network is trained in this process under three
    policies, real page faults and all, and its weights are compared bit by bit with those that
    ordinary memory gives.
    """
    check_output(json_file)
    if live:
        from deepum.commands.live import show

        show(backend, steps, layers, batch, json_file, where_possible=where_possible)
        return
    check_output(html, suffixes=(".html", ".htm"))

    from deepum.commands.runs import command_line, run_study, show_warnings
    from deepum.errors import DeepUMError
    from deepum.machine import Machine
    from deepum.report import plots
    from deepum.report.findings import findings
    from deepum.report.tables import console, results_table

    page = True
    try:
        plots.require()
    except DeepUMError as error:
        page = False
        warn(f"no report: {error}")
    study = run_study(
        [trace],
        machine=Machine.load(machine),
        memory=memory,
        policies=parse_names(None, None, DEFAULT_POLICIES),
        depth=32,
        iterations=6,
        timeline=page,
        jobs=jobs,
        command=command_line(),
    )
    show_warnings(study)
    if not write_json(study.to_json(), json_file):
        result = study.results[0]
        out = console()
        out.print(f"A training step on {study.machine.title}, simulated.", style="bold")
        out.print(results_table(result, study.memory_bytes))
        for sentence in findings(result, study.memory_bytes):
            out.print(f"• {sentence}")
    if page:
        from deepum.report.html import write_page

        write_page(study, Path(html))
        wrote(html)

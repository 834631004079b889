# SPDX-License-Identifier: Apache-2.0
"""``deepum reproduce``: the paper's evaluation, its values and ours side by side."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepum.commands.options import check_output, json_option, warn, write_json, wrote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deepum.reproduce.runner import Outcome, Runner


@click.command(short_help="The paper's evaluation, its values and ours.")
@click.option("--quick", is_flag=True, help="One batch of each model, small sweeps: a minute.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Simulations at the same time.  [default: the cores there are]",
)
@click.option(
    "--cache",
    "cache_dir",
    metavar="DIR",
    help="Where finished runs are kept.  [default: deepum/simulations in the user's cache folder]",
)
@click.option("--no-cache", is_flag=True, help="Neither use finished runs nor keep any.")
@json_option("the result")
@click.option("--html", metavar="FILE", help="Write the comparison as one self-contained page.")
@click.option(
    "--markdown", metavar="FILE", help="Write the comparison as Markdown, its plots beside it."
)
def command(
    quick: bool,
    jobs: int | None,
    cache_dir: str | None,
    no_cache: bool,
    json_file: str | None,
    html: str | None,
    markdown: str | None,
) -> None:
    r"""Run the evaluation of the DeepUM paper (ASPLOS 2023) on the simulator.

    For each of its tables and figures the paper's value and ours are shown side by side. Finished
    runs are kept: an interrupted evaluation goes on where it stopped, and a later one repeats only
    what a change of traces, machines or code has touched.

    \b
    deepum reproduce --quick
    deepum reproduce --json result.json --html result.html --markdown result.md
    """
    if no_cache and cache_dir is not None:
        raise click.UsageError("--cache and --no-cache exclude each other")
    check_output(json_file)
    check_output(html, suffixes=(".html", ".htm"))
    check_output(markdown, suffixes=(".md",))

    from deepum.errors import DeepUMError
    from deepum.report import plots
    from deepum.reproduce import plan as plans
    from deepum.reproduce import result
    from deepum.reproduce.cache import Cache, default_folder
    from deepum.reproduce.runner import Runner, progress
    from deepum.workers import cores

    if html:
        plots.require()
    cache = None
    if not no_cache:
        cache = Cache(Path(cache_dir) if cache_dir else default_folder(), warn)
    runner = Runner(jobs or cores(), cache, progress)
    plan = plans.quick() if quick else plans.full()
    try:
        outcomes = runner.run(plan.jobs)
        g10 = _g10(runner)
    except KeyboardInterrupt:
        if cache is not None and runner.done:
            click.echo("what was done is kept: the same command goes on from here", err=True)
        raise
    _tell(runner, outcomes)
    data = result.build(plan, outcomes, g10)
    if not write_json(data, json_file):
        _show(data)
    if html:
        from deepum.reproduce.pages import write_page

        write_page(data, Path(html))
        wrote(html)
    if markdown:
        from deepum.reproduce.pages import write_markdown

        drawn = True
        try:
            plots.require()
        except DeepUMError as error:
            drawn = False
            warn(f"no plots: {error}")
        for path in write_markdown(data, Path(markdown), plots=drawn):
            wrote(path)


def _g10(runner: Runner) -> Sequence[Mapping[str, Any]]:
    """Return the comparison with G10, if this build has it."""
    try:
        g10: Any = importlib.import_module("deepum.reproduce.g10")
    except ModuleNotFoundError:
        warn("the comparison with G10 is not in this build")
        return []
    found: Sequence[Mapping[str, Any]] = g10.results(runner)
    return found


def _tell(runner: Runner, outcomes: Mapping[Any, Outcome]) -> None:
    from deepum.report.numbers import significant
    from deepum.reproduce.runner import OUT_OF_MEMORY

    kept = f", {runner.reused} found in the cache" if runner.reused else ""
    click.echo(f"{runner.done} runs{kept}, {significant(runner.seconds)} s", err=True)
    odd: dict[str, list[str]] = {}
    for job, outcome in outcomes.items():
        texts = list(outcome.warnings)
        if outcome.failure and outcome.failure != OUT_OF_MEMORY:
            texts.append(f"{outcome.failure}: {outcome.reason}")
        for text in texts:
            odd.setdefault(text, []).append(job.trace)
    for text, traces in odd.items():
        several = len(dict.fromkeys(traces))
        warn(text if several > 1 else f"{traces[0]}: {text}")


def _show(data: Mapping[str, Any]) -> None:
    """Print the rows and the targets."""
    from deepum.report.tables import Grid, console
    from deepum.reproduce.document import seconds_rows

    heads, rows = seconds_rows([row for row in data["rows"] if row["memory"] == "32 GB"])
    grid = Grid(
        "Seconds for 100 iterations on the 32 GB card",
        [head.replace(" ", "\n", 1) for head in heads],
        first_to_go=(13, 12, 9, 6, 3, 11, 10, 5, 4),
    )
    for row in rows:
        grid.add(*row)
    out = console()
    out.print(grid)
    marks = {True: ("met", ""), False: ("missed", "bold"), None: ("not run", "dim")}
    table = Grid("Targets", ("target", "wanted", "ours", ""), left=4, first_to_go=(1,))
    for target in data["targets"]:
        mark, style = marks[target["met"]]
        table.add(target["what"], target["target"], target["ours"], mark, style=style)
    out.print(table)

# SPDX-License-Identifier: Apache-2.0
"""Text tables (rich)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from deepum.report.numbers import (
    count,
    gigabytes,
    megabytes,
    percent,
    rate,
    seconds,
    significant,
    size,
    times,
)
from deepum.report.study import steady_iterations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deepum.policy import PolicyInfo
    from deepum.report.study import TraceResult
    from deepum.report.summary import TraceSummary

# Width of tables that go to a file or a pipe, where there is no terminal to ask.
PIPE_WIDTH = 120


def console(*, stderr: bool = False) -> Console:
    """Return a console; wide enough for every table when the output is not a terminal."""
    # Kernel names and paths hold brackets and colons that are not meant as markup.
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def _table(title: str | None = None) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
    )


class Grid:
    """A table of numbers that leaves out its least important columns where they do not fit.

    Parameters
    ----------
    heads
        Of the columns. The first `left` are aligned left, the others right.
    first_to_go
        Columns to leave out on a narrow terminal, the first of them first.
    """

    def __init__(
        self, title: str, heads: Sequence[str], *, first_to_go: Sequence[int] = (), left: int = 1
    ) -> None:
        self.title = title
        self.heads = heads
        self.first_to_go = first_to_go
        self.left = left
        self.section_before = -1
        self.rows: list[tuple[tuple[str, ...], str]] = []

    def add(self, *cells: str, style: str = "") -> None:
        """Add a row."""
        self.rows.append((cells, style))

    def table(self, without: Sequence[int] = ()) -> Table:
        """Return a rich table without some of the columns."""
        kept = [index for index in range(len(self.heads)) if index not in without]
        table = _table(self.title)
        for index in kept:
            table.add_column(
                self.heads[index], justify="left" if index < self.left else "right", no_wrap=True
            )
        for place, (cells, style) in enumerate(self.rows):
            if place == self.section_before:
                table.add_section()
            table.add_row(*[cells[index] for index in kept], style=style or None)
        return table

    def __rich_console__(self, shown: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=10_000)
        for count_ in range(len(self.first_to_go) + 1):
            table = self.table(self.first_to_go[:count_])
            table.title = None  # a title wraps
            if table.__rich_measure__(shown, unlimited).maximum <= options.max_width:
                break
        table.title = self.title
        yield table


def results_table(result: TraceResult, memory_bytes: int) -> Grid:
    """One row a policy, steady state, then the limits."""
    ratio = significant(result.peak_bytes / memory_bytes)
    steps = max((len(run.iterations) for run in result.runs), default=0)
    kept = len(steady_iterations(range(steps)))
    over = f"the last {kept} of {steps} steps" if kept > 1 else f"step {steps}"
    title = (
        f"{result.title}: peak {size(result.peak_bytes)} in {size(memory_bytes)} ({ratio}×); "
        f"means over {over}"
    )
    grid = Grid(
        title,
        (
            "policy",
            "time\na step",
            "over\nnoop",
            "block\nfaults",
            "4 KiB pages\nfaulted",
            "GB\nin",
            "GB\nout",
            "GB\ndropped",
            "prefetches\nused",
            "late\nblocks",
            "tables\nMB",
        ),
        first_to_go=(4, 9, 10, 7, 8),
    )
    base = result.baseline_s
    best = result.best()
    for row in result.steady():
        grid.add(
            row.policy,
            seconds(row.time_s),
            times(base / row.time_s if base else None),
            count(row.faults),
            count(row.page_faults),
            gigabytes(row.bytes_in),
            gigabytes(row.bytes_out),
            gigabytes(row.bytes_dropped),
            percent(row.accuracy),
            count(row.late),
            megabytes(row.table_bytes),
            style="bold green" if best is not None and row.policy == best.policy else "",
        )
    limits = [("bound", result.bound)]
    limits += [(f"bound, {mode}", bound) for mode, bound in result.other_bounds.items()]
    for name, value, moved in (
        *((name, b.bound_s, (gigabytes(b.bytes_in), gigabytes(b.bytes_out))) for name, b in limits),
        ("ideal", result.bound.ideal_s, ("", "")),
    ):
        over = times(base / value if base else None)
        grid.add(name, seconds(value), over, "", "", *moved, *[""] * 4, style="dim")
    grid.section_before = len(result.runs)
    return grid


def traces_table(rows: Iterable[TraceSummary]) -> Grid:
    """List traces, one a row."""
    grid = Grid(
        "Shipped traces",
        (
            "trace",
            "model",
            "batch",
            "kernels\na step",
            "footprint",
            "compute\na step",
            "for GPU",
            "file",
        ),
        first_to_go=(7, 1, 2),
        left=2,
    )
    for row in rows:
        grid.add(
            row.name,
            row.model,
            row.batch,
            count(row.kernels_per_step),
            size(row.peak_bytes),
            seconds(row.compute_s),
            row.machine,
            size(row.file_bytes),
        )
    return grid


def pairs_table(title: str | None, rows: Sequence[tuple[str, str]]) -> Table:
    """Name and value, no head."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        pad_edge=False,
    )
    table.add_column("name", style="dim", no_wrap=True)
    table.add_column("value")
    for name, value in rows:
        table.add_row(name, value)
    return table


def columns_table(title: str | None, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Build a plain table: first column left, the others right."""
    table = _table(title)
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def policies_table(policies: Mapping[str, PolicyInfo]) -> Table:
    """One row a policy: what it does, where it comes from, its options."""
    table = _table("Policies")
    table.add_column("policy", no_wrap=True, style="bold")
    table.add_column("what it does")
    table.add_column("from")
    table.add_column("options")
    for info in policies.values():
        options = ", ".join(f"{name}={value}" for name, value in info.options.items())
        table.add_row(info.name, info.summary, info.source, options or "–")
    return table


_MARKS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "broken": ("✗", "red")}


def checks_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each check of ``deepum doctor``."""
    table = _table("What works here")
    table.add_column("", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("found")
    table.add_column("what to do")
    for check in checks:
        mark, style = _MARKS[check["state"]]
        table.add_row(
            Text(f"{mark} {check['state']}", style=style),
            check["name"],
            check["found"],
            check["todo"],
        )
    return table


def bench_table(results: Mapping[str, float]) -> Table:
    """One row for each figure of ``deepum bench core``."""
    rows = []
    for name, value in results.items():
        text = rate(value, "/s") if name.endswith("_per_s") else f"{significant(value)} ns"
        rows.append((name, text))
    return columns_table("Core", ("figure", "median"), rows)

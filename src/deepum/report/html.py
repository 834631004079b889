# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one file that asks the network for nothing."""

from __future__ import annotations

import datetime as dt
import platform
import re
from dataclasses import fields
from functools import partial
from html import escape as escape_html
from importlib import resources
from typing import TYPE_CHECKING, Any

from deepum.report import palette, plots
from deepum.report.findings import findings, geometric_mean_speedup
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
from deepum.report.study import BASELINE, ORACLE, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from deepum.machine import Machine
    from deepum.report.study import Study, TraceResult

# Width in inches at which text is of normal size: half of the page, all of it, a phone's.
_HALF, _FULL, _PHONE = 5.6, 11.4, 3.9


_UNIT = re.compile(r"(?<=\d) (?=(?:[smµn]?s|[kMGT]?B|GiB|KiB|%)\b|%)")

_SIGN = re.compile(r"(?<=[<>]) (?=\d)")


def escape(text: str, *, quote: bool = False) -> str:
    """Escape a text for HTML, and keep numbers and their units on one line."""
    text = _SIGN.sub("\u00a0", text)
    return _UNIT.sub("\u00a0", escape_html(text, quote=quote))


def write_page(study: Study, path: Path, *, made: dt.date | None = None) -> None:
    """Write the report of a study.

    Parameters
    ----------
    made
        The date shown; today's by default.
    """
    path.write_text(page(study, made=made), encoding="utf-8")


def page(study: Study, *, made: dt.date | None = None) -> str:
    """Return the report of a study as the text of an HTML file."""
    made = made or dt.datetime.now(tz=dt.UTC).date()
    several = len(study.results) > 1
    title = f"{len(study.results)} training steps" if several else study.results[0].title
    css = resources.files("deepum.report").joinpath("report.css").read_text("utf-8")
    body = []
    if several:
        body.append(_overview(study))
    for place, result in enumerate(study.results):
        body.append(_trace(study, result, f"t{place}", heading=several))
    body += [_reading(), _how(study), _machine(study.machine), _model()]
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} – deepum</title>\n"
        f"<style>\n{palette.css()}{css}</style>\n</head>\n<body>\n"
        f"{_top(study, title)}\n<main>\n" + "\n".join(body) + f"\n</main>\n{_foot(made)}\n"
        "</body>\n</html>\n"
    )


def _top(study: Study, title: str) -> str:
    lead = f"simulated on {study.machine.title}, within {size(study.memory_bytes)} of GPU memory"
    nav = ""
    if len(study.results) > 1:
        links = "".join(
            f'<a href="#t{place}">{escape(result.trace)}</a>'
            for place, result in enumerate(study.results)
        )
        nav = f"<nav>{links}</nav>"
    return (
        f'<header class="top"><div><div class="brand">deepum</div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p>{nav}</div></header>'
    )


def _overview(study: Study) -> str:
    names = list(dict.fromkeys(run.policy for result in study.results for run in result.runs))
    cards = []
    for name in names:
        mean = geometric_mean_speedup(study, name)
        if mean is not None and name != BASELINE:
            cards.append(_card(times(mean), f"{name} over {BASELINE}, geometric mean"))
    height = 0.9 + len(study.results) * (0.16 + 0.17 * max(1, len(names) - 1))
    chart = _figure(
        "Speed over demand paging",
        "How many times as fast as plain demand paging each policy runs a step; longer is better.",
        lambda axes: plots.draw_speedups(axes, study),
        height,
        "overview",
        full=True,
    )
    return (
        f'<section><h2>All traces</h2><div class="cards">{"".join(cards)}</div>'
        f'<div class="charts">{chart}</div></section>'
    )


def _card(value: str, text: str, *, good: bool = False) -> str:
    kind = "card good" if good else "card"
    return f'<div class="{kind}"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _cards(result: TraceResult, memory_bytes: int) -> str:
    cards = []
    best = result.best()
    base = result.run(BASELINE)
    if best is not None and base is not None:
        before = steady(base)
        cards += [
            _card(
                times(before.time_s / best.time_s),
                f"the speed of plain demand paging, with {best.policy}",
                good=True,
            ),
            _card(seconds(best.time_s), f"a step; it was {seconds(before.time_s)}"),
            _card(count(best.faults), f"block faults a step; there were {count(before.faults)}"),
        ]
    elif best is not None:
        cards += [
            _card(seconds(best.time_s), f"a step with {best.policy}", good=True),
            _card(count(best.faults), "block faults a step"),
        ]
    cards.append(
        _card(
            f"{significant(result.peak_bytes / memory_bytes)}×",
            f"oversubscribed: {size(result.peak_bytes)} in {size(memory_bytes)}",
        )
    )
    return f'<div class="cards">{"".join(cards)}</div>'


def _trace(study: Study, result: TraceResult, anchor: str, *, heading: bool) -> str:
    memory = study.memory_bytes
    parts = [f'<section id="{anchor}">']
    if heading:
        parts.append(f"<h2>{escape(result.title)}</h2>")
    parts.append(_cards(result, memory))
    parts += [f'<p class="warning">{escape(text)}</p>' for text in result.warnings]
    points = "".join(f"<li>{escape(text)}</li>" for text in findings(result, memory))
    parts.append(f'<ul class="points">{points}</ul>')
    parts.append(f'<div class="charts">{_charts(study, result, anchor)}</div>')
    parts.append(f"<h2>Results{f' for {escape(result.trace)}' if heading else ''}</h2>")
    parts.append(_results(result))
    parts.append("</section>")
    return "\n".join(parts)


def _charts(study: Study, result: TraceResult, anchor: str) -> str:
    bars = 1.15 + 0.36 * len(result.runs)
    charts = [
        _figure(
            "Time a step",
            "Policies side by side, in steady state.",
            lambda axes: plots.draw_policies(axes, result),
            bars,
            f"{anchor}p",
        ),
        _figure(
            "Where the time goes",
            "Compute, and what keeps the GPU from computing.",
            lambda axes: plots.draw_time(axes, result),
            bars,
            f"{anchor}w",
        ),
        _figure(
            "Faults, step by step",
            "How fast each policy learns. The scale is logarithmic above 1.",
            lambda axes: plots.draw_faults(axes, result),
            2.9,
            f"{anchor}f",
        ),
        _figure(
            "Bytes moved",
            "What crosses the bus in a step, and what is dropped because it is dead.",
            lambda axes: plots.draw_traffic(axes, result),
            2.9,
            f"{anchor}b",
        ),
    ]
    best = result.best()
    shown = [
        run
        for run in result.runs
        if run.timeline is not None
        and (run.policy == BASELINE or (best is not None and run.policy == best.policy))
    ] or [run for run in result.runs if run.timeline is not None][:1]
    charts += [
        _figure(
            f"Memory and bus under {run.policy}",
            "Live memory and what is on the GPU, and the transfers each way, in the last step.",
            partial(plots.draw_memory_and_bus, run=run, memory_bytes=study.memory_bytes),
            3.9,
            f"{anchor}m{place}",
            panels=2,
        )
        for place, run in enumerate(shown)
    ]
    return "\n".join(charts)


def _figure(
    title: str,
    caption: str,
    draw: Callable[[Any], Any],
    height: float,
    prefix: str,
    *,
    panels: int = 1,
    full: bool = False,
) -> str:
    """Return a chart twice, for wide and for narrow screens, so that text stays readable."""
    label = escape(title, quote=True)
    drawn = "".join(
        f'<div class="{kind}">'
        + plots.inline_svg(
            draw, width, height, label=label, prefix=f"{prefix}{kind[0]}-", panels=panels
        )
        + "</div>"
        for kind, width in (("wide", _FULL if full else _HALF), ("narrow", _PHONE))
    )
    kind = ' class="full"' if full else ""
    return (
        f"<figure{kind}><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>"
        f"{drawn}</figure>"
    )


_HEADS = (
    "policy",
    "time<br>a step",
    f"over<br>{BASELINE}",
    "block<br>faults",
    "4 KiB pages<br>faulted",
    "GB<br>in",
    "GB<br>out",
    "GB<br>dropped",
    "prefetches<br>used",
    "late<br>blocks",
    "tables<br>MB",
)


def _results(result: TraceResult) -> str:
    base = result.baseline_s
    best = result.best()
    colours = palette.of_policies(run.policy for run in result.runs)
    rows = []
    for row in result.steady():
        cells = (
            (
                f'<span class="dot" style="background:var(--{colours[row.policy]})"></span>'
                f"{escape(row.policy)}"
            ),
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
        )
        kind = "best" if best is not None and row.policy == best.policy else ""
        rows.append(_row(cells, kind))
    bound = result.bound
    rows.append(
        _row(
            (
                "bound",
                seconds(bound.bound_s),
                times(base / bound.bound_s if base else None),
                "",
                "",
                gigabytes(bound.bytes_in),
                gigabytes(bound.bytes_out),
                *[""] * 4,
            ),
            "limit first",
        )
    )
    ideal = times(base / bound.ideal_s if base else None)
    rows.append(_row(("ideal", seconds(bound.ideal_s), ideal, *[""] * 8), "limit"))
    return _table("results", _HEADS, rows)


def _row(cells: Iterable[str], kind: str = "") -> str:
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return opening + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _table(kind: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _reading() -> str:
    words = (
        (
            "time a step",
            "Mean of the last third of the simulated steps, once the tables have been filled.",
        ),
        (
            "block faults",
            (
                "A kernel touched a 2 MiB block that was neither on the GPU nor on its way. "
                "The driver counts 4 KiB pages: those are shown beside it."
            ),
        ),
        ("in, out", "Bytes over the bus to the GPU, and back to the host."),
        ("dropped", "Bytes that were not copied out because nothing in them was alive."),
        ("prefetches used", "Share of the blocks fetched ahead that a kernel then touched."),
        ("late", "Blocks that were still on the bus when a kernel reached them."),
        ("ideal", "Everything fits: compute, and the pauses that the host makes."),
        (
            "bound",
            (
                "What no policy can beat: the largest of ideal, the bytes that must come in, and "
                "those that must go out, with perfect knowledge of the future."
            ),
        ),
    )
    policies = (
        (BASELINE, "plain demand paging, with the driver's own eviction"),
        ("single-level", "one table of pairs of blocks, learned from faults"),
        ("chained", "a table of kernels and a table of blocks for each: the DeepUM method"),
        (ORACLE, "knows the whole program; shows how much is left to gain"),
    )
    terms = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in words)
    names = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in policies)
    return (
        "<section><h2>How to read this</h2>"
        f'<div class="two"><dl>{terms}</dl><dl>{names}</dl></div></section>'
    )


def _how(study: Study) -> str:
    import numpy as np

    import deepum

    rows = [
        ("GPU memory", f"{size(study.memory_bytes)} ({study.memory_bytes / 2**30:.2f} GiB)"),
        ("steps simulated", str(study.iterations)),
        ("prefetch distance", f"{study.depth} kernels"),
        ("switched off", ", ".join(study.without) or "nothing"),
        ("options", ", ".join(f"{k}={v}" for k, v in study.options.items()) or "defaults"),
    ]
    for result in study.results:
        kind = "estimated from FLOPs and bytes" if result.estimated else "measured"
        rows.append(
            (
                f"trace {result.trace}",
                f"{count(result.kernels_per_step)} kernels a step, their times {kind}",
            )
        )
    rows.append(
        (
            "versions",
            (
                f"deepum {deepum.__version__}, Python {platform.python_version()}, "
                f"numpy {np.__version__}"
            ),
        )
    )
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    command = f"<pre>{escape(study.command)}</pre>" if study.command else ""
    return f"<section><h2>How it was made</h2>{command}<dl>{terms}</dl></section>"


def figure_of(name: str, value: Any) -> str:
    """Return an entry of a machine profile with its unit."""
    if isinstance(value, str):
        return value
    for suffix, shown in (
        ("flops", lambda v: rate(v, "FLOP/s")),
        ("bytes_s", lambda v: rate(v, "B/s")),
        ("bytes", size),
        ("blocks", lambda v: f"{v} blocks"),
        ("percent", lambda v: f"{v:g} %"),
        ("efficiency", lambda v: f"{v * 100:g} %"),
        ("_s", seconds),
    ):
        if name.endswith(suffix):
            return shown(value)
    return f"{value:,}"


def _machine(machine: Machine) -> str:
    rows = [
        _row(
            (
                escape(entry.name.replace("_", " ").removesuffix(" s").removesuffix(" bytes")),
                escape(figure_of(entry.name, getattr(machine, entry.name))),
                escape(machine.sources.get(entry.name, "–")),
            )
        )
        for entry in fields(machine)
        if entry.name not in {"name", "title", "sources", "vmm"}
    ]
    if machine.vmm:
        for entry in fields(machine.vmm):
            value = getattr(machine.vmm, entry.name)
            several = value if isinstance(value, tuple) else (value,)
            shown = ", ".join(figure_of(entry.name, one) for one in several)
            name = entry.name.replace("_", " ").removesuffix(" s").removesuffix(" bytes")
            source = machine.sources.get("vmm", "–")
            rows.append(_row((escape(f"vmm: {name}"), escape(shown), escape(source))))
    table = _table("profile", ("figure", "value", "source"), rows)
    return (
        f"<section><h2>The machine: {escape(machine.title)}</h2>"
        f"<p>Profile <code>{escape(machine.name)}</code>. Every figure names where it comes from."
        f"</p><details><summary>All figures and their sources</summary>{table}</details></section>"
    )


def _model() -> str:
    modelled = (
        "kernels one after the other, each touching the blocks of its operands in order",
        "a bus with a direction each way; neighbouring blocks move as one",
        (
            "demand faults served in batches, before any prefetch, with eviction inside the "
            "fault if no block is free"
        ),
        "prefetches, evictions ahead of time and drops beside the computation",
        "addresses from a model of PyTorch's caching allocator, so that freed memory goes inactive",
    )
    left_out = (
        "kernels that overlap on several streams",
        "residency of single pages within a 2 MiB block",
        "the order in which thousands of threads touch an operand",
        "the driver's counter-measures against thrashing, access counters, remote mappings",
        "limits of the host's memory, caches, TLBs, kernels that slow down while the bus is busy",
        "the time that decisions take: well under a microsecond each, as deepum bench core shows",
    )
    lists = [
        f"<div><h3>{title}</h3><ul>"
        + "".join(f"<li>{escape(text)}</li>" for text in texts)
        + "</ul></div>"
        for title, texts in (("Modelled", modelled), ("Left out", left_out))
    ]
    return (
        "<section><h2>What is modelled, and what is not</h2>"
        "<p>The policies and the engine are the real ones; the hardware is a model. Trust "
        "comparisons on one trace and machine, which share every assumption, more than absolute "
        f'times.</p><div class="two">{"".join(lists)}</div></section>'
    )


def _foot(made: dt.date) -> str:
    import deepum

    return (
        f"<footer><div>Made by deepum {escape(deepum.__version__)} on {made.isoformat()}. "
        "This page loads nothing from the network.</div></footer>"
    )

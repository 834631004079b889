# SPDX-License-Identifier: Apache-2.0
"""Writes the comparison as Markdown, and as one HTML page in the look of the other reports."""

from __future__ import annotations

import datetime as dt
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from deepum.report import palette
from deepum.reproduce.document import Chart, Document, Points, Table, Text, chart_function, document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from deepum.reproduce.document import Section

    Data = Mapping[str, Any]

# Width in inches at which text is of normal size: half of the page, all of it, a phone's.
_HALF, _FULL, _PHONE = 5.6, 11.4, 3.9


# Markdown


def markdown(data: Data, charts: Callable[[Chart], str | None] = lambda chart: None) -> str:
    """Return the comparison as Markdown.

    Parameters
    ----------
    charts
        Gives the address of a chart's picture, or None to leave the chart out.
    """
    made = document(data)
    parts = [f"# {made.title}", made.lead]
    for section in made.sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Text):
                parts.append(block.text)
            elif isinstance(block, Points):
                parts.append("\n".join(f"- {point}" for point in block.points))
            elif isinstance(block, Table):
                parts.append(_markdown_table(block))
            elif (address := charts(block)) is not None:
                parts.append(f"![{block.title}. {block.caption}]({address})")
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    lines = ["| " + " | ".join(map(cell, table.heads)) + " |"]
    rule = ["---" if place < table.left else "---:" for place in range(len(table.heads))]
    lines.append("|" + "|".join(rule) + "|")
    for place, row in enumerate(table.rows):
        cells = [cell(text) for text in row]
        if place in table.strong:
            cells = [f"**{text}**" if text else text for text in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_markdown(data: Data, path: Path, *, plots: bool = True) -> list[Path]:
    """Write the Markdown file and, beside it, its charts; return what was written."""
    written = [path]

    def chart(block: Chart) -> str:
        from deepum.report.reproduction import save_chart

        picture = path.with_name(f"{path.stem}-{block.name}.svg")
        draw = chart_function(block)
        save_chart(
            lambda axes: draw(axes, data), _FULL if block.full else 7.5, block.height, picture
        )
        written.append(picture)
        return picture.name

    text = markdown(data, chart) if plots else markdown(data)
    path.write_text(text, encoding="utf-8")
    return written


# HTML


def write_page(data: Data, path: Path, *, made: dt.date | None = None) -> None:
    """Write the HTML page; `made` is the date it shows, today's by default."""
    path.write_text(page(data, made=made), encoding="utf-8")


def page(data: Data, *, made: dt.date | None = None) -> str:
    """Return the comparison as the text of an HTML file that loads nothing."""
    import deepum

    made = made or dt.datetime.now(tz=dt.UTC).date()
    shown = document(data)
    css = resources.files("deepum.report").joinpath("report.css").read_text("utf-8")
    links = "".join(
        f'<a href="#s{place}">{_inline(section.title)}</a>'
        for place, section in enumerate(shown.sections)
    )
    body = "\n".join(
        _section(section, f"s{place}", data) for place, section in enumerate(shown.sections)
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_inline(shown.title)} – deepum</title>\n"
        f"<style>\n{palette.css()}{css}{_CSS}</style>\n</head>\n<body>\n"
        f'<header class="top"><div><div class="brand">deepum</div><h1>{_inline(shown.title)}</h1>'
        f'<p class="lead">{_inline(shown.lead)}</p><nav>{links}</nav></div></header>\n'
        f"<main>\n{_cards(shown)}\n{body}\n</main>\n"
        f"<footer><div>Made by deepum {_inline(deepum.__version__)} on {made.isoformat()}. "
        "This page loads nothing from the network.</div></footer>\n</body>\n</html>\n"
    )


_CSS = """\
.comparison th, .comparison td { padding: 5px 8px; }
.comparison th { white-space: normal; }
.comparison.slim { width: auto; }
.slim th:not(:first-child), .slim td:not(:first-child) { padding-left: 28px; }
.comparison tbody tr.strong td { font-weight: 700; }
.comparison .text { text-align: left; }
.words td { white-space: normal; vertical-align: top; }
"""


def _inline(text: str) -> str:
    from deepum.report.html import escape

    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _cards(shown: Document) -> str:
    cards = "".join(
        f'<div class="{"card good" if place == 0 else "card"}"><b>{_inline(value)}</b>'
        f"<span>{_inline(text)}</span></div>"
        for place, (value, text) in enumerate(shown.cards)
    )
    return f'<div class="cards">{cards}</div>'


def _section(section: Section, anchor: str, data: Data) -> str:
    parts = [f'<section id="{anchor}"><h2>{_inline(section.title)}</h2>']
    charts: list[str] = []
    for block in section.blocks:
        if isinstance(block, Chart):
            charts.append(_chart(block, f"{anchor}{block.name}", data))
            continue
        if len(charts) == 1 and isinstance(block, Table) and _slim(block):
            charts.append(f"<div>{_block(block)}</div>")  # beside its chart
            continue
        if charts:
            parts.append(f'<div class="charts">{"".join(charts)}</div>')
            charts = []
        parts.append(_block(block))
    if charts:
        parts.append(f'<div class="charts">{"".join(charts)}</div>')
    return "\n".join([*parts, "</section>"])


def _slim(table: Table) -> bool:
    return len(table.heads) <= 5 and not table.words


def _block(block: Text | Points | Table) -> str:
    if isinstance(block, Text):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Points):
        points = "".join(f"<li>{_inline(point)}</li>" for point in block.points)
        return f'<ul class="points">{points}</ul>'
    kinds = [' class="text"' if place < block.left else "" for place in range(len(block.heads))]
    head = "".join(
        f'<th scope="col"{kind}>{_inline(text)}</th>'
        for kind, text in zip(kinds, block.heads, strict=True)
    )
    rows = "".join(
        ('<tr class="strong">' if place in block.strong else "<tr>")
        + "".join(f"<td{kind}>{_inline(text)}</td>" for kind, text in zip(kinds, row, strict=True))
        + "</tr>"
        for place, row in enumerate(block.rows)
    )
    kind = "results comparison"
    if block.words or _slim(block):
        kind += " words" if block.words else " slim"
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _chart(chart: Chart, prefix: str, data: Data) -> str:
    """Return a chart twice, for wide and for narrow screens, so that text stays readable."""
    from deepum.report import plots
    from deepum.report.html import escape

    draw = chart_function(chart)
    drawn = "".join(
        f'<div class="{kind}">'
        + plots.inline_svg(
            lambda axes: draw(axes, data),
            width,
            chart.height,
            label=escape(chart.title, quote=True),
            prefix=f"{prefix}{kind[0]}-",
        )
        + "</div>"
        for kind, width in (("wide", _FULL if chart.full else _HALF), ("narrow", _PHONE))
    )
    kind = ' class="full"' if chart.full else ""
    return (
        f"<figure{kind}><h3>{_inline(chart.title)}</h3>"
        f"<figcaption>{_inline(chart.caption)}</figcaption>{drawn}</figure>"
    )

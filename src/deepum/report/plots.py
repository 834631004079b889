# SPDX-License-Identifier: Apache-2.0
"""Plots (matplotlib, loaded only here and only when a plot is asked for).

Every ``draw_*`` function draws one chart into given axes; the others put charts together and
write files.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from deepum.errors import DeepUMError
from deepum.report import palette
from deepum.report.numbers import seconds, size, times
from deepum.report.study import steady

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepum.backends.results import Run
    from deepum.report.study import Study, TraceResult
    from deepum.report.summary import MemoryOverTime

SUFFIXES = (".png", ".svg")

# Points kept of a timeline. More cannot be seen, and they would weigh down the page.
_POINTS = 500

_LAST_STEP = "seconds in the last step"

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": palette.light("mist"),
    "axes.grid": True,
    "axes.labelcolor": palette.light("muted"),
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": palette.light("ink"),
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.facecolor": palette.light("paper"),
    "axes.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": palette.light("grid"),
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": palette.light("ink"),
    "lines.linewidth": 1.6,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "svg.hashsalt": "deepum",
    "text.color": palette.light("ink"),
    "xtick.color": palette.light("mist"),
    "xtick.labelcolor": palette.light("muted"),
    "ytick.color": palette.light("mist"),
    "ytick.labelcolor": palette.light("ink"),
}


def require() -> None:
    """Raise if plots cannot be made here."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise DeepUMError(
            "plots need matplotlib, which is not installed: pip install 'deepum[plot]'"
        ) from None


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    require()
    import matplotlib as mpl

    style: Any = {**mpl.rcParamsDefault, **_STYLE, "backend": "agg"}
    with mpl.rc_context(style):
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _colour(result: TraceResult) -> dict[str, str]:
    names = palette.of_policies(run.policy for run in result.runs)
    return {policy: palette.light(name) for policy, name in names.items()}


def _bar_axes(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0)
    _few_ticks(axes.xaxis)


def _few_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend(axes: Axes, columns: int) -> int:
    """Put the legend above the axes, in as many columns as fit, at most `columns`.

    Returns the number of its rows, which a title above it must clear.
    """
    _, labels = axes.get_legend_handles_labels()
    if not labels:
        return 0
    # Any: axes made by subplots() have a figure and a grid, which their types leave open.
    figure: Any = axes.figure
    grid: Any = axes.get_gridspec()
    room = figure.get_figwidth() / grid.ncols - 0.7
    while columns > 1 and _legend_width(labels, columns) > room:
        columns -= 1
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1.2,
        columnspacing=1.2,
        handletextpad=0.5,
    )
    return -(-len(labels) // columns)


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """Estimate the width in inches: letters, and for each column its mark and a gap."""
    rows = -(-len(labels) // columns)
    widths = [max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows)]
    return sum(0.065 * letters + 0.36 for letters in widths)


def draw_policies(axes: Axes, result: TraceResult) -> int:
    """Time a step of each policy, with the ideal and the bound as lines."""
    rows = result.steady()
    colours = _colour(result)
    base = result.baseline_s
    longest = max([row.time_s for row in rows] + [result.bound.bound_s])
    _bar_axes(axes, [row.policy for row in rows])
    for place, row in enumerate(rows):
        axes.barh(place, row.time_s, height=0.62, color=colours[row.policy])
        text = seconds(row.time_s)
        if base and row.policy != "noop":
            text += f" · {times(base / row.time_s)}"
        axes.annotate(
            text,
            (row.time_s, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
            # The lines of ideal and bound may pass behind.
            bbox={"facecolor": palette.light("paper"), "edgecolor": "none", "pad": 1.0},
        )
    for value, name, style in (
        (result.bound.ideal_s, "ideal: everything fits", (0, (2, 2))),
        (result.bound.bound_s, "bound: nothing can be faster here", (0, (6, 2))),
    ):
        axes.axvline(
            value,
            color=palette.light("ink"),
            linestyle=style,
            linewidth=1.2,
            label=f"{name}, {seconds(value)}",
            zorder=0.9,
        )
    axes.set_xlim(0, longest * 1.3)
    axes.set_xlabel("seconds a step, steady state")
    return _legend(axes, 1)


def draw_time(axes: Axes, result: TraceResult) -> int:
    """Where the time of a step goes, by cause."""
    rows = result.steady()
    _bar_axes(axes, [row.policy for row in rows])
    left = np.zeros(len(rows))
    parts = {
        "compute": [row.compute_s for row in rows],
        "fault service": [row.stall_fault_s for row in rows],
        "eviction": [row.stall_evict_s for row in rows],
        "late prefetch": [row.stall_late_s for row in rows],
        "host": [row.host_s for row in rows],
    }
    for cause, spent in parts.items():
        if not any(spent):
            continue
        axes.barh(
            range(len(rows)),
            spent,
            left=left,
            height=0.62,
            color=palette.light(palette.CAUSES[cause]),
            edgecolor=palette.light("paper"),
            linewidth=0.6,
            label=cause,
        )
        left += np.array(spent)
    axes.set_xlim(0, max(left.max(), 1e-12) * 1.03)
    axes.set_xlabel("seconds a step, steady state")
    return _legend(axes, 3)


def draw_faults(axes: Axes, result: TraceResult) -> int:
    """Demand faults of every step: how fast a policy learns."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

    colours = _colour(result)
    highest = 1
    markers = "osD^vP*X"
    for place, run in enumerate(result.runs):
        faults = [it.faults for it in run.iterations]
        highest = max(highest, *faults)
        axes.plot(
            range(1, len(faults) + 1),
            faults,
            marker=markers[place % len(markers)],
            markersize=4.5,
            color=colours[run.policy],
            label=run.policy,
            clip_on=False,
        )
    # Logarithmic from 1 up, with room for 0: having no fault at all is the point.
    axes.set_yscale("symlog", linthresh=1, linscale=0.4)
    axes.set_ylim(0, highest * 1.6)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="y", labelcolor=palette.light("muted"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("step")
    axes.set_ylabel("block faults in the step")
    return _legend(axes, 4)


def draw_traffic(axes: Axes, result: TraceResult) -> int:
    """Bytes moved in, moved out and dropped in a step."""
    rows = result.steady()
    names = [row.policy for row in rows]
    _bar_axes(axes, [*names, "bound"])
    parts = {
        "in": [row.bytes_in for row in rows] + [float(result.bound.bytes_in)],
        "out": [row.bytes_out for row in rows] + [float(result.bound.bytes_out)],
        "dropped": [row.bytes_dropped for row in rows] + [0.0],
    }
    left = np.zeros(len(names) + 1)
    labels = {"in": "to the GPU", "out": "to the host", "dropped": "dropped"}
    for name, amounts in parts.items():
        if not any(amounts):
            continue
        width = np.array(amounts) / 1e9
        axes.barh(
            range(len(width)),
            width,
            left=left,
            height=0.62,
            color=palette.light(palette.DIRECTIONS[name]),
            edgecolor=palette.light("paper"),
            linewidth=0.6,
            label=labels[name],
        )
        left += width
    axes.set_xlim(0, max(left.max(), 1e-9) * 1.03)
    axes.set_xlabel("GB a step, steady state")
    return _legend(axes, 3)


def draw_memory(axes: Axes, run: Run, memory_bytes: int) -> int:
    """Live bytes and bytes on the GPU over the last step of a run, against the budget."""
    line = run.timeline
    assert line is not None
    time_s, live, resident = _thin(line.time_s, line.live_bytes, line.resident_bytes)
    axes.fill_between(
        time_s,
        live / 1e9,
        color=palette.light("sky"),
        alpha=0.35,
        linewidth=0,
        label="live",
        step="post",
    )
    axes.fill_between(
        time_s,
        resident / 1e9,
        color=palette.light("blue"),
        alpha=0.5,
        linewidth=0,
        label="on the GPU",
        step="post",
    )
    _budget(axes, memory_bytes)
    top = max(float(np.max(live, initial=0)), float(np.max(resident, initial=0)), memory_bytes)
    axes.set_ylim(0, top / 1e9 * 1.08)
    axes.set_xlim(0, float(time_s[-1]) or 1.0)
    axes.set_xlabel(_LAST_STEP)
    axes.set_ylabel("GB")
    _few_ticks(axes.xaxis)
    _few_ticks(axes.yaxis)
    axes.tick_params(axis="y", labelcolor=palette.light("muted"))
    return _legend(axes, 3)


def draw_memory_and_bus(panels: Sequence[Axes], run: Run, memory_bytes: int) -> int:
    """Memory above, the bus below, over one time axis."""
    draw_memory(panels[0], run, memory_bytes)
    panels[0].set_xlabel("")
    return draw_bus(panels[1], run)


def _budget(axes: Axes, memory_bytes: int) -> None:
    axes.axhline(
        memory_bytes / 1e9,
        color=palette.light("ink"),
        linestyle=(0, (5, 2)),
        linewidth=1.3,
        label=f"GPU memory, {size(memory_bytes)}",
    )


def draw_bus(axes: Axes, run: Run) -> int:
    """Rate of moves each way over the last step of a run: in above, out below."""
    line = run.timeline
    assert line is not None
    edges = np.linspace(0, line.time_s[-1], 121)
    width = float(edges[1] - edges[0])
    if width > 0:
        middles = edges[:-1] + width / 2
        for name, moved, sign in (("in", line.bytes_in, 1), ("out", line.bytes_out, -1)):
            gone = np.diff(np.interp(edges, line.time_s, moved)) / width / 1e9
            axes.fill_between(
                middles,
                sign * gone,
                step="mid",
                color=palette.light(palette.DIRECTIONS[name]),
                linewidth=0,
                label={"in": "to the GPU", "out": "to the host"}[name],
            )
    axes.axhline(0, color=palette.light("mist"), linewidth=0.8)
    axes.set_xlim(0, float(edges[-1]) or 1.0)
    axes.set_xlabel(_LAST_STEP)
    axes.set_ylabel("bus, GB/s")
    _few_ticks(axes.xaxis)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):,.10g}"))
    axes.tick_params(axis="y", labelcolor=palette.light("muted"))
    return _legend(axes, 2)


def draw_live(axes: Axes, memory: MemoryOverTime, budget: int | None) -> int:
    """Live bytes by kind over one step of a trace."""
    kinds = [kind for kind in palette.KINDS if kind in memory.by_kind]
    axes.stackplot(
        memory.time_s,
        [memory.by_kind[kind] / 1e9 for kind in kinds],
        labels=kinds,
        colors=[palette.light(palette.KINDS[kind]) for kind in kinds],
        linewidth=0,
        step="post",
    )
    if budget is not None:
        _budget(axes, budget)
    total = np.sum([memory.by_kind[kind] for kind in kinds], axis=0)
    top = max(float(np.max(total)), budget or 0)
    axes.set_ylim(0, max(top, 1) / 1e9 * 1.08)
    axes.set_xlim(0, float(memory.time_s[-1]) or 1.0)
    axes.set_xlabel("seconds of compute in the step")
    axes.set_ylabel("live GB")
    _few_ticks(axes.xaxis)
    _few_ticks(axes.yaxis)
    axes.tick_params(axis="y", labelcolor=palette.light("muted"))
    return _legend(axes, 4)


def draw_speedups(axes: Axes, study: Study) -> int:
    """Speed of every policy over demand paging, trace by trace."""
    names = list(dict.fromkeys(run.policy for result in study.results for run in result.runs))
    names = [name for name in names if name != "noop"]
    colours = palette.of_policies(names)
    traces = [result.trace for result in study.results]
    height = 0.8 / max(1, len(names))
    _bar_axes(axes, traces)
    longest = 1.0
    for place, name in enumerate(names):
        for row, result in enumerate(study.results):
            run, base = result.run(name), result.baseline_s
            if run is None or base is None:
                continue
            gain = base / steady(run).time_s
            longest = max(longest, gain)
            where = row + (place - (len(names) - 1) / 2) * height
            axes.barh(
                where,
                gain,
                height=height * 0.92,
                color=palette.light(colours[name]),
                label=name if row == 0 else None,
            )
            axes.annotate(
                times(gain),
                (gain, where),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
    axes.axvline(1, color=palette.light("muted"), linewidth=1)
    axes.set_xlim(0, longest * 1.12)
    axes.set_xlabel("speed, demand paging (noop) = 1")
    return _legend(axes, 4)


def _thin(time_s: Any, live: Any, resident: Any) -> tuple[Any, Any, Any]:
    """Keep at most `_POINTS` points, in each stretch the one with the most live bytes."""
    total = len(time_s)
    if total <= _POINTS:
        return np.asarray(time_s), np.asarray(live), np.asarray(resident)
    edges = np.linspace(0, total, _POINTS // 2 + 1).astype(int)
    picked = {0, total - 1}
    for first, last in itertools.pairwise(edges):
        picked.update((first, first + int(np.argmax(live[first:last]))))
    keep = np.array(sorted(picked))
    return np.asarray(time_s)[keep], np.asarray(live)[keep], np.asarray(resident)[keep]


def _bars_height(rows: int, head: float = 1.1) -> float:
    return head + 0.42 * rows


def study_figure(study: Study) -> Figure:
    """All charts of a study as one figure: a row for each trace, or four charts for one."""
    if len(study.results) == 1:
        result = study.results[0]
        timed = next((run for run in _shown(result) if run.timeline is not None), None)
        figure = _figure(12.5, 10.5 if timed else 7.5)
        grid = figure.subplots(3 if timed else 2, 2)
        charts: list[tuple[str, Callable[[Axes], int]]] = [
            ("Time a step", lambda axes: draw_policies(axes, result)),
            ("Where the time goes", lambda axes: draw_time(axes, result)),
            ("Faults, step by step", lambda axes: draw_faults(axes, result)),
            ("Bytes moved", lambda axes: draw_traffic(axes, result)),
        ]
        if timed is not None:
            charts += [
                (
                    f"Memory under {timed.policy}",
                    lambda axes: draw_memory(axes, timed, study.memory_bytes),
                ),
                (f"Bus under {timed.policy}", lambda axes: draw_bus(axes, timed)),
            ]
        for axes, (title, draw) in zip(grid.flat, charts, strict=True):
            _title(axes, title, draw(axes))
        figure.suptitle(
            f"{result.title} on {study.machine.title}, {size(study.memory_bytes)}",
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        return figure
    rows = len(study.results)
    each = 1.9 + 0.35 * max(len(result.runs) for result in study.results)
    figure = _figure(12.5, each * rows + 0.5)
    grid = figure.subplots(rows, 2, squeeze=False)
    for (left, right), result in zip(grid, study.results, strict=True):
        _title(left, f"{result.title}: time a step", draw_policies(left, result))
        _title(right, "where it goes", draw_time(right, result))
    figure.suptitle(
        f"{study.machine.title}, {size(study.memory_bytes)}", fontweight="bold", x=0.01, ha="left"
    )
    return figure


def _title(axes: Axes, text: str, legend_rows: int) -> None:
    # Above the legend, which itself lies above the axes.
    axes.set_title(text, pad=8 + 13 * legend_rows)


def _shown(result: TraceResult) -> list[Run]:
    """Return the runs whose memory is worth a look: the best policy's, else any."""
    best = result.best()
    if best is not None:
        run = result.run(best.policy)
        if run is not None:
            return [run]
    return list(result.runs)


def memory_figure(memory: MemoryOverTime, title: str, budget: int | None) -> Figure:
    """Live bytes by kind as one figure."""
    figure = _figure(9, 4.6)
    axes = figure.subplots()
    _title(axes, title, draw_live(axes, memory, budget))
    return figure


def save_study(study: Study, path: Path) -> None:
    """Write the charts of a study to a PNG or SVG file."""
    _save(lambda: study_figure(study), path)


def save_memory(memory: MemoryOverTime, title: str, budget: int | None, path: Path) -> None:
    """Write the memory of a trace over time to a PNG or SVG file."""
    _save(lambda: memory_figure(memory, title, budget), path)


def _save(make: Callable[[], Figure], path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise DeepUMError(f"{path}: plots are written as {' or '.join(SUFFIXES)} files")
    with _drawing():
        figure = make()
        # Without a date, equal input gives equal files.
        meta = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, metadata=meta)


def inline_svg(
    draw: Callable[[Any], Any],
    width: float,
    height: float,
    *,
    label: str,
    prefix: str,
    panels: int = 1,
) -> str:
    """Return a chart as an SVG element for a page: themed, scalable, with ids of its own.

    Parameters
    ----------
    draw
        Called with the axes, or with an array of `panels` axes that share their x axis.
    width, height
        Inches; text has its normal size at this width.
    label
        What the chart shows, for readers who do not see it.
    prefix
        Makes the ids unique within the page.
    """
    with _drawing():
        figure = _figure(width, height)
        if panels == 1:
            draw(figure.subplots())
        else:
            ratios = [2.2] + [1.0] * (panels - 1)
            draw(figure.subplots(panels, 1, sharex=True, height_ratios=ratios))
        figure.patch.set_alpha(0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = svg.replace("xlink:href", "href").replace(
        ' xmlns:xlink="http://www.w3.org/1999/xlink"', ""
    )
    svg = re.sub(r"font: ([^;\"]*?)(\d+(?:\.\d+)?px) [^;\"]*", r"font: \1\2 var(--sans)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    # A hundredth of a point is finer than any screen.
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    opening = f'<svg role="img" aria-label="{label}" '
    return palette.themed(svg.replace("<svg ", opening, 1))

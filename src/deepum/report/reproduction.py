# SPDX-License-Identifier: Apache-2.0
"""Charts of the reproduction: the paper's values and ours in one picture each.

Every function draws into given axes, from the data that ``deepum reproduce --json`` writes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deepum.report import palette
from deepum.report.numbers import significant
from deepum.report.plots import _bar_axes, _drawing, _figure, _legend
from deepum.reproduce import paper
from deepum.reproduce.result import speedup
from deepum.reproduce.statistics import ratio
from deepum.reproduce.targets import fault_share, row_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    Row = Mapping[str, Any]

_PAPER, _OURS = "grey", "blue"


def big_rows(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the 32 GB card."""
    return [row for row in data["rows"] if row["memory"] == "32 GB"]


def _shade(name: str) -> str:
    return palette.light(name)


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _quiet(axes: Axes) -> None:
    axes.tick_params(axis="y", labelcolor=_shade("muted"))


def _pairs_of_bars(
    axes: Axes,
    names: Sequence[str],
    theirs: Sequence[float | None],
    ours: Sequence[float | None],
    label: str,
) -> int:
    """Horizontal bars, the paper's above ours, each with its value."""
    _bar_axes(axes, names)
    longest = max([value for value in (*theirs, *ours) if value is not None], default=1.0)
    for side, (name, values, colour) in enumerate(
        (("paper", theirs, _PAPER), ("deepum", ours, _OURS))
    ):
        shown = [(place, value) for place, value in enumerate(values) if value is not None]
        axes.barh(
            [place + 0.4 * (side - 0.5) for place, _ in shown],
            [value for _, value in shown],
            height=0.36,
            color=_shade(colour),
            label=name,
        )
        for place, value in shown:
            axes.annotate(
                significant(value) if value >= 10 else f"{value:.2f}",
                (value, place + 0.4 * (side - 0.5)),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
    axes.set_xlim(0, longest * 1.12)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label)
    return _legend(axes, 2)


def draw_speedups(axes: Axes, data: Mapping[str, Any]) -> int:
    """Speed of the paper's policy over naive UM, row by row."""
    rows = big_rows(data)
    return _pairs_of_bars(
        axes,
        [row_name(row) for row in rows],
        [speedup(row["paper"], "chained_s") for row in rows],
        [speedup(row["ours"], "chained_s") for row in rows],
        "speed over naive UM",
    )


SERIES = (
    ("um_s", "naive UM", "grey", "o"),
    ("lms_s", "LMS", "orange", "D"),
    ("chained_s", "DeepUM (chained)", "blue", "s"),
    ("ideal_s", "ideal", "green", "^"),
)


def draw_scatter(axes: Axes, data: Mapping[str, Any]) -> int:
    """Predicted against reported seconds, with the line on which they agree."""
    every = []
    for column, name, colour, marker in SERIES:
        points = [
            (row["paper"][column], row["ours"][column])
            for row in big_rows(data)
            if row["paper"][column] and row["ours"][column]
        ]
        every += [value for point in points for value in point]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                linestyle="none",
                marker=marker,
                markersize=5,
                markerfacecolor=_shade(colour),
                markeredgecolor=_shade("paper"),
                markeredgewidth=0.6,
                label=name,
            )
    if every:
        low, high = min(every) / 1.4, max(every) * 1.4
        axes.set_xscale("log")
        axes.set_yscale("log")
        for factor, style in ((1.0, "-"), (1.35, (0, (2, 2))), (0.65, (0, (2, 2)))):
            axes.plot(
                [low, high],
                [low * factor, high * factor],
                color=_shade("muted"),
                linewidth=1 if factor == 1 else 0.8,
                linestyle=style,
                zorder=0.9,
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    _quiet(axes)
    axes.set_xlabel("paper, seconds for 100 iterations")
    axes.set_ylabel("simulated, seconds for 100 iterations")
    return _legend(axes, 4)


STAGE_LABELS = ("prefetching", "+ pre-eviction", "+ invalidation")


def draw_ablation(axes: Axes, data: Mapping[str, Any]) -> int:
    """Time relative to naive UM as mechanisms are added."""
    return _pairs_of_bars(
        axes,
        STAGE_LABELS,
        [paper.ABLATION[stage] for stage in paper.STAGES],
        [data["ablation"][stage] for stage in paper.STAGES],
        "time, naive UM = 1",
    )


def draw_depth(axes: Axes, data: Mapping[str, Any]) -> int:
    """Speed over N = 8 for each prefetch distance."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ours = {int(n): value for n, value in data["depth"].items() if value is not None}
    for name, values, colour, marker in (
        ("paper", paper.DEPTH, _PAPER, "o"),
        ("deepum", ours, _OURS, "s"),
    ):
        points = sorted({paper.DEPTH_BASE: 1.0, **values}.items())
        axes.plot(
            *zip(*points, strict=True),
            color=_shade(colour),
            marker=marker,
            markersize=5,
            label=name,
            clip_on=False,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([paper.DEPTH_BASE, *paper.DEPTH])
    _plain_ticks(axes.xaxis)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    _quiet(axes)
    axes.set_xlabel("prefetch distance N, kernels")
    axes.set_ylabel("speed, N = 8 is 1")
    return _legend(axes, 2)


def draw_geometry(axes: Axes, data: Mapping[str, Any]) -> int:
    """Speed over (2, 4, 128) for each shape of the UM-block tables."""
    shapes = list(paper.GEOMETRY)
    _bar_axes(axes, [str(shape) for shape in shapes])
    axes.grid(visible=True, axis="y")
    ours = {
        tuple(int(part) for part in name.split(",")): value
        for name, value in data["geometry"].items()
        if value is not None
    }
    for place, shape in enumerate(shapes):
        if shape in ours:
            axes.plot(
                [paper.GEOMETRY[shape], ours[shape]],
                [place, place],
                color=_shade("mist"),
                linewidth=1.2,
                zorder=1,
            )
    for name, values, colour, marker in (
        ("paper", paper.GEOMETRY, _PAPER, "o"),
        ("deepum", ours, _OURS, "s"),
    ):
        shown = [(values[shape], place) for place, shape in enumerate(shapes) if shape in values]
        axes.plot(
            *zip(*shown, strict=True),
            linestyle="none",
            marker=marker,
            markersize=6,
            color=_shade(colour),
            label=name,
        )
    axes.axvline(1, color=_shade("muted"), linewidth=1, zorder=0.9)
    axes.margins(x=0.06)
    axes.set_xlabel("speed, (2, 4, 128) is 1; associativity, successors, rows")
    return _legend(axes, 2)


def draw_faults(axes: Axes, data: Mapping[str, Any]) -> int:
    """Share of naive UM's faults that is left, row by row."""
    from matplotlib.ticker import FuncFormatter, SymmetricalLogLocator

    rows = big_rows(data)
    _bar_axes(axes, [row_name(row) for row in rows])
    for side, name, colour, marker in (
        ("paper", "paper", _PAPER, "o"),
        ("ours", "deepum", _OURS, "s"),
    ):
        shown = [
            (share * 100, place)
            for place, row in enumerate(rows)
            if (share := fault_share(row[side])) is not None
        ]
        if shown:
            axes.plot(
                *zip(*shown, strict=True),
                linestyle="none",
                marker=marker,
                markersize=5.5,
                color=_shade(colour),
                label=name,
                clip_on=False,
            )
    # Logarithmic, with room for none at all.
    axes.set_xscale("symlog", linthresh=1e-5, linscale=0.4)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1e-5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axes.set_xlim(left=0)
    axes.grid(visible=True, axis="y")
    axes.set_xlabel("page faults left, % of naive UM's")
    return _legend(axes, 2)


def _power(value: float) -> str:
    exponent = round(math.log10(value)) if value > 0 else 0
    if value <= 0 or exponent >= -1:
        return f"{value:,.10g}"
    return f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def draw_past(axes: Axes, data: Mapping[str, Any]) -> int:
    """Time over the bound: plain chained, and with the options past the paper."""
    rows = [row for row in data["rows"] if row["ours"]["bound_s"] is not None]
    _bar_axes(axes, [row_name(row) for row in rows])
    longest = 1.2
    series = [("oracle", "oracle_s", "green"), ("chained", "chained_s", "sky")]
    if data["past_paper_options"]:
        series.append(("past the paper", "past_paper_s", "blue"))
    height = 0.8 / len(series)
    for side, (name, column, colour) in enumerate(series):
        shown = [
            (place, value)
            for place, row in enumerate(rows)
            if (value := ratio(row["ours"][column], row["ours"]["bound_s"])) is not None
        ]
        longest = max([longest, *[value for _, value in shown]])
        axes.barh(
            [place + (side - (len(series) - 1) / 2) * height for place, _ in shown],
            [value for _, value in shown],
            height=height * 0.92,
            color=_shade(colour),
            label=name,
        )
    axes.axvline(1, color=_shade("muted"), linewidth=1)
    axes.set_xlim(0, longest * 1.03)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("time over the bound")
    return _legend(axes, 3)


def draw_card(axes: Axes, data: Mapping[str, Any]) -> int:
    """Geometric-mean speedups on the 16 GB card, the rivals' beside them."""
    ours = data["gmean_16gb"]
    mine = {"DeepUM": ours["chained"], "Ideal": ours["ideal"]}
    names = list(paper.GMEAN_16GB)
    return _pairs_of_bars(
        axes,
        names,
        [paper.GMEAN_16GB[name] for name in names],
        [mine.get(name) for name in names],
        "speed over naive UM, geometric mean",
    )


def save_chart(draw: Callable[[Any], Any], width: float, height: float, path: Path) -> None:
    """Write one chart to a file."""
    with _drawing():
        figure = _figure(width, height)
        draw(figure.subplots())
        # Without a date, equal input gives equal files.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})

# SPDX-License-Identifier: Apache-2.0
"""The comparison as a document: headings, paragraphs, tables and charts, without a format.

It is made from the data that ``deepum reproduce --json`` writes and from the paper's numbers, so
that a page can be written again from a result file. `pages` turns it into Markdown and HTML.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deepum.report.numbers import count, percent, significant, times
from deepum.reproduce import energy, paper
from deepum.reproduce.plan import (
    DEPTH,
    ITERATIONS,
    LEARNING_ITERATIONS,
    OPTION_ITERATIONS,
    SWAPPER_ITERATIONS,
    batch_text,
)
from deepum.reproduce.remarks import REMARKS
from deepum.reproduce.result import speedup
from deepum.reproduce.runner import OUT_OF_MEMORY
from deepum.reproduce.statistics import gmean, ratio
from deepum.reproduce.targets import fault_share, row_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]
    Data = Mapping[str, Any]

NONE = "–"


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backquotes."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    points: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table; the first `left` columns are texts, the others numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    strong: frozenset[int] = frozenset()
    """Rows that stand out."""
    words: bool = False
    """The cells are phrases that may wrap."""


@dataclass(frozen=True)
class Chart:
    """A chart; `draw` is called with axes and the data."""

    name: str
    title: str
    caption: str
    draw: str
    """Name of the function in `deepum.report.reproduction`."""
    height: float
    full: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and what follows."""

    title: str
    blocks: Sequence[Text | Points | Table | Chart]


@dataclass(frozen=True)
class Document:
    """Everything, from the top."""

    title: str
    lead: str
    cards: Sequence[tuple[str, str]]
    """Headline figures: the value and what it is."""
    sections: Sequence[Section] = field(default_factory=tuple)


def document(data: Data) -> Document:
    """Return the comparison with the paper that a result holds."""
    rows = [row for row in data["rows"] if row["memory"] == "32 GB"]
    sections = [
        _summary(data, rows),
        _targets(data),
        _seconds(rows),
        _speedups(data, rows),
        _swappers(data, rows),
        _faults(rows),
        _tables(rows),
        _energy(data, rows),
        _ablation(data, rows),
        _depth(data),
        _geometry(data),
        _largest(data),
        _card16(data),
        _past(data),
        _others(data),
        _g10(data),
        _where(data),
        *_calibration(rows),
        _how(data),
    ]
    quick = data["made"]["quick"]
    judged = [target for target in data["targets"] if target["met"] is not None]
    met = sum(target["met"] for target in judged)
    gmeans = data["gmean"]
    cards = [
        (
            times(gmeans["chained"]),
            f"DeepUM over naive UM, geometric mean; the paper has {_paper_gmean(rows, 'chained')}",
        ),
        (
            times(data["lms_compared"]["lms"]["ours"]),
            (
                "LMS over naive UM where both ran; the paper has "
                f"{times(data['lms_compared']['lms']['paper'])}"
            ),
        ),
        (
            significant(data["rank_correlation"]) if data["rank_correlation"] is not None else NONE,
            "rank correlation of the speedups with the paper's",
        ),
        (f"{met} of {len(judged)}", "targets met"),
    ]
    lead = (
        "The evaluation of DeepUM (ASPLOS 2023), run on the simulator and compared number by number"
    )
    return Document(
        "Reproducing the paper" + (" (quick)" if quick else ""),
        lead + ("; a quick run: one batch of each model, small sweeps." if quick else "."),
        cards,
        sections,
    )


def _whole(rows: Sequence[Row]) -> bool:
    return len(rows) == len(paper.ROWS)


def _paper_gmean(rows: Sequence[Row], name: str) -> str:
    """Return the paper's own mean, or that of its values on the rows that were run."""
    if _whole(rows):
        return times(paper.GMEAN[name])
    return times(gmean(speedup(row["paper"], f"{name}_s") for row in rows))


def _n(value: float | None) -> str:
    return NONE if value is None else significant(value)


def _s(value: float | None) -> str:
    # Seconds for 100 iterations: the paper prints whole ones.
    return NONE if value is None else count(value) if value >= 100 else significant(value)


def _quotient(over: float | None, under: float | None) -> str:
    value = ratio(over, under)
    return NONE if value is None else f"{value:.2f}"


def _count(value: float | None) -> str:
    return NONE if value is None else count(value)


def _cell(row: Row, column: str) -> str:
    """Return seconds, or why there are none."""
    value = row["ours"][column]
    if value is not None:
        return _s(value)
    failure = row["ours"]["failures"].get(column.removesuffix("_s"), {}).get("what", "")
    return "OOM" if failure == OUT_OF_MEMORY else NONE


def _paper_cell(value: float | None) -> str:
    return "OOM" if value is None else _s(value)


def _summary(data: Data, rows: Sequence[Row]) -> Section:
    ours = data["gmean"]
    swapped = data["lms_compared"]["lms"]
    barred = [row for row in rows if row["paper"]["ideal_speedup"] is not None]
    ideal = gmean(speedup(row["ours"], "ideal_s") for row in barred)
    where = "" if _whole(rows) else " (the rows of this run)"
    body = [
        (
            "DeepUM (`chained`) over naive UM",
            _paper_gmean(rows, "chained"),
            times(ours["chained"]),
            _quotient(ours["chained"], gmean(speedup(r["paper"], "chained_s") for r in rows)),
        ),
        (
            f"LMS over naive UM, {swapped['rows']} rows on which both ran",
            times(swapped["paper"]),
            times(swapped["ours"]),
            _quotient(swapped["ours"], swapped["paper"]),
        ),
        (
            f"Ideal over naive UM, {len(barred)} rows with a bar",
            _paper_gmean(barred, "ideal") if not _whole(rows) else times(paper.GMEAN["ideal"]),
            times(ideal),
            _quotient(ideal, gmean(speedup(r["paper"], "ideal_s") for r in barred)),
        ),
        (
            "Energy of DeepUM, naive UM = 1",
            _n(
                paper.ENERGY["chained"]
                if _whole(rows)
                else gmean(r["paper"]["energy"] for r in rows)
            ),
            _n(data["energy"]["chained"]),
            _quotient(data["energy"]["chained"], gmean(r["paper"]["energy"] for r in rows)),
        ),
        (
            "Past the paper over naive UM",
            NONE,
            times(ours["chained_past_paper"]) if data["past_paper_options"] else NONE,
            NONE,
        ),
        ("Ideal over naive UM, all rows", NONE, times(ours["ideal"]), NONE),
    ]
    return Section(
        "In short",
        [
            Text(
                f"Geometric means over the 32 GB rows{where}. Seconds are for 100 iterations, as "
                "in the paper: simulated steady-state seconds of one, times 100."
            ),
            Table(("", "paper", "ours", "ours / paper"), body),
        ],
    )


def _targets(data: Data) -> Section:
    marks = {True: "met", False: "missed", None: "not run"}
    body = [
        (target["what"], target["target"], target["ours"], marks[target["met"]])
        for target in data["targets"]
    ]
    missed = frozenset(
        place for place, target in enumerate(data["targets"]) if target["met"] is False
    )
    blocks: list[Text | Points | Table | Chart] = [
        Table(("target", "wanted", "ours", ""), body, left=4, strong=missed, words=True)
    ]
    notes = []
    for target in data["targets"]:
        if target["met"] is not False:
            continue
        parts = []
        if target["missing"]:
            parts.append(f"missed on {', '.join(target['missing'])}.")
        if target["key"] in REMARKS:
            parts.append(REMARKS[target["key"]])
        if parts:
            notes.append(f"{target['what']}: {' '.join(parts)}")
    if notes:
        blocks += [Text("What is behind each miss:"), Points(notes)]
    elif not missed:
        blocks.append(Text("Nothing that was run misses its target."))
    return Section("Where we miss", blocks)


def seconds_rows(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the heads and the rows of the table of times."""
    body: list[tuple[str, ...]] = []
    for row in rows:
        theirs, ours = row["paper"], row["ours"]
        body.append(
            (
                row_name(row),
                _s(theirs["um_s"]),
                _cell(row, "um_s"),
                _quotient(ours["um_s"], theirs["um_s"]),
                _paper_cell(theirs["lms_s"]),
                _cell(row, "lms_s"),
                _quotient(ours["lms_s"], theirs["lms_s"]),
                _s(theirs["chained_s"]),
                _cell(row, "chained_s"),
                _quotient(ours["chained_s"], theirs["chained_s"]),
                _s(theirs["ideal_s"]),
                _s(ours["ideal_s"]),
                _quotient(ours["ideal_s"], theirs["ideal_s"]),
                _s(ours["bound_s"]),
            )
        )
    three = ("paper", "ours", "ratio")
    heads = ["model, batch"]
    heads += [f"{name} {part}" for name in ("UM", "LMS", "DeepUM", "ideal") for part in three]
    heads.append("bound")
    return heads, body


def _seconds(rows: Sequence[Row]) -> Section:
    heads, body = seconds_rows(rows)
    return Section(
        "Seconds for 100 iterations",
        [
            Text(
                "OOM: out of memory. Ideal: everything fits; the paper's is its UM time over the "
                "speedup that its figure shows. Bound: what no policy can beat, since bytes must "
                "move."
            ),
            Chart(
                "scatter",
                "Predicted and reported time",
                "Each point is one row of the paper. The dotted lines are 35 % off.",
                "draw_scatter",
                4.6,
            ),
            Chart(
                "speedups",
                "DeepUM over naive UM",
                "How many times as fast as naive UM; longer is better.",
                "draw_speedups",
                1.0 + 0.33 * len(rows),
            ),
            Table(heads, body),
        ],
    )


def _speedups(data: Data, rows: Sequence[Row]) -> Section:
    body = []
    for row in rows:
        cells = [row_name(row)]
        for column in ("lms_s", "chained_s", "ideal_s"):
            theirs, ours = speedup(row["paper"], column), speedup(row["ours"], column)
            cells += [_n(theirs), _n(ours), _quotient(ours, theirs)]
        body.append(cells)
    three = ("paper", "ours", "ratio")
    heads = ["model, batch"]
    heads += [f"{name} {part}" for name in ("LMS", "DeepUM", "ideal") for part in three]
    rank = data["rank_correlation"]
    return Section(
        "Speedups over naive UM",
        [
            Text(f"Rank correlation of the DeepUM columns (Spearman): {_n(rank)}."),
            Table(heads, body),
        ],
    )


def _swappers(data: Data, rows: Sequence[Row]) -> Section:
    body = []
    for row in rows:
        theirs = row["paper"]
        body.append(
            (
                row_name(row),
                _paper_cell(theirs["lms_s"]),
                _cell(row, "lms_s"),
                _cell(row, "lms15_s"),
                _paper_cell(theirs["lms_mod_s"]),
                _cell(row, "lms_mod_s"),
            )
        )
    compared = data["lms_compared"]
    means = [
        (name, str(compared[key]["rows"]), times(compared[key]["paper"]), _over(compared[key]))
        for name, key in (
            ("LMS, patches before 1.4", "lms"),
            ("LMS, patches from 1.4", "lms15"),
            ("LMS-mod", "lms_mod"),
        )
    ]
    return Section(
        "LMS and LMS-mod",
        [
            Text(
                "Seconds for 100 iterations. IBM's patches differ: before PyTorch 1.4 LMS would "
                "rather reuse memory than ask for more, and copies out while the GPU stands still; "
                "from 1.4 it asks first, and copies out ahead. The paper does not say which it "
                "used, and its PyTorch, 1.8, has none. Its BERT Base 29, where all but everything "
                "fits and LMS still takes 3.3 times as long as naive UM, speaks for the earlier "
                "ones; `lms` is those. LMS-mod, the paper's change, gives cached segments back."
            ),
            Table(("over naive UM, where both ran", "rows", "paper", "ours"), means),
            Table(
                (
                    "model, batch",
                    "LMS paper",
                    "LMS ours",
                    "from 1.4, ours",
                    "LMS-mod paper",
                    "LMS-mod ours",
                ),
                body,
            ),
        ],
    )


def _over(compared: Row) -> str:
    return f"{times(compared['ours'])} ({_quotient(compared['ours'], compared['paper'])})"


def _faults(rows: Sequence[Row]) -> Section:
    def share(figures: Row) -> str:
        value = fault_share(figures)
        return NONE if value is None else "0 %" if value == 0 else f"{significant(value * 100)} %"

    body = [
        (
            row_name(row),
            _count(row["paper"]["faults_um"]),
            _count(row["ours"]["faults_um"]),
            _count(row["paper"]["faults_chained"]),
            _count(row["ours"]["faults_chained"]),
            share(row["paper"]),
            share(row["ours"]),
            _count(row["ours"]["faults_oracle"]),
            _count(row["ours"]["faults_past_paper"]),
        )
        for row in rows
    ]
    heads = (
        "model, batch",
        "UM paper",
        "UM ours",
        "DeepUM paper",
        "DeepUM ours",
        "left, paper",
        "left, ours",
        "oracle",
        "past the paper",
    )
    return Section(
        "Page faults in one iteration",
        [
            Chart(
                "faults",
                "Faults left",
                "Share of naive UM's 4 KiB page faults that DeepUM leaves. The scale is "
                "logarithmic above 0.00001 %.",
                "draw_faults",
                1.0 + 0.24 * len(rows),
                full=True,
            ),
            Table(heads, body),
        ],
    )


def _tables(rows: Sequence[Row]) -> Section:
    body = [
        (
            row_name(row),
            _n(row["paper"]["table_mb"]),
            _n(row["ours"]["table_mb"]),
            _quotient(row["ours"]["table_mb"], row["paper"]["table_mb"]),
        )
        for row in rows
    ]
    return Section(
        "Size of the correlation tables, MB",
        [Table(("model, batch", "paper", "ours", "ratio"), body)],
    )


def _energy(data: Data, rows: Sequence[Row]) -> Section:
    body = [
        (
            row_name(row),
            _n(row["paper"]["energy"]),
            _n(row["ours"]["energy"]),
            _quotient(row["ours"]["energy"], row["paper"]["energy"]),
            _n(row["ours"]["lms_energy"]),
        )
        for row in rows
    ]
    if _whole(rows):
        ours = data["energy"]
        body.append(
            (
                "geometric mean",
                _n(paper.ENERGY["chained"]),
                _n(ours["chained"]),
                _quotient(ours["chained"], paper.ENERGY["chained"]),
                f"{_n(ours['lms'])} (paper {_n(paper.ENERGY['lms'])})",
            )
        )
    power = [
        (name.removesuffix("_w").replace("_", " "), f"{watts:g} W", energy.SOURCES[name])
        for name, watts in data["energy"]["power"].items()
    ]
    return Section(
        "Energy, naive UM = 1",
        [
            Text(
                "Power times time, by what the GPU does: it computes, stands still for memory, or "
                "has nothing to do. The paper measured the whole machine at the wall; the "
                "constants below were not fitted to that."
            ),
            Table(("state", "power", "source"), power, left=3, words=True),
            Table(
                ("model, batch", "DeepUM paper", "DeepUM ours", "ratio", "LMS ours"),
                body,
                strong=frozenset({len(rows)}),
            ),
        ],
    )


def _ablation(data: Data, rows: Sequence[Row]) -> Section:
    body = []
    for row in rows:
        known = paper.ABLATION_ROWS.get((row["model"], row["batch"]), (None,) * 3)
        cells = [row_name(row)]
        for theirs, column in zip(known, ("prefetch_s", "pre_evict_s", "chained_s"), strict=True):
            cells += [_n(theirs), _n(ratio(row["ours"][column], row["ours"]["um_s"]))]
        body.append(cells)
    mean = ["geometric mean"]
    for stage in paper.STAGES:
        mean += [_n(paper.ABLATION[stage]), _n(data["ablation"][stage])]
    body.append(mean)
    heads = ["model, batch"]
    heads += [
        f"{stage} {side}"
        for stage in ("prefetching", "+ pre-eviction", "+ invalidation")
        for side in ("paper", "ours")
    ]
    return Section(
        "What each mechanism brings",
        [
            Text("Time relative to naive UM as prefetching, pre-eviction, invalidation are added."),
            Chart(
                "ablation", "Ablation", "Geometric means; shorter is better.", "draw_ablation", 2.4
            ),
            Table(heads, body, strong=frozenset({len(rows)})),
        ],
    )


def _depth(data: Data) -> Section:
    depths = [paper.DEPTH_BASE, *paper.DEPTH]
    ours = {paper.DEPTH_BASE: 1.0, **{int(n): value for n, value in data["depth"].items()}}
    theirs = {paper.DEPTH_BASE: 1.0, **paper.DEPTH}
    body = [
        (str(n), _fixed(theirs.get(n)), _fixed(ours[n]))
        for n in sorted({*depths, *ours})
        if n in ours
    ]
    batches = "" if data["made"]["quick"] else ", the two smallest batches of each model"
    return Section(
        "Prefetch distance",
        [
            Text(
                f"Speed over N = {paper.DEPTH_BASE}, geometric mean over {data['made']['swept']} "
                f"rows of the 32 GB card{batches}. Everywhere else N is {DEPTH}."
            ),
            Chart("depth", "Prefetch distance N", "Higher is better.", "draw_depth", 2.9),
            Table(("N", "paper", "ours"), body),
            *_row_by_row(data["depth_rows"], "N = "),
        ],
    )


def _fixed(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _geometry(data: Data) -> Section:
    body = []
    for shape, theirs in paper.GEOMETRY.items():
        name = ",".join(map(str, shape))
        if name in data["geometry"]:
            body.append((str(shape), _fixed(theirs), _fixed(data["geometry"][name])))
    return Section(
        "Shape of the UM-block tables",
        [
            Text(
                "Speed over (2, 4, 128), geometric mean over the same rows: associativity, "
                "successors, rows. The paper uses (2, 4, 2048), and so does `chained`."
            ),
            Chart("geometry", "Table geometry", "Further right is better.", "draw_geometry", 4.0),
            Table(("shape", "paper", "ours"), body),
            *_row_by_row(data["geometry_rows"], ""),
        ],
    )


def _row_by_row(rows: Mapping[str, Row], what: str) -> list[Text | Points | Table | Chart]:
    """Return the rows on which the value makes a difference of more than 1 %."""
    body = []
    for name, row in rows.items():
        known = [value for value in row.values() if value is not None]
        if known and max(known) > 1.01 * min(known):
            body.append((name, *[_fixed(value) for value in row.values()]))
    if not body:
        return [Text("No row changes by more than 1 %.")]
    heads = ("model, batch", *[f"{what}{value}" for value in next(iter(rows.values()))])
    return [Text("The rows on which it changes more than 1 %:"), Table(heads, body)]


def _batch(value: int | None) -> str:
    return NONE if value is None else batch_text(value)


def _limit(model: str, value: int | None) -> str:
    # In the unit in which the paper gives the model's batches.
    if value is None or model != "DLRM":
        return NONE if value is None else str(value)
    return f"{value // 1024}K"


def _largest(data: Data) -> Section:
    body = []
    for entry in data["largest_batch"]:
        theirs, ours = entry["paper"], entry["ours"]
        paper_chained = theirs["chained" if entry["memory"] == "32 GB" else "DeepUM"]
        tried = max(ours["lms_tried"], default=0)
        lms = _batch(ours["lms"]) if ours["lms"] != 0 else f"< {_batch(min(ours['lms_tried']))}"
        if ours["lms"] and ours["lms"] == tried:
            lms = f"≥ {lms}"
        body.append(
            (
                entry["model"],
                entry["memory"],
                _batch(theirs.get("lms")),
                lms,
                _batch(paper_chained),
                _limit(entry["model"], ours["chained"]),
                _limit(entry["model"], ours["host_limit"]),
                _limit(entry["model"], ours["device_limit"]),
            )
        )
    heads = (
        "model",
        "card",
        "LMS paper",
        "LMS ours",
        "DeepUM paper",
        "DeepUM ours",
        "host holds",
        "device holds",
    )
    return Section(
        "Largest batch",
        [
            Text(
                "With unified memory a batch can grow until the live bytes at the peak no longer "
                "fit the host's memory (512 GiB with the 32 GB card, 128 GiB with the 16 GB card), "
                "or until one kernel touches more than the device holds. Both limits are straight "
                "lines through the traced batches, and the smaller one counts. For LMS it is the "
                "largest traced batch that ran. The paper stopped where its next try failed; "
                "whether such a batch still is faster than swapping was not simulated."
            ),
            Table(heads, body, left=2),
        ],
    )


def _card16(data: Data) -> Section:
    rows = [row for row in data["rows"] if row["memory"] != "32 GB"]
    ours = data["gmean_16gb"]
    mine = {"DeepUM": ours["chained"], "Ideal": ours["ideal"]}
    means = [
        (name, times(value), times(mine.get(name)), _quotient(mine.get(name), value))
        for name, value in paper.GMEAN_16GB.items()
    ]
    body = [
        (
            row_name(row),
            *[_cell(row, f"{name}_s") for name in ("um", "lms", "chained")],
            _cell(row, "past_paper_s") if data["past_paper_options"] else NONE,
            _s(row["ours"]["ideal_s"]),
            _s(row["ours"]["bound_s"]),
            times(speedup(row["ours"], "chained_s")),
            times(speedup(row["ours"], "ideal_s")),
        )
        for row in rows
    ]
    largest = [
        (
            entry["model"],
            *[_batch(entry["paper"][name]) for name in paper.SWAPPERS],
            _limit(entry["model"], entry["ours"]["chained"]),
        )
        for entry in data["largest_batch"]
        if entry["memory"] != "32 GB"
    ]
    refused = sorted(
        {
            f"{row_name(row)}: {failure['reason']}"
            for row in rows
            for name, failure in row["ours"]["failures"].items()
            if name == "um"
        }
    )
    blocks: list[Text | Points | Table | Chart] = [
        Text(
            "The comparison with the swappers of TensorFlow, on a V100 with 16 GB. The paper "
            "prints the geometric means only, and took the five rivals' from the Sentinel paper. "
            "The rows are seconds for 100 iterations, simulated."
        ),
        Chart("card16", "Speed over naive UM", "Longer is better.", "draw_card", 3.2),
        Table(("geometric mean", "paper", "ours", "ratio"), means),
        Table(
            (
                "model, batch",
                "UM",
                "LMS",
                "DeepUM",
                "past the paper",
                "ideal",
                "bound",
                "DeepUM over UM",
                "ideal over UM",
            ),
            body,
        ),
        Text("Largest batches that the paper prints, and ours for DeepUM:"),
        Table(("model", *paper.SWAPPERS, "ours"), largest),
    ]
    if refused:
        blocks += [Text("Rows that do not run:"), Points(refused)]
    return Section("The 16 GB card", blocks)


def _settings(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in options.items())


def _past(data: Data) -> Section:
    options = data["past_paper_options"]
    body = [
        (
            row_name(row),
            row["memory"],
            _cell(row, "chained_s"),
            _cell(row, "past_paper_s") if options else NONE,
            times(ratio(row["ours"]["chained_s"], row["ours"]["past_paper_s"]))
            if options
            else NONE,
            _cell(row, "oracle_s"),
            _s(row["ours"]["bound_s"]),
            _quotient(row["ours"]["chained_s"], row["ours"]["bound_s"]),
            _quotient(row["ours"]["past_paper_s"], row["ours"]["bound_s"]) if options else NONE,
            _quotient(row["ours"]["oracle_s"], row["ours"]["bound_s"]),
        )
        for row in data["rows"]
    ]
    settings = _settings(options)
    trials = [
        (
            name,
            _settings(trial["options"]),
            times(trial["gain"]),
            ", ".join(trial["slower"]) or "none",
        )
        for name, trial in data["past_paper_trials"].items()
    ]
    alone: list[Text | Points | Table | Chart] = []
    if trials:
        alone = [
            Text(
                "What each is worth, over plain `chained`, geometric means over the 32 GB rows. "
                "The last ones take away something that plain `chained` has beyond the paper."
            ),
            Table(
                ("what", "options", "gain", "rows that it slows down"), trials, left=4, words=True
            ),
        ]
    return Section(
        "Past the paper",
        [
            Text(
                f"Options of `chained` beyond the paper's: {settings}. With `next_use` the victim "
                "is what the predicted sequence needs last, and the gate holds back whatever would "
                "push out something needed sooner, for every kernel: the part of a roofline gate "
                "that needs no kernel times, which the engine does not know."
                if options
                else "No option past the paper is switched on in this run."
            ),
            *alone,
            Chart(
                "past",
                "Time over the bound",
                "1 is what no policy can beat. The oracle knows the program.",
                "draw_past",
                1.0 + 0.34 * len(data["rows"]),
                full=True,
            ),
            Table(
                (
                    "model, batch",
                    "card",
                    "chained",
                    "past",
                    "gain",
                    "oracle",
                    "bound",
                    "chained / bound",
                    "past / bound",
                    "oracle / bound",
                ),
                body,
                left=2,
            ),
        ],
    )


def _others(data: Data) -> Section:
    columns = {
        "um_s": "naive UM",
        "hints_s": "with hints",
        "single_level_s": "pair table",
        "levels3_s": "three levels",
        "chained_s": "chained",
    }
    body = [
        (row_name(row), *[_cell(row, column) for column in columns])
        for row in data["rows"]
        if row["memory"] == "32 GB"
    ]
    missing = sorted(
        {
            f"{failure['what']}: {failure['reason']}"
            for row in data["rows"]
            for failure in row["ours"]["failures"].values()
            if failure["what"] != OUT_OF_MEMORY
        }
    )
    blocks: list[Text | Points | Table | Chart] = [
        Text(
            "Beside the paper: naive UM with hand-placed hints (`hints`), and the classic pair "
            "table (`single-level`) with one level and with three. Seconds for 100 iterations."
        ),
        Table(("model, batch", *columns.values()), body),
    ]
    if missing:
        blocks += [Text("What did not run, and why:"), Points(missing)]
    return Section("Other policies", blocks)


def _g10(data: Data) -> Section:
    if not data["g10"]:
        return Section("G10's traces", [Text("Not run.")])
    body = []
    for entry in data["g10"]:
        published = entry.get("published", {})
        ideal = entry.get("ideal_s")
        body.append(
            (
                str(entry.get("trace", "?")),
                *[
                    _quotient(entry.get(f"{name}_s"), ideal)
                    for name in ("noop", "chained", "oracle")
                ],
                *[_n(published.get(name)) for name in ("noop", "deepum_plus", "g10")],
            )
        )
    return Section(
        "G10's traces",
        [
            Text(
                "Time over ideal, on the public traces and with the machine constants of G10 "
                "(MICRO 2023). Its DeepUM+ is an oracle that looks 8 kernels ahead; `chained` "
                "learns."
            ),
            Table(
                (
                    "trace",
                    "noop",
                    "chained",
                    "oracle",
                    "published UVM",
                    "published DeepUM+",
                    "published G10",
                ),
                body,
            ),
        ],
    )


def _where(data: Data) -> Section:
    parts = ("compute_s", "stall_fault_s", "stall_evict_s", "stall_late_s", "host_s")
    body = []
    for row in data["rows"]:
        spent, traffic = row["ours"]["time"], row["ours"]["traffic_gb"]
        for run, name in (("um", "naive UM"), ("chained", "chained"), ("past_paper", "past")):
            if run not in spent or (run == "past_paper" and not data["past_paper_options"]):
                continue
            total = sum(spent[run].values())
            body.append(
                (
                    row_name(row) if run == "um" else "",
                    name,
                    *[percent(ratio(spent[run][part], total)) for part in parts],
                    _n(traffic[run]["in"]),
                    _n(traffic[run]["out"]),
                    _n(traffic["bound"]["in"]) if "bound" in traffic else NONE,
                    _n(traffic["bound"]["out"]) if "bound" in traffic else NONE,
                )
            )
    return Section(
        "Where the time goes",
        [
            Text(
                "The evidence behind hits and misses: shares of a step's time, and GB over the bus "
                "in one iteration beside the least that any policy must move."
            ),
            Table(
                (
                    "model, batch",
                    "run",
                    "compute",
                    "faults",
                    "eviction",
                    "late prefetch",
                    "host",
                    "GB in",
                    "GB out",
                    "least in",
                    "least out",
                ),
                body,
                left=2,
            ),
        ],
    )


def _calibration(rows: Sequence[Row]) -> list[Section]:
    try:
        calibration: Any = importlib.import_module("deepum.reproduce.calibration")
    except ModuleNotFoundError:
        return []
    fitted = set(calibration.CALIBRATED_ON)
    body = []
    off: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        used = bool(fitted & {row["trace"], row_name(row)})
        cells = [row_name(row), "fitted" if used else "predicted"]
        for column in ("um_s", "ideal_s"):
            value = ratio(row["ours"][column], row["paper"][column])
            cells.append(NONE if value is None else f"{value:.2f}")
            if value is not None:
                off[used].append(max(value, 1 / value))
        body.append(cells)
    means = {used: gmean(values) for used, values in off.items()}
    blocks: list[Text | Points | Table | Chart] = []
    words = getattr(calibration, "TEXT", "")
    blocks += [Text(part.replace("\n", " ")) for part in words.strip().split("\n\n") if part]
    blocks += [
        Text(
            f"Typical factor between ours and the paper's: {times(means[True])} on the rows that "
            f"were fitted, {times(means[False])} on those that were not."
        ),
        Table(("model, batch", "", "UM, ours / paper", "ideal, ours / paper"), body, left=2),
    ]
    return [Section("Calibration", blocks)]


def _how(data: Data) -> Section:
    made = data["made"]
    command = "deepum reproduce" + (" --quick" if made["quick"] else "")
    return Section(
        "How it was made",
        [
            Points(
                [
                    f"Made by `{command}` of deepum {made['deepum']}: {made['runs']} runs.",
                    (
                        f"`chained` runs {LEARNING_ITERATIONS} iterations, its variants "
                        f"{OPTION_ITERATIONS}, LMS and LMS-mod {SWAPPER_ITERATIONS} (patches from "
                        f"1.4: {LEARNING_ITERATIONS}), everything else {ITERATIONS}, the sweeps "
                        "too; the mean of the last third counts."
                    ),
                    (
                        "Machines: the profiles `v100-pcie3-32g` and `v100-pcie3-16g`. Nothing in "
                        "them depends on the model or on the policy."
                    ),
                    (
                        "The models were traced without a GPU (`deepum info` lists the traces); "
                        "kernel times come from FLOPs and bytes."
                    ),
                    (
                        "Not compared, for want of a counterpart: the five swappers of the 16 GB "
                        "card, whose figures the paper itself took from elsewhere."
                    ),
                ]
            )
        ],
    )


def chart_function(chart: Chart) -> Callable[[Any, Data], Any]:
    """Return the function that draws a chart; loads the plotting code."""
    from deepum.report import reproduction

    draw: Callable[[Any, Data], Any] = getattr(reproduction, chart.draw)
    return draw

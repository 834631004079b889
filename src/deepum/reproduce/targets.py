# SPDX-License-Identifier: Apache-2.0
"""What counts as reproduced: each target, what came out, and whether it was met."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from deepum.report.numbers import count, percent, significant, times
from deepum.reproduce import paper
from deepum.reproduce.plan import TRANSFORMERS, batch_text
from deepum.reproduce.runner import OUT_OF_MEMORY
from deepum.reproduce.statistics import gmean, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]

NOT_RUN = "not run"

SLOWER = 1.001
"""What counts as slower: less is below what two ways of adding the same times can differ by."""


def row_name(row: Row) -> str:
    """Return model and batch."""
    return f"{row['model']} {batch_text(row['batch'])}"


def judge(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every target: its key, what it is about, the target, ours, met, and who misses it.

    `met` is None where nothing was run that could tell.
    """
    rows = [row for row in data["rows"] if row["memory"] == "32 GB"]
    return [
        *_speedups(data, rows),
        *_faults(rows),
        *_ablation(data),
        *_sweeps(data),
        _tables(rows),
        *_past_paper(data, rows),
        *_g10(data["g10"]),
    ]


def _target(
    key: str, what: str, target: str, ours: str, met: bool | None, missing: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "key": key,
        "what": what,
        "target": target,
        "ours": ours if met is not None else NOT_RUN,
        "met": met,
        "missing": list(missing),
    }


def _within(value: float | None, wanted: float | None, share: float) -> bool | None:
    if value is None or wanted is None:
        return None
    return abs(value / wanted - 1) <= share


def _number(value: float | None) -> str:
    return NOT_RUN if value is None else significant(value)


def _each(
    rows: Sequence[Row], value: Callable[[Row], float | None], good: Callable[[float], bool]
) -> tuple[bool | None, list[str], dict[str, float]]:
    """Return whether all rows are good, the names of those that are not, and the values."""
    found = {row_name(row): got for row in rows if (got := value(row)) is not None}
    bad = [f"{name} ({significant(got)})" for name, got in found.items() if not good(got)]
    return (not bad if found else None), bad, found


def _faster(row: Row, side: str) -> float | None:
    return ratio(row[side].get("um_s"), row[side].get("chained_s"))


def _speedups(data: Mapping[str, Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
    whole = len(rows) == len(paper.ROWS)
    wanted = paper.GMEAN["chained"] if whole else gmean(_faster(row, "paper") for row in rows)
    # The paper's mean is over the rows on which its LMS ran; like is compared with like.
    swapped = data["lms_compared"]["lms"]
    ours = data["gmean"]
    met, bad, off = _each(
        rows,
        lambda row: ratio(_faster(row, "ours"), _faster(row, "paper")),
        lambda value: abs(value - 1) <= 0.35,
    )
    worst = max(off.items(), key=lambda item: abs(item[1] - 1), default=("", 1.0))
    rank = data["rank_correlation"]
    return [
        _target(
            "speedup",
            "Speedup of DeepUM (chained) over naive UM, geometric mean",
            f"{_number(wanted)} ± 10 %",
            times(ours["chained"]),
            _within(ours["chained"], wanted, 0.10),
        ),
        _target(
            "points",
            "The same on every row",
            "within 35 % of the paper's",
            f"{len(off) - len(bad)} of {len(off)} rows; furthest {worst[0]}, "
            f"{significant(worst[1])} of the paper's",
            met,
            bad,
        ),
        _target(
            "rank",
            "Rank correlation of these speedups with the paper's",
            "≥ 0.85",
            _number(rank),
            None if rank is None else rank >= 0.85,
        ),
        _target(
            "lms",
            "Speedup of LMS over naive UM, geometric mean of the rows on which both ran",
            f"{_number(swapped['paper'])} ± 15 %",
            f"{times(swapped['ours'])} ({swapped['rows']} rows)",
            _within(swapped["ours"], swapped["paper"], 0.15),
        ),
        _oom(rows),
    ]


def _oom(rows: Sequence[Row]) -> dict[str, Any]:
    known = [
        row
        for row in rows
        if row["ours"]["lms_s"] is not None
        or row["ours"]["failures"].get("lms", {}).get("what") == OUT_OF_MEMORY
    ]
    ours = {row_name(row) for row in known if row["ours"]["lms_s"] is None}
    theirs = {row_name(row) for row in known if row["paper"]["lms_s"] is None}
    odd = sorted(ours ^ theirs)
    return _target(
        "lms-oom",
        "Rows on which LMS runs out of memory",
        f"the paper's {sum(row['paper']['lms_s'] is None for row in known or rows)}, "
        "give or take two",
        f"{len(ours)}, of which {len(ours & theirs)} are the paper's",
        len(odd) <= 2 if known else None,
        [f"{name} ({'ours' if name in ours else 'the paper'} alone)" for name in odd],
    )


def fault_share(figures: Row) -> float | None:
    """Return the share of naive UM's faults that is left; 0 if there are none at all."""
    left = figures.get("faults_chained")
    return 0.0 if left == 0 else ratio(left, figures.get("faults_um"))


def _faults(rows: Sequence[Row]) -> list[dict[str, Any]]:
    over = [
        f"{row_name(row)} ({_share(row['ours'])} for {_share(row['paper'])})"
        for row in rows
        if row["ours"]["faults_chained"] is not None
        and not _no_more(fault_share(row["ours"]), fault_share(row["paper"]))
    ]
    ran = [row for row in rows if row["ours"]["faults_chained"] is not None]
    first = next((row for row in ran if row_name(row) == "GPT-2 XL 3"), None)
    pages = None if first is None else first["ours"]["faults_chained"]
    limit = paper.ROWS[0].faults_chained
    return [
        _target(
            "faults",
            "Faults left, as a share of naive UM's",
            "at most the paper's share on every row",
            f"{len(ran) - len(over)} of {len(ran)} rows",
            not over if ran else None,
            over,
        ),
        _target(
            "faults-xl",
            "Page faults an iteration, GPT-2 XL batch 3",
            f"≤ {limit}",
            NOT_RUN if pages is None else count(pages),
            None if pages is None else pages <= limit,
        ),
    ]


def _share(figures: Row) -> str:
    share = fault_share(figures)
    return "some" if share is None else f"{significant(share * 100)} %"


def _no_more(ours: float | None, theirs: float | None) -> bool:
    # Faults where naive UM has none are more than any share.
    return ours is not None and theirs is not None and ours <= theirs


_STAGE_NAMES = {
    "prefetch": "prefetching alone",
    "pre_evict": "with pre-eviction",
    "invalidate": "with invalidation",
}


def _ablation(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole = not data["made"]["quick"]
    made = []
    for stage in paper.STAGES:
        ours, wanted = data["ablation"][stage], paper.ABLATION[stage]
        made.append(
            _target(
                f"ablation-{stage}",
                f"Time relative to naive UM, {_STAGE_NAMES[stage]}",
                f"{wanted:.3f} ± 0.05",
                _number(ours),
                None if ours is None or not whole else abs(ours - wanted) <= 0.05,
            )
        )
    return made


def _sweeps(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    # A quick run sweeps too few values to say which is best.
    whole = not data["made"]["quick"]
    depth = {int(n): value for n, value in data["depth"].items() if value is not None}
    best = max(depth, key=lambda n: depth[n], default=0)
    gain = depth.get(best)
    shapes = {shape: value for shape, value in data["geometry"].items() if value is not None}
    used = shapes.get(",".join(map(str, paper.GEOMETRY_USED)))
    spread = max(shapes.values()) / min(shapes.values()) - 1 if shapes else None
    behind = max(shapes.values()) / used - 1 if used else None
    return [
        _target(
            "depth-best",
            "Best prefetch distance N, geometric mean",
            "16 to 64",
            str(best),
            16 <= best <= 64 if depth and whole else None,
        ),
        _target(
            "depth-gain",
            "Gain of the best N over N = 8",
            "1.1 to 1.3",
            times(gain),
            None if gain is None or not whole else 1.1 <= gain <= 1.3,
        ),
        _target(
            "geometry-spread",
            "Spread over the table geometries",
            "< 10 %",
            percent(spread),
            None if spread is None or not whole else spread < 0.10,
        ),
        _target(
            "geometry-used",
            "(2, 4, 2048) behind the best geometry",
            "≤ 1 %",
            percent(behind),
            None if behind is None or not whole else behind <= 0.01,
        ),
    ]


def _tables(rows: Sequence[Row]) -> dict[str, Any]:
    met, bad, found = _each(
        rows,
        lambda row: ratio(row["ours"]["table_mb"], row["paper"]["table_mb"]),
        lambda value: value <= 1,
    )
    return _target(
        "tables",
        "Size of the tables",
        "no larger than the paper's on every row",
        f"{len(found) - len(bad)} of {len(found)} rows; at most "
        f"{percent(max(found.values(), default=0))} of the paper's",
        met,
        bad,
    )


def _past_paper(data: Mapping[str, Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
    on = bool(data["past_paper_options"])
    gain = gmean(ratio(row["ours"]["chained_s"], row["ours"]["past_paper_s"]) for row in rows)
    near, far, over = _each(
        [row for row in rows if row["model"] in TRANSFORMERS],
        lambda row: ratio(row["ours"]["past_paper_s"], row["ours"]["bound_s"]),
        lambda value: value <= 1.15,
    )
    faster, slower, change = _each(
        rows,
        lambda row: ratio(row["ours"]["past_paper_s"], row["ours"]["chained_s"]),
        lambda value: value <= SLOWER,
    )
    return [
        _target(
            "past-gain",
            "Past the paper: speedup over plain chained, geometric mean",
            "≥ 1.25×",
            times(gain),
            None if gain is None or not on else gain >= 1.25,
        ),
        _target(
            "past-bound",
            "Past the paper: time over the bus bound, transformers",
            "≤ 1.15× on every row",
            f"{len(over) - len(far)} of {len(over)} rows; at most "
            f"{times(max(over.values(), default=0))}",
            near if on else None,
            far if on else (),
        ),
        _target(
            "past-slower",
            "Past the paper: rows slower than plain chained",
            "none",
            f"{len(slower)} of {len(change)} rows",
            faster if on else None,
            slower if on else (),
        ),
    ]


def _g10(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    order = ("ideal_s", "oracle_s", "chained_s", "noop_s")
    timed = {
        str(entry.get("trace", "?")): [entry[name] for name in order]
        for entry in entries
        if all(entry.get(name) is not None for name in order)
    }
    wrong = [
        name
        for name, values in timed.items()
        if any(low > high * SLOWER for low, high in itertools.pairwise(values))
    ]
    behind = {
        str(entry["trace"]): value
        for entry in entries
        if str(entry.get("trace", "?")) in timed
        and (
            value := ratio(
                ratio(entry["oracle_s"], entry["ideal_s"]), entry.get("published", {}).get("g10")
            )
        )
        is not None
    }
    late = [name for name, value in behind.items() if value > SLOWER]
    off = {
        str(entry["trace"]): ratio(
            ratio(entry["noop_s"], entry["ideal_s"]), entry.get("published", {}).get("noop")
        )
        for entry in entries
        if str(entry.get("trace", "?")) in timed
        and str(entry["trace"]).upper().startswith(("BERT", "VIT"))
    }
    known = {name: value for name, value in off.items() if value is not None}
    bad = [name for name, value in known.items() if abs(value - 1) > 0.35]
    return [
        _target(
            "g10-order",
            "G10's traces: ideal ≤ oracle ≤ chained ≤ noop",
            "on every trace",
            f"{len(timed) - len(wrong)} of {len(timed)} traces",
            not wrong if timed else None,
            wrong,
        ),
        _target(
            "g10-oracle",
            "G10's traces: oracle no slower than G10's published time",
            "on every trace",
            f"{len(behind) - len(late)} of {len(behind)} traces",
            not late if behind else None,
            [f"{name} ({significant(behind[name])})" for name in late],
        ),
        _target(
            "g10-ratio",
            "G10's traces: noop over ideal, BERT and VIT",
            "within 35 % of the published ratio",
            ", ".join(f"{name} {significant(value)}" for name, value in known.items())
            + " of the published",
            not bad if known else None,
            bad,
        ),
    ]

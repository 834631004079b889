# SPDX-License-Identifier: Apache-2.0
"""What ``deepum demo --live`` shows: a table of training steps, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepum.report.numbers import count, seconds, significant, size
from deepum.report.tables import Grid, columns_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table


def live_table(results: Mapping[str, Any]) -> Grid:
    """One row for each policy and step: time, faults, and how long threads waited for blocks."""
    ratio = significant(results["peak_bytes"] / results["budget_bytes"])
    title = (
        f"peak {size(results['peak_bytes'])} in {size(results['budget_bytes'])} ({ratio}×); "
        "blocks of 2 MiB"
    )
    grid = Grid(
        title,
        ("policy", "step", "time", "faults", "waits for\na prefetch", "waited",
         "prefetched", "evicted\nin a fault", "evicted\nahead"),
        first_to_go=(8, 7, 6, 5, 4),
    )  # fmt: skip
    for step, time_s in enumerate(results["ordinary_time_s"]):
        name = "(ordinary memory)" if step == 0 else ""
        grid.add(name, str(step + 1), seconds(time_s), *[""] * 6, style="dim")
    for run in results["runs"]:
        for step, done in enumerate(run["iterations"]):
            grid.add(
                run["policy"] if step == 0 else "",
                str(step + 1),
                seconds(done["time_s"]),
                count(done["faults"]),
                count(done["late"]),
                seconds(done["stall_s"]),
                count(done["prefetched"]),
                count(done["fault_evictions"]),
                count(done["pre_evictions"]),
            )
    return grid


def sentences(results: Mapping[str, Any]) -> list[str]:
    """Say what the table shows."""
    last = {run["policy"]: run["iterations"][-1] for run in results["runs"]}
    noop, chained = last["noop"], last["chained"]
    equal = "the same" if results["bitwise_equal"] else "NOT the same"
    faults = (
        f"Faults in the last step: {count(noop['faults'])} under noop, "
        f"{count(last['single-level']['faults'])} under single-level, "
        f"{count(chained['faults'])} under chained."
    )
    took = (
        f"Its time: {seconds(noop['time_s'])}, {seconds(last['single-level']['time_s'])} and "
        f"{seconds(chained['time_s'])}; in ordinary memory "
        f"{seconds(results['ordinary_time_s'][-1])}."
    )
    return [
        faults,
        took,
        f"The weights after training are, bit by bit, {equal} as in ordinary memory.",
    ]


_COSTS = {
    "copy": "bare copy of a block",
    "prefetch": "brought ahead",
    "evict": "taken out ahead",
    "fault_empty": "fault: an empty frame",
    "fault_in": "fault: contents from the store",
    "fault_evict": "fault: another block out first",
}


def cost_table(figures: Mapping[str, Mapping[str, float]]) -> Table:
    """One row for each way in which a block moves, next to the bare copy."""
    rows = [
        (
            _COSTS[name],
            seconds(figure["median_s"]),
            seconds(figure["best_s"]),
            f"{1 / figure['best_s']:,.0f}/s",
            f"{figure['ratio']:.2f}× ({figure['ratio_low']:.2f} to {figure['ratio_high']:.2f})",
        )
        for name, figure in figures.items()
    ]
    heads = ("what", "median", "best round", "blocks", "of the copy before it (quartiles)")
    return columns_table("Blocks of 2 MiB, each", heads, rows)

# SPDX-License-Identifier: Apache-2.0
"""Choose the defaults of memory mode vmm in the simulator: chunk size, queue, depth.

    python bench/vmm_defaults.py --json bench/results/sim-vmm.json --plot docs/vmm-defaults.svg

It prints the tables of docs/vmm-defaults.md. All of it is prediction.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from deepum.backends.results import Bound, Run
from deepum.commands.runs import Task, cores, perform_all, progress
from deepum.machine import Machine
from deepum.report.study import steady
from deepum.trace import Trace

TRACE = Path(__file__).parent / "traces" / "gpt2-xl-bf16-b4.trace"
RATIOS = (1.0, 1.25, 1.5, 2.0, 4.0)
CHUNKS = (2, 8, 16, 32, 128)
AHEAD = (0, 16, 64, 256, 1000)
DEPTHS = (1, 8, 32, 128, 512, 1023)

QUEUE = ("arguments", {}, 32)
TABLES = ("chained", {}, 32)
DEEP = ("chained", {}, 1023)
NEXT_USE = ("chained", {"next_use": True}, 32)
ORACLE = ("oracle", {}, 32)
NAMES = {"arguments": "queue alone", "oracle": "oracle"}


def name(policy: tuple[str, dict[str, Any], int]) -> str:
    """Return what a policy is called in the tables."""
    known = f"chained, depth {policy[2]}"
    return "chained, next use" if policy[1] else NAMES.get(policy[0], known)


class Sweep:
    """Tasks by a key, done all at once."""

    def __init__(self, trace: str, machine: Machine, iterations: int) -> None:
        self.trace, self.machine, self.iterations = trace, machine, iterations
        self.peak = Trace.load(trace).peak_bytes
        self.tasks: dict[tuple[Any, ...], Task] = {}
        self.found: dict[tuple[Any, ...], Any] = {}

    def add(
        self, *key: Any, ratio: float, mode: str = "vmm", policy: Any = None,
        timeline: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        """Ask for one simulation, or for the bound where no policy is named."""
        self.tasks[key] = Task(
            self.trace,
            self.machine,
            int(self.peak / ratio),
            self.iterations,
            policy=policy and policy[0],
            options={**policy[1], **more} if policy else {},
            depth=policy[2] if policy else 32,
            timeline=timeline,
            memory_mode=mode,
        )

    def run(self, jobs: int) -> None:
        """Do what was asked for, each different task once."""
        different = list({repr(task): task for task in self.tasks.values()}.values())
        with progress(len(different)) as done:
            results = perform_all(different, jobs, done)
        found = {repr(task): result for task, (result, _) in zip(different, results, strict=True)}
        self.found = {key: found[repr(task)] for key, task in self.tasks.items()}

    def seconds(self, *key: Any) -> float:
        """Return seconds a step, or the bound."""
        result = self.found[key]
        return result.bound_s if isinstance(result, Bound) else steady(result).time_s

    def to_json(self) -> list[dict[str, Any]]:
        """Return one row for each simulation."""
        rows = []
        for key, result in self.found.items():
            task = self.tasks[key]
            row: dict[str, Any] = {
                "sweep": key[0], "memory_bytes": task.memory, "memory_mode": task.memory_mode,
                "policy": task.policy, "depth": task.depth, "options": task.options,
            }  # fmt: skip
            if isinstance(result, Run):
                mean = steady(result)
                row.update(
                    time_s=mean.time_s, bytes_in=mean.bytes_in, bytes_out=mean.bytes_out,
                    bytes_dropped=mean.bytes_dropped, stall_late_s=mean.stall_late_s,
                    stall_evict_s=mean.stall_evict_s,
                )  # fmt: skip
            else:
                row.update(
                    bound_s=result.bound_s, ideal_s=result.ideal_s, bytes_in=result.bytes_in,
                    bytes_out=result.bytes_out,
                )  # fmt: skip
            rows.append(row)
        return rows


def table(heads: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def ask(sweep: Sweep) -> None:
    """Fill in all that is looked at."""
    for ratio in RATIOS:
        sweep.add("modes", "bound", ratio, ratio=ratio)
        for policy in (("noop", {}, 32), TABLES):
            key = ("modes", f"managed {policy[0]}", ratio)
            sweep.add(*key, ratio=ratio, mode="managed", policy=policy)
        for policy in (QUEUE, TABLES, DEEP, NEXT_USE, ORACLE):
            sweep.add("modes", f"vmm {name(policy)}", ratio, ratio=ratio, policy=policy)
    for policy in (QUEUE, TABLES, DEEP, ORACLE):
        for chunk in CHUNKS:
            sweep.add("chunk", name(policy), chunk, ratio=2.0, policy=policy, chunk_mib=chunk)
        for ahead in AHEAD:
            sweep.add("ahead", name(policy), ahead, ratio=2.0, policy=policy, ahead=ahead)
    for ahead in (0, 16, 64, 256):
        for depth in DEPTHS:
            key = ("depth", f"chained, {ahead} submitted", depth)
            sweep.add(*key, ratio=2.0, policy=("chained", {}, depth), ahead=ahead)
    sweep.add("timeline", ratio=2.0, policy=ORACLE, timeline=True)


def say(sweep: Sweep) -> None:
    """Print the tables."""
    rows = []
    modes = list(dict.fromkeys(key[1] for key in sweep.found if key[0] == "modes"))
    for mode in modes:
        cells = []
        for ratio in RATIOS:
            seconds = sweep.seconds("modes", mode, ratio)
            over = seconds / sweep.seconds("modes", "bound", ratio)
            cells.append(f"{seconds:.3f}" if mode == "bound" else f"{seconds:.3f} ({over:.2f}×)")
        rows.append([mode, *cells])
    table(["seconds a step (over the bound)", *(f"{ratio:g}×" for ratio in RATIOS)], rows)
    for what in ("chunk", "ahead", "depth"):
        values = list(dict.fromkeys(key[2] for key in sweep.found if key[0] == what))
        series = list(dict.fromkeys(key[1] for key in sweep.found if key[0] == what))
        rows = [[one, *(f"{sweep.seconds(what, one, v):.3f}" for v in values)] for one in series]
        table([what, *map(str, values)], rows)


def draw(sweep: Sweep, path: Path) -> None:
    """Plot the three sweeps at 2x beside the bound."""
    from deepum.report import palette
    from deepum.report.plots import _drawing, _figure

    labels = {
        "chunk": "largest chunk, MiB",
        "ahead": "launches submitted behind the running one",
        "depth": "policy's depth, kernels",
    }
    shades = ("orange", "blue", "purple", "green")
    with _drawing():
        figure = _figure(9.5, 6.4)
        panels = figure.subplots(2, 2).flatten()
        for axes, (what, label) in zip(panels[:3], labels.items(), strict=True):
            values = list(dict.fromkeys(key[2] for key in sweep.found if key[0] == what))
            series = list(dict.fromkeys(key[1] for key in sweep.found if key[0] == what))
            for one, shade in zip(series, shades, strict=True):
                heights = [sweep.seconds(what, one, value) for value in values]
                axes.plot(
                    range(len(values)), heights, marker="o", markersize=4, label=one,
                    color=palette.light(shade),
                )  # fmt: skip
            bound = sweep.seconds("modes", "bound", 2.0)
            axes.axhline(bound, color=palette.light("muted"), linestyle="--", linewidth=1)
            axes.annotate("bound", (0.01, bound), xycoords=("axes fraction", "data"), va="bottom")
            axes.set_xticks(range(len(values)), map(str, values))
            axes.set_xlabel(label)
            axes.set_ylabel("seconds a step")
            axes.set_ylim(bottom=0)
            above = {"loc": "lower left", "bbox_to_anchor": (0, 0.3)}
            axes.legend(**({"loc": "upper right"} if what == "chunk" else above))
        timeline = sweep.found[("timeline",)].timeline
        for way, direction in (("in", timeline.bytes_in), ("out", timeline.bytes_out)):
            colour = palette.light(palette.DIRECTIONS[way])
            panels[3].plot(timeline.time_s, direction / 1e9, label=way, color=colour)
        panels[3].set_xlabel("seconds into the step, oracle")
        panels[3].set_ylabel("GB moved so far")
        panels[3].legend()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Sweep, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", default=str(TRACE))
    parser.add_argument("--machine", default="h200-pcie5")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--json")
    parser.add_argument("--plot")
    given = parser.parse_args()
    sweep = Sweep(given.trace, Machine.load(given.machine), given.iterations)
    ask(sweep)
    sweep.run(given.jobs)
    say(sweep)
    if given.json:
        data = {
            "command": f"python bench/vmm_defaults.py --iterations {given.iterations}",
            "trace": Path(given.trace).name, "peak_bytes": sweep.peak,
            "machine": given.machine, "prediction": True, "rows": sweep.to_json(),
        }  # fmt: skip
        Path(given.json).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if given.plot:
        draw(sweep, Path(given.plot))


if __name__ == "__main__":
    main()

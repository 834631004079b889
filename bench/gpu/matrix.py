# SPDX-License-Identifier: Apache-2.0
"""All points of a plan, one after another, each in a process of its own."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import child
import plan

KEY = ("model", "batch", "mode", "ratio", "steps")
ALWAYS = {
    "step_s": None, "step_s_all": [], "bound_s": None, "bytes_in": None, "bytes_out": None,
    "bytes_dropped": None, "faults": None, "bitwise_equal": None,
}  # fmt: skip
"""What a point has even if it did not run."""
GIB = 2**30


@dataclass(frozen=True)
class How:
    """How the points of a plan are run."""

    script: str
    steps: int
    warmup: int
    timeout: float
    options: dict = field(default_factory=dict)
    repeat: bool = False
    bound: bool = True
    whole_rows: bool = False
    """Whether points that did not run have all fields too."""
    options_for: tuple[str, ...] = ()
    """The modes that the options are for; all of them, if none is named."""
    traces: Path | None = None
    """Folder for a trace of each session."""


def run(wanted: list[plan.Point], results: child.Results, how: How) -> None:
    """Measure what `results` does not have yet; a model's native point comes before its others."""
    common = {"steps": how.steps, "warmup": how.warmup, "options": how.options, "trace": ""}
    with tempfile.TemporaryDirectory() as folder:  # of recorded working sets
        native: dict = {}
        for point in wanted:
            task = {**common, "model": point.model, "batch": point.batch, "mode": point.mode}
            if how.options_for and point.mode not in how.options_for:
                task["options"] = {}
            done = results.find(
                model=point.model, batch=batch_of(point), mode=point.mode, ratio=point.ratio,
                steps=how.steps,
            )  # fmt: skip
            if point.ratio is None:
                native = done or results.add(measure(task, how))
                if how.repeat and not done and "check" in native:
                    again = measure(task, how)
                    native["bitwise_equal"] = again.get("check") == native["check"]
                common["trace"] = str(Path(folder) / f"{point.model}.trace")
            elif native.get("step_s") and not done:
                limit = plan.limit(native["peak_bytes"], native["reserved_bytes"], point.ratio)
                made = impossible(task | {"limit": limit}, how)
                if made is None:
                    if how.bound and not Path(common["trace"]).exists():
                        record(task | {"trace": common["trace"]}, how)
                    if how.traces:
                        name = f"{point.model}-{point.mode}-{point.ratio:g}".replace(":", "-")
                        task["live_trace"] = str(how.traces / f"{name}.trace")
                    made = measure(task | {"limit": limit, "native_s": native["step_s"]}, how)
                made["ratio"] = point.ratio
                if made.get("check") and len(made["losses"]) == len(native["losses"]):
                    made["bitwise_equal"] = made["check"] == native["check"]
                compare_losses(made, native)
                results.add(made)


def compare_losses(made: dict, native: dict) -> None:
    """Say whether the losses of the steps that both points have are the same, bit by bit."""
    both = min(len(made.get("losses", ())), len(native["losses"]))
    if both and made.get("check"):
        made["losses_equal"] = made["losses"][:both] == native["losses"][:both]


def batch_of(point: plan.Point) -> int:
    """Return a point's batch size, the model's own if none was asked for."""
    from models import MODELS

    return point.batch or MODELS[point.model][1]


def base(task: dict, how: How) -> dict:
    """Return what is known of a point before it runs."""
    known = {key: task.get(key) for key in ("model", "batch", "mode", "steps")}
    if task["mode"] in plan.ALTERNATIVES:
        from alternatives import ALTERNATIVES

        known["lines_changed"] = ALTERNATIVES[task["mode"]].lines_changed
    return known | (ALWAYS if how.whole_rows else {}) | {"limit_bytes": task.get("limit")}


def measure(task: dict, how: How) -> dict:
    """Run one point in a process of its own and print it."""
    point = base(task, how) | child.run(how.script, task, how.timeout)
    show(point)
    return point


def impossible(task: dict, how: How) -> dict | None:
    """Return the point of an alternative that cannot run here, saying why; None for all others."""
    if task["mode"] not in plan.ALTERNATIVES:
        return None
    from alternatives import ALTERNATIVES

    reason = ALTERNATIVES[task["mode"]].why_not(task["model"])
    if not reason:
        return None
    point = base(task, how) | {"error": reason}
    show(point)
    return point


def record(task: dict, how: How) -> None:
    """Record a model's working sets into ``task["trace"]``, in a process of its own."""
    made = child.run(how.script, {**task, "mode": "record", "options": {}}, how.timeout)
    if "error" in made:
        print(f"{task['model']}: no working sets, so no bound: {made['error']}", flush=True)
        print(made.get("stderr", "")[-600:], flush=True)
        Path(task["trace"]).write_text("", "utf-8")  # once is enough


def show(point: dict) -> None:
    """Print a point on a line."""
    limit = point.get("limit_bytes")
    head = f"{point['model']:12} {point['mode']:28} {limit / GIB if limit else 0:6.1f} GiB"
    if "error" in point:
        print(f"{head} {point['error']}\n{point.get('stderr', '')}", flush=True)
        return
    if point.get("out_of_memory"):
        print(f"{head} out of memory: {point['reason']}", flush=True)
        return
    bound = point.get("bound_s")

    def size(key: str) -> str:
        return "     ?" if point[key] is None else f"{point[key] / GIB:6.1f}"

    print(
        f"{head} {point['step_s']:8.3f} s/step"
        f" (bound {f'{bound:.3f}' if bound else '?'})  faults {point['faults']:9.0f}"
        f" ({point['blocks_faulted']:6.0f} blocks, {point['misses']:6.0f} misses)"
        f"  in {size('bytes_in')} out {size('bytes_out')}"
        f" dropped {size('bytes_dropped')} GiB  equal {point.get('bitwise_equal')}"
        f"  first {point['step_s_all'][0]:.2f}",
        flush=True,
    )
    if point.get("notes"):
        print("   ", point["notes"], flush=True)

# SPDX-License-Identifier: Apache-2.0
"""Train under managed memory and measure: native, noop, single-level, chained, arguments.

    python bench/gpu/managed.py --models gpt2-xl,bert-large --ratios 1,1.5,2,3 --json FILE
    python bench/gpu/managed.py --models gpt2-xl --ratios 2 --modes chained --ablation --json FILE
    python bench/gpu/managed.py --models gpt2-xl --plan

Each point runs in a process of its own with a timeout of its own, and the file is written after
each; `--resume` goes on where an interrupted run stopped. The memory limit is the model's native
peak divided by the ratio (at 1.0x: what the allocator reserved, and 5 %). `bound_s` comes from
the working sets of a recorded run: bound.py has the formula.

`noop` is plain managed memory, evicting the least recently migrated blocks in reaction to faults.
It is treated more kindly than the driver treats a full card: a fault does not wait for an
eviction, only the launches after it do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import sys
import threading
import time
from pathlib import Path

import child
import click
import plan

COUNTS = ("fault_records", "faults", "misses", "bytes_in", "bytes_out", "bytes_dropped", "launches")
NOTES = (
    "gates_squeezed", "gates_overdue", "waits_given_up", "failure", "set_aside", "move_errors",
    "last_move_error", "unseen_launches", "lost_events", "lost_faults", "drops_refused",
    "busy_in_s", "busy_out_s", "streams", "prefetch_used", "prefetched", "late", "wasted",
    "pre_evicted", "demand_evicted", "refused", "table_bytes", "moves_in", "moves_out",
    "last_overdue",
)  # fmt: skip
KEY = ("model", "batch", "mode", "ratio", "steps")
GIB = 2**30
RECORDED = 4  # steps


@click.command()
@click.option("--models", default="gpt2-small", show_default=True)
@click.option("--ratios", default="1,1.5,2,3", show_default=True)
@click.option("--modes", default=",".join(plan.MODES), show_default=True)
@click.option("--ablation", is_flag=True, help="Also chained with fewer mechanisms.")
@click.option("--steps", default=5, show_default=True)
@click.option("--warmup", default=4, show_default=True)
@click.option("--batch", type=int, help="Batch size instead of the model's own.")
@click.option("--timeout", default=240.0, show_default=True, help="Seconds for one point.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON")
@click.option("--repeat", is_flag=True, help="Run native twice: is it reproducible at all?")
@click.option("--no-bound", is_flag=True, help="Do not record working sets for bound_s.")
@click.option("--resume", is_flag=True, help="Keep the points that the file has already.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the points and run none.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(
    models, ratios, modes, ablation, steps, warmup, batch, timeout, options, repeat, no_bound,
    resume, only_plan, output,
):  # fmt: skip
    """Measure every mode of every model at every ratio."""
    try:
        wanted = plan.points(
            models.split(","), [float(r) for r in ratios.split(",")], modes.split(","),
            batch=batch, ablation=ablation,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if only_plan:
        click.echo(plan.table(wanted, steps + warmup, timeout))
        return
    from head import head

    results = child.Results(output, head(), resume=resume, key=KEY)
    extra = {k: json.loads(v) for k, v in (o.split("=", 1) for o in options)}
    common = {"steps": steps, "warmup": warmup, "options": extra, "trace": ""}
    with working_sets() as folder:
        native: dict = {}
        for point in wanted:
            task = {**common, "model": point.model, "batch": point.batch, "mode": point.mode}
            done = results.find(
                model=point.model, batch=batch_of(point), mode=point.mode, ratio=point.ratio,
                steps=steps,
            )  # fmt: skip
            if point.ratio is None:
                native = done or results.add(measure(task, timeout))
                if repeat and not done and "check" in native:
                    again = measure(task, timeout)
                    native["bitwise_equal"] = again.get("check") == native["check"]
                common["trace"] = str(folder / f"{point.model}.trace")
            elif "step_s" in native and not done:
                if not no_bound and not Path(common["trace"]).exists():
                    record(task | {"trace": common["trace"]}, timeout)
                limit = plan.limit(native["peak_bytes"], native["reserved_bytes"], point.ratio)
                made = measure(task | {"limit": limit, "native_s": native["step_s"]}, timeout)
                made["ratio"] = point.ratio
                if "check" in made:
                    made["bitwise_equal"] = made["check"] == native["check"]
                results.add(made)


@contextlib.contextmanager
def working_sets():
    """Yield a folder for recorded working sets."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def batch_of(point: plan.Point) -> int:
    """Return a point's batch size, the model's own if none was asked for."""
    from models import MODELS

    return point.batch or MODELS[point.model][1]


def measure(task: dict, timeout: float) -> dict:
    """Run one point in a process of its own and print it."""
    base = {key: task.get(key) for key in ("model", "batch", "mode", "steps")}
    point = {**base, "limit_bytes": task.get("limit"), **child.run(__file__, task, timeout)}
    show(point)
    return point


def record(task: dict, timeout: float) -> None:
    """Record a model's working sets into ``task["trace"]``, in a process of its own."""
    made = child.run(__file__, {**task, "mode": "record"}, timeout)
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
    bound = point.get("bound_s")
    print(
        f"{head} {point['step_s']:8.3f} s/step"
        f" (bound {f'{bound:.3f}' if bound else '?'})  faults {point['faults']:9.0f}"
        f" ({point['blocks_faulted']:6.0f} blocks, {point['misses']:6.0f} misses)"
        f"  in {point['bytes_in'] / GIB:6.1f} out {point['bytes_out'] / GIB:6.1f}"
        f" dropped {point['bytes_dropped'] / GIB:6.1f} GiB  equal {point.get('bitwise_equal')}"
        f"  first {point['step_s_all'][0]:.2f}",
        flush=True,
    )
    if point.get("notes"):
        print("   ", point["notes"], flush=True)


# In the process of a point ----------------------------------------------------------------------


def make_deterministic() -> None:
    """Let the same program give the same bits."""
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    # The two attention kernels without a deterministic backward pass.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def run_point(task: dict) -> dict:
    """Train and measure in this process."""
    import torch
    from models import MODELS

    make_deterministic()
    build, batch = MODELS[task["model"]]
    batch = task.get("batch") or batch
    if task["mode"] == "record":
        return record_here(build, batch, task)
    backend = open_backend(task) if task["mode"] != "native" else None
    if backend is not None:
        threading.Thread(target=watch, args=(backend,), daemon=True).start()
    try:
        model, step = build(batch)
        losses, times, counts, energies = [], [], [], []
        meter = energy_meter()
        for _ in range(task["warmup"] + task["steps"]):
            torch.cuda.synchronize()
            before, joules, began = stats(backend), meter(), time.perf_counter()
            losses.append(step())
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
            energies.append(meter() - joules)
            after = stats(backend)
            counts.append({key: after[key] - before[key] for key in COUNTS})
            print(f"step {times[-1]:.3f}", counts[-1], file=sys.stderr, flush=True)
        check = check_of(losses, model)
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        final = stats(backend)
    finally:
        if backend is not None:
            backend.stop()
    warm = slice(task["warmup"], None)

    def median(key: str) -> float:
        return statistics.median(count[key] for count in counts[warm])

    return {
        "batch": batch, "peak_bytes": peak, "reserved_bytes": reserved,
        "step_s": statistics.median(times[warm]), "step_s_all": times,
        "faults": median("fault_records"),
        "faults_all": [count["fault_records"] for count in counts],
        "blocks_faulted": median("faults"), "misses": median("misses"),
        "bytes_in": median("bytes_in"), "bytes_out": median("bytes_out"),
        "bytes_dropped": median("bytes_dropped"), "launches": median("launches"),
        "energy_j": statistics.median(energies[warm]), "check": check,
        "losses": [float(x) for x in losses], **bound_of(task),
        "notes": {key: final[key] for key in NOTES if final.get(key)},
    }  # fmt: skip


def check_of(losses: list, model) -> str:
    """Return a hash of losses and weights, bit by bit."""
    import torch

    check = hashlib.sha256()
    check.update(b"".join(x.float().cpu().numpy().tobytes() for x in losses))
    for parameter in model.parameters():
        bits = parameter.detach().view(torch.int32)
        check.update(str(int(bits.sum(dtype=torch.int64))).encode())
    return check.hexdigest()


def record_here(build, batch: int, task: dict) -> dict:
    """Train with everything resident, writing down which launch names what."""
    import torch
    from bound import Recorder, to_trace

    recorder = Recorder()
    options = {"gates": False, **task["options"]}
    backend = open_backend({"mode": recorder, "limit": None, "options": options})
    _model, step = build(batch)
    ends = []
    for _ in range(2 + RECORDED):
        step()
        torch.cuda.synchronize()
        ends.append(backend.feed.counts["launches"])
    until = time.monotonic() + 30
    while recorder.last_seq < ends[-1] and time.monotonic() < until:
        time.sleep(0.05)
    lost = {key: backend.stats[key] for key in ("unseen_launches", "lost_events", "set_aside")}
    backend.stop()
    if any(lost.values()) or recorder.last_seq < ends[-1]:
        raise RuntimeError(f"launches are missing: {lost}")
    to_trace(task["model"], recorder.events, ends[1:]).save(task["trace"])
    return {"launches": ends[-1]}


def bound_of(task: dict) -> dict:
    """Return `bound_s` of a task, None where nothing was recorded or it is no bound."""
    from bound import LOOKS_UP, bound_s

    from deepum.errors import BudgetError
    from deepum.trace import Trace

    none = {"bound_s": None}
    if task["mode"] == "native" or task["model"] in LOOKS_UP or not task.get("trace"):
        return none
    path = Path(task["trace"])
    if not path.exists() or not path.stat().st_size:
        return none
    try:
        return bound_s(Trace.load(path), task["limit"], task["native_s"])
    except BudgetError as error:
        return none | {"bound_note": str(error)}


def watch(backend) -> None:
    """Say now and then how things stand, for a run that does not end."""
    while True:
        time.sleep(20)
        print({k: v for k, v in backend.stats.items() if v}, file=sys.stderr, flush=True)


def open_backend(task: dict):
    """Start a session for the point's mode: a policy, or one with the mechanisms it is to keep."""
    from deepum.backends.managed import ManagedBackend

    policy, without = task["mode"], ()
    if isinstance(policy, str):
        policy, _, kept = policy.partition(":")
        if kept:
            without = {"prefetch", "pre-evict", "invalidate"} - set(kept.split("+"))
    options = {"host_limit": "100GiB", **task["options"]}
    backend = ManagedBackend(policy, memory_limit=task["limit"], without=without, options=options)
    backend.start()
    return backend


def stats(backend) -> dict:
    """Return the counts so far; zeros without a session."""
    return backend.stats if backend is not None else dict.fromkeys(COUNTS, 0)


def energy_meter():
    """Return a function that reads the joules the GPU has used, zero where that is not known."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return lambda: 0.0


if __name__ == "__main__":
    if child.is_child():
        child.answer(run_point(child.task()))
    main()

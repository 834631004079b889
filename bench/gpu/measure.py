# SPDX-License-Identifier: Apache-2.0
"""One point, in a process of its own: train in a mode, with so much memory, and measure."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import statistics
import sys
import threading
import time
from pathlib import Path

import plan

COUNTS = ("fault_records", "faults", "misses", "bytes_in", "bytes_out", "bytes_dropped", "launches")
NOTES = (
    "gates_squeezed", "gates_overdue", "waits_given_up", "failure", "set_aside", "move_errors",
    "last_move_error", "unseen_launches", "lost_events", "lost_faults", "drops_refused",
    "busy_in_s", "busy_out_s", "streams", "prefetch_used", "prefetched", "late", "wasted",
    "pre_evicted", "demand_evicted", "refused", "table_bytes", "moves_in", "moves_out",
    "last_overdue",
)  # fmt: skip
RECORDED = 4  # steps
BUS_BOTH_WAYS = 2 * 55e9  # bytes/s, pinned copies, measured
DEFAULTS = {
    "managed": {"host_limit": "100GiB"},
    "vmm": {"host_limit": "100GiB", "next_use": True},
}
"""Options of sessions here, unless a point says otherwise."""


def make_deterministic() -> None:
    """Let the same program give the same bits."""
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    # This alone would write to all new memory, as no program does that people measure.
    torch.utils.deterministic.fill_uninitialized_memory = False
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
    try:
        with limited(task) as (backend, change):
            return {"batch": batch} | trained(task, build, batch, backend, change)
    except torch.OutOfMemoryError as error:
        return {"batch": batch, "out_of_memory": True, "reason": str(error).splitlines()[0]}


@contextlib.contextmanager
def limited(task: dict):
    """Yield the session and the change of the program that a mode asks for, None for neither."""
    import torch

    memory = plan.memory_of(task["mode"])
    if memory in ("managed", "vmm"):
        backend = open_session(task)
        threading.Thread(target=watch, args=(backend,), daemon=True).start()
        try:
            yield backend, None
        except torch.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(backend.refused or str(error)) from error
        finally:
            backend.stop()
        return
    if task.get("limit"):
        hold_to(task["limit"])
    if memory == "native":
        yield None, None
        return
    from alternatives import ALTERNATIVES

    yield None, ALTERNATIVES[task["mode"]]()


def hold_to(limit_bytes: int) -> None:
    """Let PyTorch's own allocator take so much of the GPU and no more."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))


def trained(task: dict, build, batch: int, backend, change) -> dict:
    """Train the steps of a point; return what was measured."""
    import torch

    model, step = build(batch) if change is None else build(batch, change)
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
    own_numbers = change is not None and bool(change.numerics)
    check = None if own_numbers else check_of(losses, model)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    final = stats(backend)
    warm = slice(task["warmup"], None)

    def median(key: str) -> float:
        return statistics.median(count[key] for count in counts[warm])

    step_s = statistics.median(times[warm])
    made = {
        "peak_bytes": peak, "reserved_bytes": reserved,
        "step_s": step_s, "step_s_all": times,
        "faults": median("fault_records"),
        "faults_all": [count["fault_records"] for count in counts],
        "blocks_faulted": median("faults"), "misses": median("misses"),
        "bytes_in": median("bytes_in"), "bytes_out": median("bytes_out"),
        "bytes_dropped": median("bytes_dropped"), "launches": median("launches"),
        "energy_j": statistics.median(energies[warm]), "check": check,
        "losses": [float(x) for x in losses], **bound_of(task),
        "notes": notes_of(final, plan.memory_of(task["mode"])),
    }  # fmt: skip
    if backend is not None:
        made["bus_use"] = (made["bytes_in"] + made["bytes_out"]) / step_s / BUS_BOTH_WAYS
    if change is not None:  # what it moves, nobody counts
        moved = ("bytes_in", "bytes_out", "bytes_dropped")
        made |= dict.fromkeys(moved)
        if change.numerics:
            made["note"] = change.numerics
    return made


def notes_of(final: dict, memory: str) -> dict:
    """Return what is worth keeping of a session's counts."""
    if memory == "vmm":
        return {k: v for k, v in final.items() if isinstance(v, int | float | str) and v}
    return {key: final[key] for key in NOTES if final.get(key)}


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
    options = {**task["options"], "gates": False}
    backend = open_session({"mode": recorder, "limit": None, "options": options})
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
        print(*waiting(), sep="\n", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()


def waiting() -> list[str]:
    """Return for each thread what it waits for in the kernel, as far as that is told."""
    found = []
    for task in sorted(Path("/proc/self/task").iterdir()):
        with contextlib.suppress(OSError):
            told = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
            found.append(f"{task.name} {' '.join(told)}"[:100])
    return found


def open_session(task: dict):
    """Start a session for the point's mode: a policy, or one with the mechanisms it is to keep."""
    policy, without, memory = task["mode"], (), "managed"
    if isinstance(policy, str):
        memory = plan.memory_of(policy)
        policy, _, kept = plan.policy_of(policy).partition(":")
        if kept:
            without = {"prefetch", "pre-evict", "invalidate"} - set(kept.split("+"))
    if memory == "vmm":
        from deepum.backends.vmm import VmmBackend as Backend
    else:
        from deepum.backends.managed import ManagedBackend as Backend
    options = {**DEFAULTS[memory], **task["options"]}
    backend = Backend(
        policy, memory_limit=task["limit"], without=without, options=options,
        trace=task.get("live_trace"), trace_steps=task.get("warmup", 0) + task.get("steps", 0),
    )  # fmt: skip
    backend.start()
    return backend


def stats(backend) -> dict:
    """Return the counts so far; zeros for what is not counted, and without a session."""
    return dict.fromkeys(COUNTS, 0) | (backend.stats if backend is not None else {})


def energy_meter():
    """Return a function that reads the joules the GPU has used, zero where that is not known."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return lambda: 0.0

# SPDX-License-Identifier: Apache-2.0
"""A long training run of changing shape: are the results right, and does memory stay?

Each step has a batch size of its own, in one to three parts whose gradients add up and are then
clipped; every now and then the model is evaluated. Whatever a session does must not show: losses,
norms and evaluations are compared bit by bit with those of a native run, and what the GPU, the host
and the session hold in the second half of the run with the first.
"""

from __future__ import annotations

import hashlib
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import matrix
import plan

if TYPE_CHECKING:
    import child

STEPS = 1000
EVALUATE_EVERY = 50
SAMPLE_EVERY = 20
PARTS = (1, 2, 1, 3, 2)
SHARES = (1.0, 0.5, 0.75, 0.25, 1.0, 0.5)  # of the model's batch size
SLACK = 1.02
SLACK_BYTES = 64 << 20
"""What may be added to memory between the halves of a run without being called growth."""


def shape(step: int, batch: int) -> list[int]:
    """Return the batch sizes of the parts of a step."""
    size = max(1, round(batch * SHARES[step % len(SHARES)]))
    parts = min(PARTS[step % len(PARTS)], size)
    return [size // parts + (part < size % parts) for part in range(parts)]


def grown(samples: list[dict]) -> dict[str, list[int]]:
    """Return what is larger at its most in the second half than in the first: name, both values.

    The first tenth is the program warming up and counts for neither.
    """
    warm = samples[len(samples) // 10 :]
    half = len(warm) // 2
    found = {}
    for name in warm[0] if half else ():
        first = max(sample[name] for sample in warm[:half])
        second = max(sample[name] for sample in warm[half:])
        if second > first * SLACK + SLACK_BYTES:
            found[name] = [first, second]
    return found


def differing(native: list[str], other: list[str]) -> int | None:
    """Return the first step whose results differ; None if all are the same."""
    for step, (left, right) in enumerate(zip(native, other, strict=False)):
        if left != right:
            return step
    return None if len(native) == len(other) else min(len(native), len(other))


def live(task: dict) -> dict:
    """Train the steps of a point in this process."""
    import torch
    from measure import limited, make_deterministic
    from models import MODELS

    make_deterministic()
    build, batch = MODELS[task["model"]]
    batch = task.get("batch") or batch
    steps: list[str] = []
    samples: list[dict] = []
    times: list[float] = []
    with limited(task) as (backend, _change):
        model, training = build(batch)
        for step in range(task["steps"]):
            began = time.perf_counter()
            seen = one_step(model, training, shape(step, batch))
            if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
                seen.append(evaluate(model, training, batch))
            # What is compared has to be read, so that the device is waited for here.
            bits = b"".join(value.float().cpu().numpy().tobytes() for value in seen)
            steps.append(hashlib.sha256(bits).hexdigest()[:16])
            times.append(time.perf_counter() - began)
            if step % SAMPLE_EVERY == 0:
                samples.append(held(backend))
                print(step, samples[-1], file=sys.stderr, flush=True)
        failure = "" if backend is None else backend.stats.get("failure", "")
        return {
            "batch": batch, "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(), "digests": steps,
            "step_s": statistics.median(times), "samples": samples, "grown": grown(samples),
            "failure": failure,
        }  # fmt: skip


def one_step(model: Any, training: Any, parts: list[int]) -> list:
    """Accumulate the gradients of the parts, clip them, and train; return losses and the norm."""
    import torch

    seen = []
    for size in parts:
        loss = training.loss(training.sample(size)) / len(parts)
        loss.backward()
        seen.append(loss.detach())
    seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    return seen


def evaluate(model: Any, training: Any, batch: int) -> Any:
    """Return the loss of unseen data, in evaluation mode."""
    import torch

    model.eval()
    with torch.no_grad():
        loss = training.loss(training.sample(batch))
    model.train()
    return loss


def held(backend: Any) -> dict[str, int]:
    """Return what memory is held: by tensors, by PyTorch, by the process, by the session."""
    import torch

    counts = {} if backend is None else backend.stats
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        **{name: value for name, value in counts.items() if name.endswith("_bytes")},
    }


def run(wanted: list[plan.Point], results: child.Results, how: matrix.How) -> bool:
    """Run the points; return whether all were right and none grew."""
    from child import run as run_child

    native: dict = {}
    for point in wanted:
        batch = matrix.batch_of(point)
        known = {"model": point.model, "batch": batch, "steps": how.steps, "ratio": point.ratio}
        task = {**known, "mode": point.mode, "options": {}, "life": True}
        known["mode"] = f"life-{point.mode}"
        if point.ratio is None:
            native = results.find(**known) or results.add(
                known | run_child(how.script, task, how.timeout)
            )
            show(native)
            continue
        if "digests" not in native or results.find(**known):
            continue
        limit = plan.limit(native["peak_bytes"], native["reserved_bytes"], point.ratio)
        task |= {"limit": limit, "options": how.options}
        made = {**known, "limit_bytes": limit, **run_child(how.script, task, how.timeout)}
        if "digests" in made:
            made["first_difference"] = differing(native["digests"], made["digests"])
            made["bitwise_equal"] = made["first_difference"] is None
        show(results.add(made))
    return all(right(point) for point in results.points)


def right(point: dict) -> bool:
    """Return whether a point ran, did not grow, and is as the native one is."""
    ran = "digests" in point and not point["failure"] and not point["grown"]
    return ran and point.get("bitwise_equal", True)


def show(point: dict) -> None:
    """Print a point on a line."""
    head = f"{point['model']:12} {point['mode']:14} {point.get('ratio') or 0:4g}x"
    if "error" in point:
        print(f"{head} {point['error']}\n{point.get('stderr', '')}", flush=True)
        return
    print(
        f"{head} {point['step_s']:8.3f} s/step  {len(point['digests'])} steps"
        f"  equal {point.get('bitwise_equal')}  grown {point['grown'] or 'nothing'}"
        f"  {point['failure']}",
        flush=True,
    )

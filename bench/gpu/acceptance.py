# SPDX-License-Identifier: Apache-2.0
"""Is training under a session bit by bit what it is without one?

    python bench/gpu/acceptance.py --json FILE

GPT-2, BERT and a convolutional network with `cudnn.benchmark`, 20 steps each, at several
oversubscription ratios, with random delays before each move. After each backward pass the loss and
all gradients are taken, the gradients as two sums over their bits that depend on where each bit
is, and compared with those of a native run. Both runs of a point are in one
process, the native one first: what `cudnn.benchmark` chose for a shape it then uses again; in two
processes it may choose differently, and differ in the last bit by itself. A second native run
before the session shows whether the program is reproducible at all.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import child
import click
import plan

if TYPE_CHECKING:
    from torch import Tensor

MODELS = ("gpt2-small", "bert-small", "resnet50")
BATCH = {"gpt2-small": 2, "bert-small": 16, "resnet50": 16}


def differing(native: list[dict], other: list[dict]) -> list[str]:
    """Return what differs, as ``"step 3: gradients"``, in order; nothing if all is equal."""
    found = [
        f"step {step}: {what}"
        for step, (left, right) in enumerate(zip(native, other, strict=False))
        for what in ("loss", "gradients")
        if left[what] != right[what]
    ]
    if len(native) != len(other):
        found.append(f"{len(other)} steps and not {len(native)}")
    return found


@click.command()
@click.option("--models", default=",".join(MODELS), show_default=True)
@click.option("--ratios", default="1,1.5,2,3", show_default=True)
@click.option("--policies", default="chained", show_default=True)
@click.option("--steps", default=20, show_default=True)
@click.option("--delay-us", default=2000, show_default=True, help="Most before a move.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for one point.")
@click.option("--resume", is_flag=True)
@click.option("--plan", "only_plan", is_flag=True, help="Print the points and run none.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(models, ratios, policies, steps, delay_us, timeout, resume, only_plan, output):
    """Compare each model under each policy at each ratio with native; status 1 if one differs."""
    tasks = [
        {"model": model, "policy": policy, "ratio": float(ratio), "steps": steps}
        for model in models.split(",") for policy in policies.split(",")
        for ratio in ratios.split(",")
    ]  # fmt: skip
    if only_plan:
        for task in tasks:
            print(f"{task['model']:12} {task['policy']:12} {task['ratio']:g}x")
        print(f"{len(tasks)} points, at most {len(tasks) * timeout / 60:.0f} min")
        return
    from head import head

    key = ("model", "policy", "ratio", "steps", "delay_us")
    results = child.Results(output, head(), resume=resume, key=key)
    for task in tasks:
        task["delay_us"] = delay_us
        if results.find(**task) is None:
            results.add(task | child.run(__file__, task, timeout))
        point = results.find(**task)
        line = point.get("error") or ("bitwise equal" if point["equal"] else point["differs"][:3])
        print(f"{task['model']:12} {task['policy']:12} {task['ratio']:g}x  {line}", flush=True)
        if "error" in point:
            print(point.get("stderr", "")[-800:], file=sys.stderr)
    wrong = [point for point in results.points if not point.get("equal")]
    raise SystemExit(1 if wrong else 0)


def train(model_name: str, steps: int) -> list[dict]:
    """Train from the same beginning; return loss and gradients of each step, as text."""
    import torch
    from models import MODELS as BUILDERS

    torch.manual_seed(0)
    model, step = BUILDERS[model_name][0](BATCH.get(model_name, BUILDERS[model_name][1]))
    done = []
    for _ in range(steps):
        sums: list[Tensor] = []

        def look(into=sums) -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    into += bit_sums(parameter.grad)

        loss = step(look).float().cpu().numpy().tobytes().hex()
        gradients = hashlib.sha256(torch.stack(sums).cpu().numpy().tobytes()).hexdigest()
        done.append({"loss": loss, "gradients": gradients})
    return done


def bit_sums(tensor: Tensor) -> list[Tensor]:
    """Return two sums, modulo 2**64, over the bits of a tensor of 32-bit values: on its device.

    The first weighs all words alike, the second by their place. Taken in pieces, since their 64-bit
    copies are larger than the tensor.
    """
    import torch

    found = []
    words = tensor.detach().contiguous().view(torch.int32).flatten()
    for piece in words.split(1 << 22):
        wide = piece.to(torch.int64)
        weights = torch.arange(1, len(wide) + 1, device=wide.device)
        found += [wide.sum(), (wide * weights).sum()]
    return found


def compare(task: dict) -> dict:
    """Train natively twice, then in a session, in this process."""
    import torch
    from measure import make_deterministic, open_session

    make_deterministic()
    torch.backends.cudnn.benchmark = True
    native = train(task["model"], task["steps"])
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    again = train(task["model"], task["steps"])
    torch.cuda.empty_cache()
    limit = plan.limit(peak, reserved, task["ratio"])
    backend = open_session(
        {"mode": task["policy"], "limit": limit, "options": {"delay_us": task["delay_us"]}}
    )
    limited = train(task["model"], task["steps"])
    stats = backend.stats
    backend.stop()
    differs = differing(native, limited)
    return {
        "limit_bytes": limit, "peak_bytes": peak, "equal": not differs, "differs": differs,
        "native_reproducible": not differing(native, again),
        "losses": [entry["loss"] for entry in native],
        **{key: stats[key] for key in (
            "bytes_in", "bytes_out", "bytes_dropped", "fault_records", "gates_overdue",
            "waits_given_up", "move_errors", "failure", "set_aside",
        )},
    }  # fmt: skip


if __name__ == "__main__":
    if child.is_child():
        child.answer(compare(child.task()))
    main()

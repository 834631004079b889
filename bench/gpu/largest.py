# SPDX-License-Identifier: Apache-2.0
"""The largest batch that trains in so much GPU memory: native PyTorch, and with deepum.

    python bench/gpu/largest.py --models gpt2-medium,bert-large,resnet152 --limit 12GiB --json FILE
    python bench/gpu/largest.py --models gpt2-medium --modes native,vmm,checkpointing --json FILE

The modes are those of managed.py and vmm.py. What has no session is held to the limit by
`torch.cuda.set_per_process_memory_fraction`. A batch runs if two steps do; each is tried in a
process of its own, first doubled until one fails or `--most` is reached, then halved in between to
within `--within` of the answer. The file is written after each try; `--resume` goes on where an
interrupted run stopped.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import child
import click

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ("model", "mode", "limit_bytes", "batch")
KILLED = "exit status -9"
"""What the kernel does to a process when the host has no memory left."""


def largest(runs: Callable[[int], bool], start: int, most: int, within: float) -> int:
    """Return the largest batch that runs, 0 if `start` does not, `most` if all do.

    What runs at one size is taken to run at all smaller ones.

    Parameters
    ----------
    runs
        Tries a batch.
    start, most
        The smallest and the largest batch to try.
    within
        How far below the right answer the result may be, as a share of it; never less than one.
    """
    good, bad = 0, most + 1
    size = min(start, most)
    while runs(size):
        good = size
        if size == most:
            return most
        size = min(2 * size, most)
    if not good:
        return 0
    bad = size
    while bad - good > max(1, int(within * good)):
        size = (good + bad) // 2
        if runs(size):
            good = size
        else:
            bad = size
    return good


@click.command()
@click.option("--models", default="gpt2-small,bert-small,resnet50", show_default=True)
@click.option("--modes", default="native,chained", show_default=True)
@click.option("--limit", default="8GiB", show_default=True)
@click.option("--start", default=1, show_default=True, help="Smallest batch to try.")
@click.option("--most", default=1024, show_default=True, help="Largest batch to try.")
@click.option("--within", default=0.05, show_default=True, help="Exactness, a share.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for one try.")
@click.option("--resume", is_flag=True, help="Keep the tries that the file has already.")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(models, modes, limit, start, most, within, timeout, resume, output):
    """Find the largest batch of each model in each mode."""
    from head import head

    from deepum.units import parse_bytes

    size = parse_bytes(limit)
    results = child.Results(output, head(), resume=resume, key=KEY)
    for model in models.split(","):
        for mode in modes.split(","):

            def runs(batch: int, model: str = model, mode: str = mode) -> bool:
                fields = {"model": model, "mode": mode, "limit_bytes": size, "batch": batch}
                done = results.find(**fields)
                if done is None:
                    done = fields | child.run(__file__, fields, timeout)
                    if done.get("error", "").startswith(("no end", KILLED)):
                        # Too slow to be of use, or too much for the host, is too large, and a
                        # resumed run need not try again.
                        done["runs"] = False
                        done["reason"] = done.pop("error")
                    results.add(done)
                print(f"{model:12} {mode:10} batch {batch:5} {done.get('runs')}", flush=True)
                if "error" in done:
                    print(done.get("stderr", "")[-800:], file=sys.stderr)
                    raise SystemExit(f"{model}, batch {batch}: {done['error']}")
                return done["runs"]

            found = largest(runs, start, most, within)
            print(f"{model:12} {mode:10} largest batch {found}", flush=True)
            answer = {"model": model, "mode": mode, "limit_bytes": size}
            if results.find(**answer) is None:
                capped = {"capped": True} if found == most else {}
                results.add({**answer, "largest_batch": found, **capped})


def try_batch(task: dict) -> dict:
    """Train two steps in this process; say whether they ran."""
    import torch
    from measure import limited
    from models import MODELS

    times = []
    point = {"mode": task["mode"], "limit": task["limit_bytes"], "options": {}}
    try:
        with limited(point) as (_backend, change):
            build = MODELS[task["model"]][0]
            _model, step = build(task["batch"]) if change is None else build(task["batch"], change)
            for _ in range(2):
                began = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
    except torch.OutOfMemoryError as error:
        return {"runs": False, "reason": str(error).splitlines()[0]}
    return {"runs": True, "step_s_all": times, "peak_bytes": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    if child.is_child():
        child.answer(try_batch(child.task()))
    main()

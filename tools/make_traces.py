# SPDX-License-Identifier: Apache-2.0
"""Record every trace that is shipped or used by the tests.

    python tools/make_traces.py                 # all of them
    python tools/make_traces.py 'gpt2-*'        # those whose names match
    python tools/make_traces.py --list
    python tools/make_traces.py --retime        # keep the recordings; only estimate times anew

Needs PyTorch and a C++ compiler, and no GPU. The same PyTorch gives the same files.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepum.record.models import MODELS
from deepum.record.recorder import batch_label, estimate, record_model, record_script
from deepum.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "src" / "deepum" / "traces"
TESTED = ROOT / "tests" / "data"
PERTURBED = ROOT / "tools" / "perturbed.py"
PERTURBATIONS = {
    "ragged": "ragged",
    "seqlen": "seqlen",
    "clip": "clip",
    "accumulate": "accumulate",
    "eval": "eval_pass",
}
STEPS = 10


def jobs() -> dict[str, tuple[Path, Callable[[], Trace]]]:
    """Every trace: name -> (folder, how to make it)."""
    made: dict[str, tuple[Path, Callable[[], Trace]]] = {}
    for model in MODELS.values():
        for batch in model.batches:
            made[f"{model.name}-b{batch_label(batch)}"] = (
                SHIPPED,
                lambda model=model, batch=batch: record_model(model.name, batch, model.machine),
            )
    for what, function in PERTURBATIONS.items():
        name = f"perturb-{what}"
        made[name] = (
            TESTED,
            lambda function=function, name=name: record_script(
                f"{PERTURBED}:{function}", steps=STEPS, name=name
            ),
        )
    return made


def seconds_a_step(trace: Trace) -> float:
    """The sum of the kernels' times in the last step."""
    step = int(trace.schedule[-1])
    events = slice(int(trace.step_start[step]), int(trace.step_start[step + 1]))
    kernels = trace.event_arg[events][trace.event_op[events] == 0].astype(np.int64)
    return float(trace.kernel_time_ns[kernels].sum()) / 1e9


def main() -> None:
    """Record what was asked for and print a line for each."""
    parser = argparse.ArgumentParser(description="Record the shipped traces.")
    parser.add_argument("names", nargs="*", default=["*"], help="names, or patterns of them")
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument(
        "--retime", action="store_true", help="estimate the times anew, for a changed profile"
    )
    given = parser.parse_args()
    chosen = {
        name: job
        for name, job in jobs().items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in given.names)
    }
    if given.list:
        print("\n".join(chosen))
        return
    print("trace | kernels a step | peak GiB | reserved GiB | file KB | kernel s a step | schedule")
    for name, (folder, make) in chosen.items():
        began = time.perf_counter()
        path = folder / f"{name}.trace"
        if given.retime:
            trace = Trace.load(path)
            trace = estimate(trace, trace.meta["machine"])
        else:
            trace = make()
        folder.mkdir(parents=True, exist_ok=True)
        trace.save(path)
        note = trace.meta.get("iterations_note", "")
        print(
            f"{name} | {trace.kernels_per_step} | {trace.peak_bytes / 2**30:.2f} | "
            f"{int(trace.segment_bytes.sum()) / 2**30:.2f} | {path.stat().st_size / 1024:.0f} | "
            f"{seconds_a_step(trace):.3f} | {trace.schedule.tolist()} "
            f"from {trace.loop_from} {note} ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()

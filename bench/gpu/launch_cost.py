# SPDX-License-Identifier: Apache-2.0
"""What a session costs each launch when everything is resident.

    python bench/gpu/launch_cost.py --json FILE

Three kinds of launches, each timed on the host without a session, with one and without again: an
empty kernel with one pointer argument (through the driver), one small PyTorch kernel, and an AdamW
step over many small tensors, whose kernels carry hundreds of pointers. `callback_us` is what the
callback itself took, by its own clock, in a round apart from those that are compared.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import child
import click

KINDS = ("empty", "small", "adamw")
ROUNDS = 7
LAUNCHES = 2000  # of one round; they never fill the driver's queue, since each 500 are waited for
WAIT = 500

PTX = """
.version 7.0
.target sm_50
.address_size 64
.visible .entry empty(.param .u64 pointer) { ret; }
"""


def summary(plain: list[float], session: list[float], again: list[float], calls: int) -> dict:
    """Return microseconds a launch from seconds a round of `calls` launches.

    `added_us` is over the mean of the medians before and after, so that a drift of the clock
    between them does not count for the session.
    """
    before, within, after = (
        statistics.median(part) / calls * 1e6 for part in (plain, session, again)
    )
    return {
        "plain_us": (before + after) / 2, "session_us": within,
        "added_us": within - (before + after) / 2, "drift_us": after - before,
    }  # fmt: skip


@click.command()
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--policies", default="noop,chained,arguments", show_default=True)
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for one point.")
@click.option("--resume", is_flag=True)
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(kinds, policies, timeout, resume, output):
    """Measure each kind of launch under each policy."""
    from head import head

    results = child.Results(output, head(), resume=resume, key=("kind", "policy"))
    for policy in policies.split(","):
        for kind in kinds.split(","):
            task = {"kind": kind, "policy": policy}
            if results.find(**task) is None:
                point = results.add(task | child.run(__file__, task, timeout))
                print(point, flush=True)


def launcher(kind: str):
    """Return what launches once, and how many kernels that is."""
    import torch

    if kind == "empty":
        from cuda.bindings import driver

        def call(function, *arguments):
            status, *values = function(*arguments)
            if int(status):
                raise RuntimeError(f"{function.__name__}: {status}")
            return values[0] if values else None

        import ctypes

        tensor = torch.zeros(1 << 20, device="cuda")
        module = call(driver.cuModuleLoadData, PTX.encode() + b"\0")
        function = call(driver.cuModuleGetFunction, module, b"empty")
        arguments = ((tensor.data_ptr(),), (ctypes.c_void_p,))
        stream = torch.cuda.current_stream().cuda_stream

        def empty(keep=tensor):
            driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)

        return empty, 1
    if kind == "small":
        tensor = torch.zeros(256, device="cuda")
        return lambda: tensor.add_(1), 1
    weights = [torch.zeros(256, device="cuda", requires_grad=True) for _ in range(400)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, foreach=True)
    return optimizer.step, None


def rounds(launch, calls: int) -> list[float]:
    """Return seconds for each round of so many calls."""
    import torch

    times = []
    for _ in range(ROUNDS + 2):
        torch.cuda.synchronize()
        spent = 0.0
        for at in range(0, calls, WAIT):
            began = time.perf_counter()
            for _ in range(min(WAIT, calls - at)):
                launch()
            spent += time.perf_counter() - began
            torch.cuda.synchronize()
        times.append(spent)
    return times[2:]


def measure(task: dict) -> dict:
    """Measure one kind under one policy in this process."""
    import torch
    from measure import open_session

    def calls_of(kernels):
        return LAUNCHES if kernels else 40

    launch, kernels = launcher(task["kind"])
    calls = calls_of(kernels)
    plain = rounds(launch, calls)
    backend = open_session({"mode": task["policy"], "limit": None, "options": {}})
    launch, _ = launcher(task["kind"])  # its tensors are managed now
    launch()
    torch.cuda.synchronize()
    before = backend.stats["launches"]
    launch()
    torch.cuda.synchronize()
    each = backend.stats["launches"] - before  # kernels and copies of one call
    within = rounds(launch, calls)
    stats = backend.stats
    backend.launches.time_callbacks(True)
    rounds(launch, calls)
    callbacks, spent = backend.launches.callbacks, backend.launches.callback_ns
    backend.launches.time_callbacks(False)
    backend.stop()
    launch, _ = launcher(task["kind"])
    again = rounds(launch, calls)
    return {
        "launches_a_call": each, **summary(plain, within, again, calls * each),
        "callback_us": 2 * spent / max(1, callbacks) / 1e3,  # called before and after each launch
        "moved_bytes": stats["bytes_in"] + stats["bytes_out"],
        "gates_overdue": stats["gates_overdue"],
    }  # fmt: skip


if __name__ == "__main__":
    if child.is_child():
        child.answer(measure(child.task()))
    main()

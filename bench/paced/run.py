# SPDX-License-Identifier: Apache-2.0
"""Play a trace to the real parts of memory mode vmm, over a driver that only keeps time.

    python bench/paced/run.py --ratio 2 --steps 8
    PACED_CREATE_US=600 python bench/paced/run.py --set next_use=0

No GPU is needed and nothing is measured of one: what comes out is how engine, conductor and mover
would use a bus and a driver of the given speeds (driver.c), beside what the simulator says of the
same trace. Times are stretched (`--scale`), so that the threads, of which there are more than a
small machine has cores, lose little by waiting for one another. Compiles itself when first run.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "paced"
TRACE = ROOT / "bench" / "traces" / "gpt2-xl-bf16-b4.trace"
CALLS = ("create", "release", "map", "unmap")


def compile_all() -> Path:
    """Build the driver and the player if their sources are newer; return the folder."""
    BUILD.mkdir(parents=True, exist_ok=True)
    library = BUILD / "libcuda.so.1"
    source = HERE / "driver.c"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        command = ["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    player = HERE / "player.pyx"
    core = ROOT / "src" / "deepum" / "_core"
    built = next(BUILD.glob("player.*.so"), None)
    newest = max(path.stat().st_mtime for path in [player, *core.glob("*.pxd"), *core.glob("*.h")])
    if built is None or built.stat().st_mtime < newest:
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension

        spec = importlib.util.spec_from_file_location("deepum_setup", ROOT / "setup.py")
        assert spec is not None
        assert spec.loader is not None
        builder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(builder)
        modules = cythonize(
            [
                Extension(
                    "player",
                    [str(player)],
                    include_dirs=[str(core), str(ROOT / "kmod/include"), builder.cuda_include()],
                    language="c++",  # as cuda-python's declarations are
                    extra_compile_args=["-O2", "-g0"],
                )
            ],
            include_path=[str(ROOT / "src")],
            build_dir=str(BUILD),
        )
        command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp, command.force = str(BUILD), str(BUILD), True
        command.ensure_finalized()
        command.run()
    return BUILD


def play(given: argparse.Namespace) -> None:
    """Play the trace and print a line for each step."""
    sys.path.insert(0, str(BUILD))
    import numpy as np
    from player import Player  # type: ignore[import-not-found]

    from deepum import policy as policies
    from deepum._core.cuda_vmm import VmmMemory
    from deepum._core.cuda_vmm_mover import VmmMover
    from deepum._core.engine import Engine
    from deepum._core.feed import Feed
    from deepum._core.vmm_conductor import VmmConductor
    from deepum.trace import Trace

    trace = Trace.load(given.trace)
    budget = int(trace.peak_bytes / given.ratio) >> 21 << 21
    blocks, chunk = budget >> 21, given.chunk_mib // 2
    feed = Feed()
    memory = VmmMemory(feed, 0)
    memory.begin(1, budget, 1 << 37, 1 << 38, chunk)
    wishes: dict[str, Any] = {"next_use": True} if given.policy == "chained" else {}
    wishes.update((name, int(value)) for name, value in (one.split("=") for one in given.set))
    policy = policies.make(given.policy, wishes)
    # As a session sets the engine up.
    engine = Engine(
        blocks, policies.make_native(policy), depth=given.depth, learn_allocations=False,
        low=max(32, blocks // 64), high=max(64, blocks // 32), frees_early=True,
        batches_demand=True, hurries=True, gated=True, drop_clean=True,
        **policies.table_options(policy),
    )  # fmt: skip
    mover = VmmMover(memory)
    conductor = VmmConductor(engine, feed, mover, gated=True, names=True)
    feed.attach(chunk)
    player = Player(feed, memory, given.scale)
    parts = (
        conductor.run, lambda: mover.run(False), lambda: mover.run(True), mover.run_drops,
        player.compute,
    )  # fmt: skip
    for part in parts:
        threading.Thread(target=part, daemon=True).start()
    addresses = trace.tensor_address.copy()
    for start, size in zip(trace.segment_address, trace.segment_bytes, strict=True):
        inside = (trace.tensor_address >= start) & (trace.tensor_address < start + size)
        addresses[inside] = addresses[inside] - start + np.uint64(player.segment(int(size)))
    tables = (
        addresses, trace.tensor_block_bytes, trace.kernel_name, trace.kernel_time_ns,
        trace.kernel_operand_start, trace.operand_tensor, trace.operand_offset,
    )  # fmt: skip

    def submit(ops: Any, args: Any) -> int:
        host = int(given.host_us * 1000)
        return int(player.play(np.ascontiguousarray(ops), args, *tables, host, given.ahead))

    submit(np.ones(len(trace.initial), np.uint8), trace.initial.astype(np.uint64))
    library = ctypes.CDLL(str(BUILD / "libcuda.so.1"))
    calls = (ctypes.c_uint64 * len(CALLS)).in_dll(library, "paced_calls")
    began, before, called = time.monotonic(), mover.counts, list(calls)
    rows = []
    for iteration in range(given.steps):
        step = trace.step_at(iteration)
        part = slice(int(trace.step_start[step]), int(trace.step_start[step + 1]))
        last = submit(trace.event_op[part], trace.event_arg[part])
        feed.step()
        player.wait(last)
        now, counts, so_far = time.monotonic(), mover.counts, list(calls)
        row = {"step_s": round((now - began) / given.scale, 4)}
        for name in ("bytes_in", "bytes_out", "bytes_dropped"):
            row[name] = counts[name] - before[name]
        for name in ("busy_in_s", "busy_out_s"):
            row[name] = round((counts[name] - before[name]) / given.scale, 4)
        row.update({name: b - a for name, a, b in zip(CALLS, called, so_far, strict=True)})
        rows.append(row)
        print(
            f"step {iteration}: {row['step_s']:.3f} s, {row['bytes_in'] / 1e9:.1f} GB in "
            f"({row['busy_in_s']:.2f} s), {row['bytes_out'] / 1e9:.1f} out "
            f"({row['busy_out_s']:.2f} s), {row['bytes_dropped'] / 1e9:.1f} dropped; "
            + ", ".join(f"{row[name]} {name}" for name in CALLS),
            flush=True,
        )
        began, before, called = now, counts, so_far
    print(conductor.failure or {k: v for k, v in conductor.counts.items() if v}, flush=True)
    if given.json:
        asked = {k: str(v) for k, v in vars(given).items() if k not in ("json", "trace")}
        paced = {k: v for k, v in os.environ.items() if k.startswith("PACED_")}
        result = {"trace": Path(given.trace).stem, **asked, "driver": paced, "steps": rows}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    """Compile, then play in a process that finds the driver first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default=str(TRACE))
    parser.add_argument("--ratio", type=float, default=2.0, help="peak of live bytes to budget")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--policy", default="chained")
    parser.add_argument("--set", action="append", default=[], help="an option of it: name=number")
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--chunk-mib", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=256)
    parser.add_argument("--host-us", type=float, default=20.0, help="the program's time a launch")
    parser.add_argument("--scale", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if os.environ.get("PACED_SCALE") != str(given.scale):
        folder = str(compile_all())
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "PACED_SCALE": str(given.scale)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    play(given)
    os._exit(0)  # the threads wait for what does not come


if __name__ == "__main__":
    main()

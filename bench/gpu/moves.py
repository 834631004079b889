# SPDX-License-Identifier: Apache-2.0
"""How fast managed memory moves: in, out, filled anew after a discard; by size and threads."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuda.bindings import driver as cuda
from head import head

MIB = 1 << 20


def call(function, *arguments):
    """Call the driver; return what it returns or raise."""
    status, *values = function(*arguments)
    if int(status):
        raise RuntimeError(f"{function.__name__}: {status}")
    return values[0] if values else None


def place(kind: str):
    """Return a location: the device or the host."""
    where = cuda.CUmemLocation()
    types = cuda.CUmemLocationType
    where.type = (
        types.CU_MEM_LOCATION_TYPE_DEVICE if kind == "device" else types.CU_MEM_LOCATION_TYPE_HOST
    )
    where.id = 0
    return where


def timed(base: int, size: int, piece: int, threads: int, action: str, context) -> float:
    """Do something to all pieces, shared between threads; return GB/s."""
    pieces = list(range(base, base + size, piece))

    def work(mine: list[int]) -> None:
        call(cuda.cuCtxSetCurrent, context)
        stream = call(cuda.cuStreamCreate, 1)
        for at in mine:
            if action == "discard":
                blocks = [cuda.CUdeviceptr(at + k) for k in range(0, piece, 2 * MIB)]
                sizes = [2 * MIB] * len(blocks)
                call(cuda.cuMemDiscardBatchAsync, blocks, sizes, len(blocks), 0, stream)
            else:
                call(cuda.cuMemPrefetchAsync, at, piece, place(action), 0, stream)
            call(cuda.cuStreamSynchronize, stream)
        call(cuda.cuStreamDestroy, stream)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, (pieces[k::threads] for k in range(threads))))  # raises what they raise
    return size / (time.perf_counter() - began) / 1e9


def main() -> None:
    """Measure, print a line of JSON."""
    call(cuda.cuInit, 0)
    device = call(cuda.cuDeviceGet, 0)
    context = call(cuda.cuDevicePrimaryCtxRetain, device)
    call(cuda.cuCtxSetCurrent, context)
    size = 4096 * MIB
    base = int(call(cuda.cuMemAllocManaged, size, 1))
    results = {"first fill": timed(base, size, 32 * MIB, 1, "device", context)}
    timed(base, size, 32 * MIB, 1, "host", context)
    for piece in (2, 8, 32):
        for threads in (1, 2, 4):
            for action in ("device", "host"):
                key = f"{action} {piece} MiB x{threads}"
                results[key] = timed(base, size, piece * MIB, threads, action, context)
    timed(base, size, 32 * MIB, 1, "device", context)
    for piece in (2, 32):
        for threads in (1, 2):
            key = f"{piece} MiB x{threads}"
            results["discard " + key] = timed(base, size, piece * MIB, threads, "discard", context)
            results["fill " + key] = timed(base, size, piece * MIB, threads, "device", context)
    half = size // 2
    for threads in (1, 2):
        timed(base, half, 32 * MIB, 1, "device", context)
        timed(base + half, half, 32 * MIB, 1, "host", context)
        jobs = (("host", base), ("device", base + half))
        with ThreadPoolExecutor(2) as pool:
            rates = pool.map(
                lambda job, n=threads: timed(job[1], half, 16 * MIB, n, job[0], context), jobs
            )
            both = dict(zip(("host", "device"), rates, strict=True))
        results[f"both x{threads}"] = both
    text = json.dumps({**head(), "unit": "GB/s", "rates": results}, indent=1)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

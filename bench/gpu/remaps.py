# SPDX-License-Identifier: Apache-2.0
"""What the calls of memory mode vmm cost: frames made and released, chunks mapped and unmapped.

    python bench/gpu/remaps.py --json bench/results/h200-remaps.json

Each call is timed by itself, 50 times for each size: with nothing else going on, and while two
threads keep both directions of the bus busy: with copies that wait in a queue, and with copies to
the host in bursts, each begun when the one before has ended, as a session makes them. Each frame is
mapped twice, since a session's have an alias. `--pieces` measures chunks made of frames of that
size beside those of one frame: one call makes all of a chunk accessible, and one unmaps it.
Microseconds: the quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as cuda
from head import head
from moves import MIB, call, place

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (2, 4, 8, 16, 32)
ROUNDS = 50
COPY = 16 * MIB
BURST = 8 * MIB


class Traffic:
    """Copies both ways, from `start` to `stop`; `bytes` are those of each way.

    To the host in bursts if so asked, else without a pause.
    """

    def __init__(self, context: Any, bursts: bool = False) -> None:
        self.context, self.bursts = context, bursts
        self.over = threading.Event()
        self.bytes = [0, 0]
        self.began = 0.0
        # Daemons: a measurement that fails must not be kept alive by them.
        self.threads = [
            threading.Thread(target=self._copy, args=(way,), daemon=True) for way in (0, 1)
        ]

    def start(self) -> None:
        self.began = time.perf_counter()
        for thread in self.threads:
            thread.start()

    def stop(self) -> list[float]:
        """End; return GB/s in and out."""
        self.over.set()
        for thread in self.threads:
            thread.join()
        return [count / (time.perf_counter() - self.began) / 1e9 for count in self.bytes]

    def _copy(self, way: int) -> None:
        call(cuda.cuCtxSetCurrent, self.context)
        stream = call(cuda.cuStreamCreate, 1)
        host = call(cuda.cuMemHostAlloc, COPY, 0)
        device = call(cuda.cuMemAlloc, COPY)
        size, queued = (BURST, 1) if way and self.bursts else (COPY, 8)
        while not self.over.is_set():
            for _ in range(queued):
                if way:
                    call(cuda.cuMemcpyDtoHAsync, host, device, size, stream)
                else:
                    call(cuda.cuMemcpyHtoDAsync, device, host, size, stream)
            call(cuda.cuStreamSynchronize, stream)
            self.bytes[way] += queued * size
        call(cuda.cuMemFree, device)
        call(cuda.cuMemFreeHost, host)
        call(cuda.cuStreamDestroy, stream)


def properties() -> tuple[Any, Any]:
    """Return what a frame is asked for with, and what makes a mapping accessible."""
    wanted = cuda.CUmemAllocationProp()
    wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = place("device")
    access = cuda.CUmemAccessDesc()
    access.location = wanted.location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted, access


def quartiles(took: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return those of each list."""
    return {
        what: [round(x, 1) for x in statistics.quantiles(times)] for what, times in took.items()
    }


def measure_pieces(mib: int, piece: int, rounds: int) -> dict[str, list[float]]:
    """Return quartiles of what each call takes for a chunk of several frames, in microseconds."""
    size, each = mib * MIB, piece * MIB
    wanted, access = properties()
    base = int(call(cuda.cuMemAddressReserve, size, 64 * MIB, 0, 0))
    frames = [call(cuda.cuMemCreate, each, wanted, 0) for _ in range(size // each)]
    took: dict[str, list[float]] = {"map all": [], "set access": [], "unmap": []}
    for _ in range(rounds):
        times = [time.perf_counter()]
        for k, frame in enumerate(frames):
            call(cuda.cuMemMap, base + k * each, each, 0, frame, 0)
        times.append(time.perf_counter())
        call(cuda.cuMemSetAccess, base, size, [access], 1)
        times.append(time.perf_counter())
        call(cuda.cuMemUnmap, base, size)
        times.append(time.perf_counter())
        for what, began, ended in zip(took, times, times[1:], strict=False):
            took[what].append((ended - began) * 1e6)
    for frame in frames:
        call(cuda.cuMemRelease, frame)
    call(cuda.cuMemAddressFree, base, size)
    return quartiles(took)


def measure(mib: int, rounds: int) -> dict[str, list[float]]:
    """Return quartiles of what each call takes for one size, in microseconds."""
    size = mib * MIB
    wanted, access = properties()
    base = int(call(cuda.cuMemAddressReserve, 2 * size, 64 * MIB, 0, 0))
    took: dict[str, list[float]] = {}

    def timed(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(function, *arguments)
        took.setdefault(what, []).append((time.perf_counter() - began) * 1e6)
        return result

    for _ in range(rounds):
        frame = timed("create", cuda.cuMemCreate, size, wanted, 0)
        timed("map", cuda.cuMemMap, base, size, 0, frame, 0)
        timed("set access", cuda.cuMemSetAccess, base, size, [access], 1)
        timed("map again", cuda.cuMemMap, base + size, size, 0, frame, 0)
        timed("set access again", cuda.cuMemSetAccess, base + size, size, [access], 1)
        timed("unmap", cuda.cuMemUnmap, base, size)
        timed("unmap the last", cuda.cuMemUnmap, base + size, size)
        timed("release", cuda.cuMemRelease, frame)
    call(cuda.cuMemAddressFree, base, 2 * size)
    return quartiles(took)


def main() -> None:
    """Measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="MiB")
    parser.add_argument("--pieces", type=int, help="MiB of each frame in chunks of several")
    given = parser.parse_args()
    call(cuda.cuInit, 0)
    context = call(cuda.cuDevicePrimaryCtxRetain, call(cuda.cuDeviceGet, 0))
    call(cuda.cuCtxSetCurrent, context)
    sizes = [int(size) for size in given.sizes.split(",")]

    def all_sizes() -> dict[str, dict[str, list[float]]]:
        found = {f"{mib} MiB": measure(mib, given.rounds) for mib in sizes}
        for mib in sizes if given.pieces else ():
            if mib > given.pieces:
                name = f"{mib} MiB of {given.pieces} MiB frames"
                found[name] = measure_pieces(mib, given.pieces, given.rounds)
        return found

    result = {**head(), "unit": "us, quartiles", "alone": all_sizes()}
    for name, bursts in (("beside copies", False), ("beside bursts", True)):
        traffic = Traffic(context, bursts)
        traffic.start()
        result[name] = all_sizes()
        rates = dict(zip(("in", "out"), traffic.stop(), strict=True))
        result[f"GB/s {name.removeprefix('beside ')}"] = rates
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Copies to the host leave pauses: what makes mappings accessible has to get its turn."""

from typing import Any

from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver, wait_until
from tests.managed.stand_in import Program

from .live import CARD, session

MIB = 1 << 20
BURST = 8 * MIB


def counted(driver: Driver, backend: Any, copy: int) -> tuple[dict[str, Any], int, int]:
    """Return stats, copies to the host and events once nothing goes out any more."""
    driver.sync()
    seen: list[Any] = []

    def nothing_moves() -> bool:
        calls = [driver.calls(f"cu{call}") for call in ("MemcpyDtoHAsync", "EventRecord")]
        seen[:] = backend.stats, *calls
        return seen[0]["bytes_out"] == seen[1] * copy

    wait_until(nothing_moves)
    return seen[0], seen[1], seen[2]


@on_fake(memory_bytes=CARD)
def test_a_chunk_goes_out_in_bursts(driver: Driver) -> None:
    with session(driver, limit=96 * MIB, chunk_mib=16, compare=False) as (backend, machine):
        program = Program(machine)
        tensors = [program.new(16 * MIB // 4, k) for k in range(12)]
        for k, tensor in enumerate(tensors):
            program.axpy(tensor, tensors[k - 1], 3)
        stats, copies, events = counted(driver, backend, BURST)
        assert stats["moves_out"] * 16 * MIB == stats["bytes_out"] == copies * BURST > 0
        assert events == copies + stats["moves_in"]  # each is waited for
        assert all(stats[f"{what}_s"] > 0 for what in ("frames", "maps", "unmaps", "copies"))
        for tensor in tensors:
            program.check(tensor)


@on_fake(memory_bytes=CARD)
def test_small_chunks_go_out_together(driver: Driver) -> None:
    with session(driver, chunk_mib=2, compare=False) as (backend, machine):
        driver.delay("exec:copy", 2_000_000)  # so that more wait than one
        program = Program(machine)
        tensors = [program.new(2 * MIB // 4, k) for k in range(40)]
        for k, tensor in enumerate(tensors):
            program.axpy(tensor, tensors[k - 1], 3)
        stats, copies, events = counted(driver, backend, 2 * MIB)
        assert copies == stats["moves_out"] > 20
        assert events < copies + stats["moves_in"]
        for tensor in tensors:
            program.check(tensor)

# SPDX-License-Identifier: Apache-2.0
"""Whether the arguments of a program's launches name all the memory that its kernels touch.

The program runs in managed memory, one launch at a time, each behind a gate that opens when what
it names is on the GPU. Every few launches all memory is parked: it goes to the host. A kernel that
touches what its launch does not name then faults, and the fault is counted.

A fault proves that something is not named. That there is none says so much of the launches that
ran, and not all: memory that shares a 2 MiB block with what is named comes with it, and what an
earlier launch named stays until the next parking.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from deepum.machine import BLOCK_BYTES
from deepum.policy import Policy
from deepum.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deepum._core.python_policy import Fault, Launch, View

EVERY = 7
"""Launches between two parkings; 1 is the strictest, and the slowest."""
LATE_S = 0.2  # what the sources of faults may lag behind


class Parking(Policy):
    """Sends all memory to the host every few launches, and notes the faults.

    Parameters
    ----------
    every
        So many launches apart.
    """

    name = "parking"
    defaults: ClassVar[Mapping[str, Any]] = {"every": EVERY}
    learns = pre_evicts = invalidates = False
    wants_ranges = True
    patience = 60.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.launches = self.parkings = self.parked_blocks = 0
        self.inside = self.outside = 0
        self.blocks: set[int] = set()
        """Where faults fell that no launch had named."""
        self.kernels: Counter[int] = Counter()
        """Faults of that kind by the execution ID that ran."""
        self._ranges: tuple[tuple[int, int], ...] = ()

    def on_launch(self, view: View, launch: Launch) -> None:
        """Park what this launch does not name, when it is time."""
        self._ranges = launch.ranges
        self.launches += 1
        if self.launches % self.options["every"]:
            return
        named = self._named()
        self.parkings += 1
        for block in view.resident_blocks:
            if block not in named:
                self.parked_blocks += view.evict(block)

    def on_fault(self, view: View, fault: Fault) -> None:
        """Note where it fell."""
        if fault.block in self._named():
            self.inside += 1
            return
        self.outside += 1
        self.blocks.add(fault.block)
        self.kernels[fault.exec_id] += 1

    def _named(self) -> set[int]:
        return {
            block
            for address, size in self._ranges
            if size
            for block in range(address // BLOCK_BYTES, (address + size - 1) // BLOCK_BYTES + 1)
        }


@dataclass(frozen=True)
class Verdict:
    """What was found of a program.

    Attributes
    ----------
    covered
        Whether all that ran was seen, and no access fell outside of what launches named.
    reason
        Why it is not known to be so; empty if it is.
    faults_outside
        GPU faults on blocks that the running launch had not named.
    faults_inside
        Others: memory that was named and had left all the same.
    blocks, kernels
        Blocks that those outside fell on, and different launches that ran then.
    """

    covered: bool
    reason: str
    launches: int
    parkings: int
    parked_bytes: int
    faults_outside: int
    faults_inside: int
    blocks: int
    kernels: int
    fault_source: str

    def line(self) -> str:
        """Return it as one line."""
        ran = (
            f"{self.launches:,} launches, all memory parked {self.parkings:,} times "
            f"({format_bytes(self.parked_bytes)})"
        )
        if self.covered:
            return f"covered: no access outside of what launches name; {ran}"
        return f"not proved: {self.reason}; {ran}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def measure(run: Callable[[Any], int], *, every: int = EVERY, **options: Any) -> Verdict:
    """Run a program under observation; return what was found.

    Parameters
    ----------
    run
        Runs the program, given the backend; returns its exit status.
    every
        Launches between two parkings.
    **options
        Of `deepum.backends.managed.ManagedBackend`.

    Raises
    ------
    BackendError
        This machine has no GPU session.
    """
    from deepum.backends.managed import ManagedBackend

    parking = Parking(every=every)
    backend = ManagedBackend(parking, **options)
    backend.start()
    try:
        backend.conductor.alone = True
        status = run(backend)
        time.sleep(LATE_S)
        seen = backend.launches_seen and backend.tensors_seen
    finally:
        backend.stop()
    return judge(status, seen, backend.stats, parking)


def judge(status: int, seen: bool, stats: Mapping[str, Any], parking: Parking) -> Verdict:
    """Return the verdict on a run that has ended."""
    reason = _why_not(status, seen, stats, parking)
    return Verdict(
        covered=not reason,
        reason=reason,
        launches=parking.launches,
        parkings=parking.parkings,
        parked_bytes=parking.parked_blocks * BLOCK_BYTES,
        faults_outside=parking.outside,
        faults_inside=parking.inside,
        blocks=len(parking.blocks),
        kernels=len(parking.kernels),
        fault_source=stats["fault_source"],
    )


def _why_not(status: int, seen: bool, stats: Mapping[str, Any], parking: Parking) -> str:
    if parking.outside:
        return (
            f"{parking.outside:,} faults in {len(parking.blocks):,} blocks fell outside of what "
            f"launches name ({len(parking.kernels):,} different launches): stay with managed memory"
        )
    if status:
        return f"the script ended with status {status}"
    if why := stats["failure"] or stats["set_aside"]:
        return f"the observation ended early: {why}"
    if stats["fault_source"] == "none":
        return "GPU faults are not seen on this machine; deepum doctor says why"
    lost = stats["unseen_launches"] + stats["lost_events"] + stats["lost_faults"]
    if not seen or lost:
        return "not all launches, tensors and faults were seen; deepum doctor may say why"
    late = stats["gates_overdue"] + stats["waits_given_up"] + stats["gates_squeezed"]
    if late or parking.inside or stats["move_errors"]:
        return (
            f"{late:,} launches ran before their memory was there, {parking.inside:,} faults fell "
            f"on memory that was named, {stats['move_errors']:,} moves failed: run it again, alone "
            "on the GPU, with less memory in use"
        )
    if not parking.parked_blocks:
        return f"nothing was parked in {parking.launches:,} launches: run more, or give --every 1"
    return ""

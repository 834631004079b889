# SPDX-License-Identifier: Apache-2.0
"""What a run did: seconds, bytes and counts of 2 MiB blocks, iteration by iteration."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One iteration of training."""

    time_s: float
    """Wall-clock time."""
    compute_s: float
    """Time the kernels would take with everything resident."""
    host_s: float
    """Time in which the program gave the GPU nothing to do."""
    stall_s: float
    """Time kernels stood still for memory: the three stalls below."""
    stall_fault_s: float
    """Serving demand faults: the driver's work and the transfers in."""
    stall_evict_s: float
    """Waiting for an eviction to free a frame."""
    stall_late_s: float
    """Waiting for a prefetch that was on its way, or for what is used on the host."""
    faults: int
    """Blocks touched that were neither resident nor asked for: demand faults."""
    page_faults: int
    """4 KiB pages of them that fault before the driver fetches the rest of the block."""
    bytes_in: int
    """Moved to the device."""
    bytes_out: int
    """Copied to the host by evictions."""
    bytes_dropped: int
    """Given up without copying: nothing in them was alive."""
    prefetched: int
    """Blocks brought ahead of a touch."""
    prefetch_used: int
    """Of these, touched afterwards (the late ones included)."""
    late: int
    """Of these, touched before they had arrived."""
    wasted: int
    """Of these, given up untouched."""
    fault_evictions: int
    """Evictions on the path of a fault."""
    pre_evictions: int
    """Evictions off it."""
    discarded: int
    """Blocks dropped without copying."""
    refused: int
    """Requests of the policy that the engine did not let through."""


@dataclasses.dataclass(frozen=True)
class Timeline:
    """How one iteration went, sampled after each kernel; seconds from its start, bytes."""

    time_s: Array
    resident_bytes: Array
    """Frames in use, moves to the device apart."""
    live_bytes: Array
    """Bytes of active PT blocks."""
    bytes_in: Array
    """Moved in so far."""
    bytes_out: Array
    """Copied out so far."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Iterations of one trace under one policy."""

    policy: str
    table_bytes: int
    """Memory of the policy's tables at the end."""
    iterations: list[Iteration]
    timeline: Timeline | None = None
    """Of the last iteration, if asked for."""
    set_aside: str = ""
    """Why the policy lost its job, if it did."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``deepum simulate --json`` writes for a run."""
        data: dict[str, Any] = {
            "policy": self.policy,
            "table_bytes": self.table_bytes,
            "iterations": [dataclasses.asdict(iteration) for iteration in self.iterations],
        }
        if self.set_aside:
            data["set_aside"] = self.set_aside
        return data


@dataclasses.dataclass(frozen=True)
class Bound:
    """What no policy can beat, for one iteration in the steady state."""

    ideal_s: float
    """Everything fits: the time of the kernels and of the host's pauses alone."""
    bound_s: float
    """The largest of `ideal_s`, ``bytes_in / bus in`` and ``bytes_out / bus out``."""
    bytes_in: int
    """Least traffic to the device, with perfect knowledge and next-use eviction."""
    bytes_out: int
    """Traffic to the host under the same plan."""

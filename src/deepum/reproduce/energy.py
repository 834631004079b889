# SPDX-License-Identifier: Apache-2.0
"""Energy: power times time, by what the GPU is doing.

The paper measured the whole machine at the wall. No constant here was fitted to it: what remains
of the difference is shown with the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Power:
    """Watts of the paper's machine by state."""

    machine_w: float = 245.0
    """Everything but the GPU."""
    compute_w: float = 225.0
    """The GPU while kernels run."""
    stall_w: float = 75.0
    """The GPU while a kernel stands still for memory: clocks up, units idle."""
    host_w: float = 45.0
    """The GPU with nothing launched."""
    fault_w: float = 15.0
    """More for the machine while the driver serves faults: one core."""


POWER = Power()

SOURCES = {
    "machine_w": "two EPYC 7452 (155 W TDP each, AMD) at a third of it, 16 DIMMs at 4 W, 80 W for "
    "board, fans, disks and losses; an assumption",
    "compute_w": "nine tenths of the 250 W TDP in NVIDIA's V100 PCIe data sheet; an assumption",
    "stall_w": "HBM2 and clocks at full rate without work; an assumption",
    "host_w": "a V100 in P0 with a context and nothing running; an assumption",
    "fault_w": "one core of an EPYC 7452 busy; an assumption",
}


def joules(figures: Mapping[str, float], power: Power = POWER) -> float:
    """Return the energy of a step from the means of a run (`deepum.report.study.Steady`)."""
    stalled = figures["stall_fault_s"] + figures["stall_evict_s"] + figures["stall_late_s"]
    return (
        power.machine_w * figures["time_s"]
        + power.compute_w * figures["compute_s"]
        + power.stall_w * stalled
        + power.host_w * figures["host_s"]
        + power.fault_w * figures["stall_fault_s"]
    )

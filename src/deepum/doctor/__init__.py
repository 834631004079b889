# SPDX-License-Identifier: Apache-2.0
"""What works on this machine, and what to do about the rest.

Every check is a function that returns one :class:`Check` or several, and never raises. What needs
a driver is tried out where there is one, in this process.
"""

from __future__ import annotations

from deepum.doctor import basics, gpu, host, sensing, torch
from deepum.doctor.check import BROKEN, MISSING, OK, Check

__all__ = ["BROKEN", "MISSING", "OK", "Check", "run_checks"]


def run_checks() -> list[Check]:
    """Make every check, in the order in which they are shown."""
    checks: list[Check] = []
    for look in (
        basics.python,
        basics.numpy,
        basics.core,
        basics.traces,
        host.system,
        basics.plot,
        torch.build,
        torch.compiler,
        gpu.cuda,
        sensing.launches,
        sensing.faults,
        host.lockdown,
        host.userfaultfd,
        host.module,
    ):
        checks += look()
    return checks

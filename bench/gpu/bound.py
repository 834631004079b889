# SPDX-License-Identifier: Apache-2.0
"""The time that no policy can beat, from the working sets that a run recorded.

    bound_s = max(native step, bytes in / bus, bytes out / bus)

*native step*: the measured time with everything on the card. *bytes in, bytes out*: the fewest that
any plan can move in one step of the steady state under the limit, by next-use eviction with
perfect knowledge (L. A. Belady, IBM Systems Journal 5(2), 1966; `deepum._core.bound`), over the
blocks of the PT blocks that each launch's arguments name. What dies before it is read again moves
for free. *bus*: pinned copies in one direction, measured (PCIe 5.0 x16: 55 GB/s each way, both at
once 101).

A managed block has one home, so whatever leaves with contents is copied, written to or not: every
touch counts as a write. A launch is taken to touch all of what it names; a look-up in an embedding
table touches some rows, so for such models this is no bound and None is given.
"""

from __future__ import annotations

from deepum.backends.sim import bound
from deepum.machine import Machine
from deepum.policy import Policy
from deepum.trace import Trace

BUS_BYTES_S = 55e9
LOOKS_UP = ("dlrm",)
"""Models whose launches touch little of what they name."""


class Recorder(Policy):
    """Writes down what the program does, and does nothing."""

    name = "recorder"
    learns = pre_evicts = invalidates = False
    wants_ranges = True

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.events: list[tuple] = []
        self.last_seq = 0

    def on_launch(self, view, launch):
        self.events.append(("launch", launch.seq, launch.exec_id, launch.ranges))
        self.last_seq = launch.seq

    def on_alloc(self, view, allocation):
        self.events.append(("alloc", allocation.address, allocation.bytes))

    def on_free(self, view, allocation):
        self.events.append(("free", allocation.address))


def to_trace(name: str, events: list[tuple], ends: list[int]) -> Trace:
    """Return the steps as a trace.

    Parameters
    ----------
    name
        Of the trace.
    events
        A `Recorder`'s.
    ends
        Number of the last launch of each step, the first entry that of the set-up before. What was
        freed after a step's last launch counts as freed in the next step.
    """
    builder = Trace.builder(name)
    alive: dict[int, int] = {}
    first, *rest = ends
    begun = False
    for kind, *what in events:
        if kind == "alloc":
            address, size = what
            if address in alive:  # told again, as at the beginning of a session
                continue
            alive[address] = builder.alloc_at(address, size)
        elif kind == "free":
            if what[0] in alive:
                builder.free(alive.pop(what[0]))
        else:
            seq, exec_id, ranges = what
            if seq > first and not begun:
                builder.step()
                begun = True
            if not begun:
                continue
            operands = [(alive[start], "rw") for start, _ in ranges if start in alive]
            builder.launch(f"{exec_id:x}", operands, time_ns=1, key=exec_id)
            if rest and seq == rest[0]:
                rest.pop(0)
                if not rest:
                    break
                builder.step()
    return builder.build(loop=False)


def bound_s(
    trace: Trace, limit_bytes: int, native_s: float, bus_bytes_s: float = BUS_BYTES_S
) -> dict:
    """Return ``bound_s`` and the bytes behind it."""
    steps = len(trace.columns()["schedule"])
    # Of the machine only the working sets are used: what it costs to move is not its business.
    least = bound(trace, Machine.load("h200-pcie5"), limit_bytes, max(1, steps - 1))
    time = max(native_s, least.bytes_in / bus_bytes_s, least.bytes_out / bus_bytes_s)
    return {
        "bound_s": time, "bound_bytes_in": least.bytes_in, "bound_bytes_out": least.bytes_out,
        "bound_bus_bytes_s": bus_bytes_s,
    }  # fmt: skip

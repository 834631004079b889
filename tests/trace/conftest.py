# SPDX-License-Identifier: Apache-2.0
"""Small traces to work on."""

import pytest

from deepum.trace import Operand, Trace

MIB = 1 << 20


def small() -> Trace:
    """Two steps that differ (a state appears in the first), the second of which repeats."""
    b = Trace.builder("small", model="toy", batch=2)
    w = b.alloc(3 * MIB, "parameter", "w")
    b.free(b.alloc(5000))  # only the set-up sees it
    table = b.alloc(700 * MIB, "parameter", "table")
    state = None
    for _ in range(4):
        b.step()
        x = b.alloc(MIB, "input")
        y = b.alloc(100)
        lookup = Operand(table, "r", pattern="gather", touches=64)
        b.launch("embed", [lookup, (x, "r"), (y, "w")], bytes=6400, dtype="fp16")
        if state is None:
            state = b.alloc(3 * MIB, "optimizer", "state")
            b.launch("zero", [(state, "w")], time_ns=1234)
        b.host(500)
        b.launch("gemm", [(w, "r"), Operand(y, "rw", 10, 20)], flops=1e9, key=7)
        b.free(x)
        b.launch("adam", [(w, "rw"), (state, "rw")], flops=2.5)
        b.free(y)
    return b.build()


@pytest.fixture(scope="session")
def trace() -> Trace:
    """Return a small trace with everything in it."""
    return small()

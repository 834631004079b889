# SPDX-License-Identifier: Apache-2.0
"""Blocks that have not been written leave without a copy, where a backend knows about writes."""

import pytest

from deepum.backends.sim import SimBackend
from deepum.trace import Trace

MIB = 1 << 20


@pytest.fixture(scope="module")
def trace():
    """Read eight weights in turn and write one state, over and over."""
    b = Trace.builder("reading")
    weights = [b.alloc(20 * MIB, "parameter") for _ in range(8)]
    state = b.alloc(20 * MIB, "optimizer")
    for _ in range(3):
        b.step()
        for weight in weights:
            b.launch(f"read {weight}", [(weight, "r")], time_ns=1_000_000)
        b.launch("write", [(state, "rw")], time_ns=1_000_000)
    return b.build()


@pytest.mark.parametrize("policy", ["noop", "chained"])
@pytest.mark.parametrize("clean", [False, True])
def test_only_what_was_written_is_copied(trace, policy, clean):
    backend = SimBackend(trace, policy=policy, memory=100 * MIB, options={"drop_clean": clean})
    last = backend.run(4).iterations[-1]
    backend.engine.check()
    written = 20 * MIB
    assert last.bytes_out == (written if clean else 9 * written)
    assert last.bytes_in == 9 * written
    # What left without a copy is still on the host.
    for block in range(trace.columns()["segment_address"].min() >> 21, (1 << 32) - 1):
        known = backend.engine.inspect(int(block))
        if known is None:
            break
        assert known["content"]
        assert (known["state"] == "resident") == (int(block) in backend.engine.resident_blocks())

# SPDX-License-Identifier: Apache-2.0
"""Memory mode vmm: what was measured comes out again, and its options do what they say."""

import dataclasses

import numpy as np
import pytest

from deepum.backends.sim import SimBackend, aligned, bound, simulate
from deepum.errors import DeepUMError, MachineError, PolicyError
from deepum.machine import Machine
from deepum.trace import Trace

MIB = 1 << 20
H200 = Machine.load("h200-pcie5")


def swapping(mib, tensors=24, steps=1):
    """Kernels that each write another tensor, all of one size, round and round."""
    b = Trace.builder("swapping", times="measured")
    handles = [b.alloc(mib * MIB, "parameter") for _ in range(tensors)]
    for _ in range(steps):
        b.step()
        for handle in handles:
            b.launch("touch", [(handle, "rw")], time_ns=1)
    return b.build()


@pytest.mark.parametrize(("mib", "measured"), [(2, 23e9), (8, 42.5e9), (32, 48e9), (128, 49.5e9)])
def test_steady_swapping_is_as_fast_as_it_was_measured(mib, measured):
    # 2 MiB 23+23, 8 MiB 43+42, 32 MiB 48+48, 128 MiB 50+49 GB/s each way, both at once.
    trace = swapping(max(mib, 16), tensors=64)
    memory = max(mib, 16) * MIB * 16
    run = simulate(
        trace,
        H200,
        "noop",
        memory=memory,
        memory_mode="vmm",
        iterations=6,
        options={"chunk_mib": mib},
    )
    last = run.iterations[-1]
    assert last.bytes_in == pytest.approx(last.bytes_out, rel=0.1)
    assert last.bytes_in / last.time_s == pytest.approx(measured, rel=0.12)


def test_all_resident_costs_nothing():
    trace = swapping(64)
    run = simulate(trace, H200, "arguments", memory="3GiB", memory_mode="vmm", iterations=4)
    last = run.iterations[-1]
    assert last.time_s == pytest.approx(last.compute_s)
    assert last.bytes_in == last.bytes_out == 0


def test_clean_chunks_leave_without_a_copy():
    b = Trace.builder("reading", times="measured")
    handles = [b.alloc(64 * MIB, "parameter") for _ in range(24)]
    b.step()
    for handle in handles:
        b.launch("read", [(handle, "r")], time_ns=1)
    costs = {"memory": "512MiB", "memory_mode": "vmm", "iterations": 4}
    clean = simulate(b.build(), H200, "noop", **costs).iterations[-1]
    copied = simulate(b.build(), H200, "noop", **costs, options={"drop_clean": False})
    assert clean.bytes_out == 0
    assert clean.bytes_dropped > 0
    assert copied.iterations[-1].bytes_out > 0


def test_what_a_waiting_launch_reads_is_kept_though_it_was_freed():
    # The program frees a tensor once the launch that reads it is submitted, which then still waits.
    b = Trace.builder("freeing", times="measured")
    held = [b.alloc(64 * MIB, "parameter") for _ in range(8)]
    b.step()
    made = b.alloc(64 * MIB)
    b.launch("make", [(made, "w")], time_ns=1)
    for handle in held:
        b.launch("push it out", [(handle, "rw")], time_ns=1)
    b.launch("read it", [(made, "r")], time_ns=1)
    b.free(made)
    trace = b.build()
    ran = {}
    for ahead in (0, 256):
        run = simulate(
            trace,
            H200,
            "arguments",
            memory="256MiB",
            memory_mode="vmm",
            iterations=4,
            options={"ahead": ahead},
        )
        ran[ahead] = run.iterations[-1]
    for iteration in ran.values():
        assert iteration.bytes_in == 9 * 64 * MIB


def test_a_launch_beyond_the_budget_uses_host_memory():
    b = Trace.builder("large", times="measured")
    large = b.alloc(1024 * MIB, "parameter")
    b.step()
    b.launch("read", [(large, "r")], time_ns=1000)
    trace = b.build()
    with pytest.raises(DeepUMError, match="too small"):
        simulate(trace, H200, "noop", memory="256MiB", iterations=3)
    run = simulate(trace, H200, "noop", memory="256MiB", memory_mode="vmm", iterations=3)
    last = run.iterations[-1]
    # 256 MiB stay, the rest crosses at 41 GB/s as it is used.
    assert last.bytes_in == 768 * MIB
    assert last.time_s == pytest.approx(768 * MIB / 41e9, rel=1e-6)
    assert bound(trace, H200, "256MiB", 3, "vmm").bound_s <= last.time_s


def test_the_queue_is_a_forecast():
    trace = swapping(64, tensors=48)
    times = [
        simulate(
            trace,
            H200,
            "noop",
            memory="1GiB",
            memory_mode="vmm",
            iterations=4,
            options={"ahead": ahead, "chunk_mib": 32},
        )
        .iterations[-1]
        .time_s
        for ahead in (0, 4, 256)
    ]
    assert times[0] > 1.2 * times[1] >= 1.2 * times[2]


def test_a_timeline_ends_with_the_step():
    run = simulate(
        swapping(64), H200, "noop", memory="512MiB", memory_mode="vmm", iterations=3, timeline=True
    )
    assert run.timeline.time_s[-1] == pytest.approx(run.iterations[-1].time_s)
    assert (np.diff(run.timeline.time_s) >= 0).all()
    assert run.timeline.bytes_in[-1] == run.iterations[-1].bytes_in


def offset_in_segment(columns, tensor):
    address = int(columns["tensor_address"][tensor])
    return min(address - int(start) for start in columns["segment_address"] if start <= address)


def test_segments_begin_at_multiples_of_a_chunk():
    trace = Trace.load("bert-large-b14")
    columns, before = aligned(trace.columns(), 32 * MIB), trace.columns()
    start, size = columns["segment_address"], columns["segment_bytes"]
    assert (start % (32 * MIB) == 0).all()
    order = np.argsort(start)
    assert (start[order][1:] >= (start + size)[order][:-1]).all()
    # Each tensor lies where it lay in its segment.
    for t in range(0, len(before["tensor_address"]), 37):
        was, now = (offset_in_segment(c, t) for c in (before, columns))
        assert was == now


def test_what_cannot_be_is_one_clear_error():
    trace = swapping(2)
    with pytest.raises(MachineError, match=r"no \[vmm\] section.*h200-pcie5"):
        simulate(trace, "v100-pcie3-32g", memory_mode="vmm")
    with pytest.raises(MachineError, match=r"no \[vmm\] section"):
        bound(trace, "v100-pcie3-32g", memory_mode="vmm")
    with pytest.raises(DeepUMError, match="no memory mode 'swap'; there are: managed, vmm"):
        SimBackend(trace, H200, memory_mode="swap")
    with pytest.raises(DeepUMError, match="no memory mode 'swap'"):
        bound(trace, H200, memory_mode="swap")
    with pytest.raises(DeepUMError, match="chunk_mib must be one of 2, 4, 8"):
        SimBackend(trace, H200, memory_mode="vmm", options={"chunk_mib": 3})
    with pytest.raises(DeepUMError, match="ahead must be at most 4094"):
        SimBackend(trace, H200, memory_mode="vmm", options={"ahead": 5000})
    with pytest.raises(DeepUMError, match="options"):
        SimBackend(trace, H200, memory_mode="vmm", options={"ahead": -1})
    with pytest.raises(PolicyError, match="chunk_mib is for memory mode vmm"):
        SimBackend(trace, H200, options={"chunk_mib": 8})


def test_costs_between_sizes_are_interpolated():
    costs = H200.vmm.chunk_remap_s()
    assert costs[0] == pytest.approx(57e-6)
    assert costs[1] == pytest.approx((57e-6 + 38e-6) / 2)
    assert costs[2] == pytest.approx(38e-6)
    assert costs[6] == pytest.approx(67e-6)
    one = dataclasses.replace(H200.vmm, remap_bytes=(8.0 * MIB,), remap_s=(4e-5,))
    assert one.chunk_remap_s() == [4e-5] * 7

# SPDX-License-Identifier: Apache-2.0
"""What holds for every policy on every trace."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_traces import blocks_managed, blocks_needed, machines, traces, trainings

from deepum.backends import sim
from deepum.backends.sim import SimBackend, bound, simulate
from deepum.machine import Machine
from how_many import examples

BLOCK = 2 << 20
POLICIES = ["noop", "single-level", "chained", "oracle"]
POLICY_OPTIONS = {
    "noop": [{}],
    "single-level": [{}, {"rows": 2, "ways": 1, "successors": 2, "levels": 2}],
    "chained": [
        {},
        {"rows": 2, "ways": 1, "successors": 1},
        {"pointers": False},
        {"next_use": True, "auto_depth": True},
        {"next_use": True, "gate": False},
        {"next_use": True, "rows": 2, "ways": 1},
    ],
    "oracle": [{}, {"horizon": 1}],
}
WITHOUT = [(), (), (), ("prefetch",), ("pre-evict",), ("invalidate",), sim.MECHANISMS]
FLOATS = ("time_s", "compute_s", "host_s", "stall_s")


@st.composite
def cases(draw, modes=("managed",)):
    """What `simulate` is asked for, and for how many iterations."""
    trace = draw(traces())
    mode = draw(st.sampled_from(modes))
    policy = draw(st.sampled_from(POLICIES))
    options = {
        "window": draw(st.sampled_from([1, 4, 32])),
        "ranges": draw(st.booleans()),
        "learn_allocations": draw(st.booleans()),
        **draw(st.sampled_from(POLICY_OPTIONS[policy])),
    }
    if mode == "vmm":
        options["chunk_mib"] = draw(st.sampled_from([2, 8, 32]))
        options["ahead"] = draw(st.sampled_from([0, 2, 256]))
    return {
        "memory_mode": mode,
        "trace": trace,
        "machine": draw(machines()),
        "policy": policy,
        "memory": (blocks_needed(trace) + draw(st.sampled_from([0, 1, 6, 30, 70]))) * BLOCK,
        "depth": draw(st.sampled_from([0, 1, 3, 32])),
        "without": draw(st.sampled_from(WITHOUT)),
        "options": options,
    }


@given(case=cases(modes=("vmm",)))
@examples(60)
def test_conservation_without_faults(case):
    backend = SimBackend(**case)
    seconds = 0.0
    for _ in range(4):
        i = backend.run(1).iterations[0]
        engine = backend.engine
        engine.check()
        assert engine.running is None  # a step ends when all its kernels have
        assert engine.resident + sum(engine.in_flight) <= engine.budget
        assert engine.pinned == 0
        assert i.stall_s == pytest.approx(i.stall_evict_s + i.stall_late_s)
        assert i.time_s == pytest.approx(i.compute_s + i.host_s + i.stall_s, rel=1e-9, abs=1e-12)
        assert min(i.stall_evict_s, i.stall_late_s, i.host_s) >= 0
        assert i.faults == i.page_faults == i.stall_fault_s == 0
        assert i.bytes_dropped == i.discarded * BLOCK
        seconds += i.time_s
        assert backend._simulator.now == pytest.approx(seconds)
        if "prefetch" in case["without"]:
            assert i.prefetched == 0
    stats = backend.engine.stats
    assert stats["late"] <= stats["prefetch_used"]
    assert stats["prefetch_used"] + stats["wasted"] <= stats["prefetched"]
    launches = sum(len(backend._kernels_of(backend.trace.step_at(i))) for i in range(4))
    assert stats["launches"] == launches


@given(case=cases())
@examples(150)
def test_conservation(case):
    backend = SimBackend(**case)
    off = case["without"]
    invalidates = case["policy"] != "noop" and "invalidate" not in off
    unit = 4096 if (backend._program.touch_moved < 512).any() else BLOCK
    came = went = 0
    seconds = 0.0
    launched = backend.engine.stats["launches"]
    for _ in range(4):
        i = backend.run(1).iterations[0]
        engine = backend.engine
        engine.check()
        assert engine.resident + sum(engine.in_flight) <= engine.budget
        # Time is computation, pauses and stalls, and nothing else.
        assert i.stall_s == pytest.approx(i.stall_fault_s + i.stall_evict_s + i.stall_late_s)
        assert i.time_s == pytest.approx(i.compute_s + i.host_s + i.stall_s, rel=1e-9, abs=1e-12)
        assert min(i.stall_fault_s, i.stall_evict_s, i.stall_late_s, i.host_s) >= 0
        seconds += i.time_s
        assert backend._simulator.now == pytest.approx(seconds)
        # What moves is blocks, where no gather brings pages; what is dropped was discarded.
        assert i.bytes_in % unit == i.bytes_out % unit == i.bytes_dropped % BLOCK == 0
        assert i.bytes_dropped == i.discarded * BLOCK
        assert i.bytes_in <= (i.faults + i.prefetched + engine.budget) * BLOCK
        assert i.page_faults <= i.faults * 512
        assert (i.page_faults > 0) == (i.faults > 0)
        came += i.faults + i.prefetched
        went += i.fault_evictions + i.pre_evictions + i.discarded
        # Every block that came is there, on its way, or gone again.
        assert came - went == engine.resident + engine.in_flight[0]
        if "prefetch" in off or case["policy"] == "noop":
            assert i.prefetched == i.prefetch_used == i.late == i.wasted == 0
        if case["policy"] == "noop" or ("pre-evict" in off and "prefetch" in off):
            assert i.pre_evictions == 0
        if not invalidates:
            assert i.discarded == 0
        if not case["options"]["ranges"] and case["policy"] in ("chained", "single-level", "noop"):
            assert i.refused == 0
    stats = backend.engine.stats
    assert stats["late"] <= stats["prefetch_used"]
    assert stats["prefetch_used"] + stats["wasted"] <= stats["prefetched"]
    steps = [backend.trace.step_at(i) for i in range(4)]
    assert stats["launches"] - launched == sum(len(backend._kernels_of(s)) for s in steps)


@given(case=cases(modes=("managed", "vmm")), data=st.data())
@examples(75)
def test_the_same_again_and_in_slices(case, data):
    once = simulate(**case, iterations=4, timeline=True)
    again = simulate(**case, iterations=4, timeline=True)
    assert once.iterations == again.iterations
    assert once.table_bytes == again.table_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "_SLICE", data.draw(st.integers(1, 9)))
        sliced = simulate(**case, iterations=4, timeline=True)
    backend = SimBackend(**case)
    if case["policy"] == "oracle":  # it foresees as far as a call goes
        runs = [sliced.iterations]
    else:
        runs = [sliced.iterations, [backend.run(1).iterations[0] for _ in range(4)]]
    for iterations in runs:
        for ours, theirs in zip(once.iterations, iterations, strict=True):
            # Sums of seconds may differ in the last digit.
            assert dataclasses.asdict(ours) == {
                name: pytest.approx(value, rel=1e-9, abs=1e-12)
                for name, value in dataclasses.asdict(theirs).items()
            }
    for name, values in dataclasses.asdict(once.timeline).items():
        assert values.tolist() == pytest.approx(
            getattr(sliced.timeline, name).tolist(), rel=1e-9, abs=1e-12
        )


@given(trace=traces(gathers=False), machine=machines(), spare=st.sampled_from([0, 1, 5, 20, 60]))
@examples(50)
def test_nothing_beats_the_bound(trace, machine, spare):
    memory = (blocks_needed(trace) + spare) * BLOCK
    iterations = 12
    least = bound(trace, machine, memory, iterations)
    assert least.ideal_s <= least.bound_s
    for policy in POLICIES:
        settled = simulate(trace, machine, policy, memory=memory, iterations=iterations)
        times = [i.time_s for i in settled.iterations[1:]]
        assert all(time >= least.ideal_s * (1 - 1e-9) for time in times)
        assert sum(times) / len(times) >= least.bound_s * (1 - 1e-9), policy


@given(
    trace=traces(gathers=False),
    machine=machines(),
    blocks=st.integers(1, 90),
    chunk=st.sampled_from([2, 8, 32]),
)
@examples(30)
def test_nothing_beats_the_bound_without_faults(trace, machine, blocks, chunk):
    # Budgets below what a launch needs as well.
    iterations = 12
    least = bound(trace, machine, blocks * BLOCK, iterations, "vmm")
    for policy in POLICIES:
        settled = simulate(
            trace,
            machine,
            policy,
            memory=blocks * BLOCK,
            iterations=iterations,
            memory_mode="vmm",
            options={"chunk_mib": chunk},
        )
        times = [i.time_s for i in settled.iterations[1:]]
        assert all(time >= least.ideal_s * (1 - 1e-9) for time in times)
        assert sum(times) / len(times) >= least.bound_s * (1 - 1e-9), policy


@pytest.mark.slow
@given(
    trace=trainings(),
    percent=st.integers(50, 95),
    machine=st.sampled_from(Machine.names()).map(Machine.load),
)
@examples(60)
def test_chained_is_never_much_slower_than_noop_in_training(trace, percent, machine):
    memory = max(blocks_managed(trace) * percent // 100, 3 * blocks_needed(trace)) * BLOCK
    naive, chained = (
        simulate(trace, machine, policy, memory=memory, iterations=14).iterations[6:]
        for policy in ("noop", "chained")
    )
    assume(naive[-1].faults)
    assert sum(i.time_s for i in chained) <= 1.02 * sum(i.time_s for i in naive)

# SPDX-License-Identifier: Apache-2.0
"""The simulator equals a plain-Python model of it, count for count."""

import dataclasses

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from random_traces import blocks_managed, blocks_needed, machines, traces
from reference_simulator import BLOCK, Reference, Script
from reference_vmm import ReferenceVmm

from deepum.backends.sim import SimBackend, kernel_times
from deepum.policy import Policy
from how_many import examples

ITERATIONS = 5
RENAMED = {
    "time": "time_s",
    "compute": "compute_s",
    "host": "host_s",
    "stall_fault": "stall_fault_s",
    "stall_evict": "stall_evict_s",
    "stall_late": "stall_late_s",
    "demand_evicted": "fault_evictions",
    "pre_evicted": "pre_evictions",
}


def compare(
    trace,
    machine,
    budget,
    policy,
    script,
    *,
    without=(),
    options=None,
    memory_mode="managed",
    **fields,
):
    backend = SimBackend(
        trace,
        machine,
        policy,
        memory=budget * BLOCK,
        without=without,
        options=options,
        memory_mode=memory_mode,
    )
    run = backend.run(ITERATIONS)
    assert not run.set_aside
    backend.engine.check()
    reference = (Reference if memory_mode == "managed" else ReferenceVmm)(
        backend._columns,
        trace.names,
        kernel_times(trace, machine),
        machine,
        budget,
        script,
        frozenset({"prefetch", "pre-evict", "invalidate"} - set(without)),
        **fields,
    )
    for i, iteration in enumerate(run.iterations):
        expected = reference.run_step(trace.step_at(i))
        got = dataclasses.asdict(iteration)
        for name, value in expected.items():
            if name == "launches":
                continue
            mine = got[RENAMED.get(name, name)]
            if isinstance(mine, int):
                assert mine == value, f"iteration {i}: {name}"
            else:
                assert mine == pytest.approx(value, rel=1e-9, abs=1e-13), f"iteration {i}: {name}"
        assert iteration.stall_s == pytest.approx(
            sum(expected[n] for n in ("stall_fault", "stall_evict", "stall_late")), abs=1e-12
        )
    return run, reference, backend


@given(data=st.data(), trace=traces(), machine=machines())
@examples(100)
def test_noop(data, trace, machine):
    spare = data.draw(st.integers(0, 12), "spare")
    budget = blocks_needed(trace) + spare
    run, reference, backend = compare(trace, machine, budget, "noop", Script())
    for number, block in reference.blocks.items():
        assert backend.engine.state(number) == block.state
    assert backend.engine.resident_blocks() == [b.number for b in reference.migrated]
    event(f"faults {min(3, run.iterations[-1].faults)}")
    event(f"evictions {min(3, run.iterations[-1].fault_evictions)}")


class Scripted(Policy):
    """Asks for what a script says."""

    name = "scripted"
    learns = False
    script: Script

    def __init__(self, script):
        super().__init__()
        self.script = script
        self.pre_evicts = script.pre_evicts
        self.invalidates = script.invalidates
        self.plain_memory = script.plain_memory
        self.queue = script.queue

    def _do(self, view, wishes):
        for what, first, count in wishes:
            if what == "wait":
                view.wait_for_evictions()
            else:
                getattr(view, what)(first, count)

    def on_launch(self, view, launch):
        self._do(view, self.script.launch(launch.seq))

    def on_fault(self, view, fault):
        self._do(view, self.script.fault(fault.block))

    def on_complete(self, view, launch):
        self._do(view, self.script.complete(launch.seq))


@st.composite
def scripts(draw, trace):
    first = int(trace.columns()["segment_address"].min()) >> 21
    size = blocks_managed(trace)
    wish = st.tuples(
        st.sampled_from(["prefetch", "prefetch", "prefetch", "evict", "wait"]),
        st.integers(first - 1, first + size),
        st.integers(1, 20),
    )
    at_launch = draw(st.lists(st.lists(wish, max_size=4), min_size=1, max_size=7))
    at_end = draw(st.lists(st.lists(wish, max_size=2), min_size=1, max_size=3))
    ahead = draw(st.integers(0, 9))
    return Script(
        lambda seq: at_launch[seq % len(at_launch)],
        lambda block: [("prefetch", block + 1, ahead)] if ahead else [],
        lambda seq: at_end[seq % len(at_end)],
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([False, False, True])),
        draw(st.sampled_from([0, 0, 40])),
    )


@given(data=st.data(), trace=traces(), machine=machines())
@examples(250)
def test_a_policy_of_arbitrary_wishes(data, trace, machine):
    # Every kind of move at once: prefetches in runs, on time, late and in vain, pre-evictions,
    # drops, evictions that the policy asks for, and those within faults.
    budget = blocks_needed(trace) + data.draw(st.sampled_from([0, 1, 5, 20, 60]), "spare")
    script = data.draw(scripts(trace), "script")
    without = data.draw(
        st.sampled_from([(), (), (), ("prefetch",), ("pre-evict",), ("invalidate",)]), "without"
    )
    low = data.draw(st.sampled_from([0, 3, 32]), "low")
    window = data.draw(st.sampled_from([1, 3, 32]), "window")
    ranges = data.draw(st.booleans(), "ranges")
    queue = data.draw(st.sampled_from([0, 0, 2, 100]), "queue")
    clean = data.draw(st.booleans(), "drop clean")
    options = {
        "drop_clean": clean,
        "queue": queue,
        "pre_evict_low": low,
        "pre_evict_high": low + 9,
        "window": window,
        "ranges": ranges,
    }
    run, _, _ = compare(
        trace,
        machine,
        budget,
        Scripted(script),
        script,
        without=without,
        options=options,
        low=low,
        high=low + 9,
        window=window,
        queue_asked=queue,
        drops_clean=clean,
        names_ranges=ranges,
    )
    for name in ("late", "wasted", "prefetch_used", "pre_evictions", "discarded", "refused"):
        if any(getattr(iteration, name) for iteration in run.iterations):
            event(name)


@given(data=st.data(), trace=traces(), machine=machines())
@examples(60)
def test_vmm_with_nothing_but_the_queue(data, trace, machine):
    # Budgets below what a launch names as well: the excess is used in host memory.
    budget = data.draw(st.integers(1, blocks_needed(trace) + 40), "budget")
    chunk = data.draw(st.sampled_from([1, 2, 8, 16, 64]), "chunk")
    ahead = data.draw(st.sampled_from([0, 1, 3, 256]), "ahead")
    run, reference, backend = compare(
        trace,
        machine,
        budget,
        "noop",
        Script(),
        options={"chunk_mib": 2 * chunk, "ahead": ahead},
        memory_mode="vmm",
        chunk=chunk,
        ahead=ahead,
        window=max(32, 2 * chunk),
        drops_clean=True,
    )
    for number, block in reference.blocks.items():
        assert backend.engine.state(number) == block.state
    assert all(i.faults == i.page_faults == 0 for i in run.iterations)
    event(f"late {any(i.stall_late_s for i in run.iterations)}")
    event(f"no frame {any(i.stall_evict_s for i in run.iterations)}")
    event(f"clean ones dropped {any(i.discarded for i in run.iterations)}")


@given(data=st.data(), trace=traces(), machine=machines())
@examples(80)
def test_vmm_under_a_policy_of_arbitrary_wishes(data, trace, machine):
    budget = data.draw(st.integers(1, blocks_needed(trace) + 60), "budget")
    script = dataclasses.replace(data.draw(scripts(trace), "script"), plain_memory=False)
    without = data.draw(
        st.sampled_from([(), (), (), ("prefetch",), ("pre-evict",), ("invalidate",)]), "without"
    )
    chunk = data.draw(st.sampled_from([1, 2, 8, 16]), "chunk")
    ahead = data.draw(st.sampled_from([0, 2, 256]), "ahead")
    low = data.draw(st.sampled_from([0, 3, 32]), "low")
    window = data.draw(st.sampled_from([1, 3, 32]), "window")
    queue = data.draw(st.sampled_from([0, 0, 2, 100]), "queue")
    clean = data.draw(st.booleans(), "drop clean")
    least = 2 * chunk if chunk > 1 else 0
    run, _, _ = compare(
        trace,
        machine,
        budget,
        Scripted(script),
        script,
        without=without,
        options={
            "chunk_mib": 2 * chunk,
            "ahead": ahead,
            "drop_clean": clean,
            "queue": queue,
            "pre_evict_low": low,
            "pre_evict_high": low + 9,
            "window": window,
        },
        memory_mode="vmm",
        chunk=chunk,
        ahead=ahead,
        low=max(low, least),
        high=max(low + 9, 2 * least),
        window=max(window, least),
        queue_asked=queue,
        drops_clean=clean,
    )
    for name in ("late", "wasted", "prefetch_used", "pre_evictions", "discarded", "refused"):
        if any(getattr(iteration, name) for iteration in run.iterations):
            event(name)

# SPDX-License-Identifier: Apache-2.0
"""The least traffic, against Belady's algorithm in Python and against trying everything."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import V100, blocks_needed, traces
from reference_simulator import lower

from deepum._core.bound import least_traffic
from deepum._core.lowering import Program
from deepum.backends.sim import Bound, bound, simulate
from deepum.errors import BudgetError
from deepum.trace import Operand, Trace
from how_many import examples

MIB = 1 << 20
BLOCK = 2 * MIB
NEVER = 1 << 60


def touches_of(columns, steps):
    """List (iteration, block, fresh, write): fresh touches find nothing worth reading."""
    kernels = lower(columns)
    scattered = {
        t.block for k in kernels for t in k.touches if t.random and (k.share < 1 or t.moved < 512)
    }
    content, active = set(), {}

    def change(tensor, sign):
        start = int(columns["tensor_address"][tensor])
        end = start + int(columns["tensor_block_bytes"][tensor])
        for block in range(start // BLOCK, (end - 1) // BLOCK + 1):
            size = min(end, (block + 1) * BLOCK) - max(start, block * BLOCK)
            active[block] = active.get(block, 0) + sign * size
            if active[block] == 0:
                content.discard(block)
            yield block

    for tensor in columns["initial"]:
        content.update(change(int(tensor), 1))
    found = []
    for iteration, step in enumerate(steps):
        for e in range(int(columns["step_start"][step]), int(columns["step_start"][step + 1])):
            op, arg = int(columns["event_op"][e]), int(columns["event_arg"][e])
            if op == 0:
                for touch in kernels[arg].touches:
                    if touch.block in scattered:
                        continue
                    found.append((iteration, touch.block, touch.block not in content, touch.write))
                    content.add(touch.block)
            elif op <= 2:
                list(change(arg, 1 if op == 1 else -1))
    return found


def belady(touches, budget, iterations):
    """Blocks in and out in each iteration, evicting what is read again last."""
    reads = [NEVER] * len(touches)
    last = {}
    for n in range(len(touches) - 1, -1, -1):
        block, fresh = touches[n][1:3]
        reads[n] = last.get(block, NEVER)
        last[block] = NEVER if fresh else n
    here, dirty = {}, set()
    moved_in, moved_out = [0] * iterations, [0] * iterations
    for n, (iteration, block, fresh, write) in enumerate(touches):
        if block not in here:
            if len(here) == budget:
                gone = max(here, key=here.__getitem__)
                if here.pop(gone) != NEVER and gone in dirty:
                    moved_out[iteration] += 1
                dirty.discard(gone)
            moved_in[iteration] += not fresh
        if write:
            dirty.add(block)
        here[block] = reads[n]
    return moved_in, moved_out


def fewest_fetches(touches, budget):
    """Try every choice of what to evict."""
    states = {frozenset(): 0}
    for _, block, fresh, _ in touches:
        following = {}
        for held, cost in states.items():
            if block in held:
                options = [(held, cost)]
            else:
                paid = cost + (not fresh)
                if len(held) < budget:
                    options = [(held | {block}, paid)]
                else:
                    options = [((held - {gone}) | {block}, paid) for gone in held]
            for state, paid in options:
                following[state] = min(paid, following.get(state, NEVER))
        states = following
    return min(states.values())


@given(data=st.data(), trace=traces())
@examples(150)
def test_as_belady_in_python(data, trace):
    columns = trace.columns()
    steps = [trace.step_at(i) for i in range(5)]
    budget = blocks_needed(trace) + data.draw(st.integers(0, 20))
    moved = least_traffic(Program(columns), columns, steps, budget)
    expected = belady(touches_of(columns, steps), budget, len(steps))
    for got, wanted in zip(moved, expected, strict=True):
        assert got.tolist() == wanted[:-1]


def little_trace(operations):
    """One block each: four tensors that stay, and up to two that come and go."""
    b = Trace.builder("little")
    kept = [b.alloc(BLOCK) for _ in range(4)]
    b.step()
    passing = []
    for what, which in operations:
        if what == 0 and len(passing) < 2:
            passing.append(b.alloc(BLOCK))
        elif what == 1 and passing:
            b.free(passing.pop())
        else:
            alive = kept + passing
            b.launch("k", [(alive[which % len(alive)], "rw" if what == 2 else "r")])
    b.launch("k", [(kept[0], "r")])
    for handle in passing:
        b.free(handle)
    return b.build()


@given(
    operations=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=25),
    budget=st.integers(1, 4),
)
def test_no_plan_fetches_less(operations, budget):
    trace = little_trace(operations)
    columns = trace.columns()
    steps = [trace.step_at(i) for i in range(3)]
    touches = touches_of(columns, steps)
    # The look-ahead iteration is not reported, so here it touches nothing.
    moved_in, _ = belady(touches, budget, 3)
    assert sum(moved_in) == fewest_fetches(touches, budget)
    reported = least_traffic(Program(columns), columns, steps, budget)[0]
    assert reported.tolist() == moved_in[:-1]


def cycle(count=3, mode="r", **meta):
    """As many tensors of one block, used in turn."""
    b = Trace.builder("cycle", times="measured", **meta)
    handles = [b.alloc(BLOCK, "parameter") for _ in range(count)]
    b.step()
    for handle in handles:
        b.launch("k", [(handle, mode)], time_ns=1000)
    b.host(500)
    return b.build()


def traffic(trace, budget, iterations=4):
    columns = trace.columns()
    steps = [trace.step_at(i) for i in range(iterations + 1)]
    moved = least_traffic(Program(columns), columns, steps, budget)
    return [part.tolist() for part in moved]


def test_a_cycle():
    # a b c a b c … with two frames: once warm, every other touch is a hit.
    assert traffic(cycle(), 3) == [[3, 0, 0, 0], [0, 0, 0, 0]]
    assert traffic(cycle(), 1) == [[3, 3, 3, 3], [0, 0, 0, 0]]
    assert traffic(cycle(), 2) == [[3, 1, 2, 1], [0, 0, 0, 0]]
    # What was written goes out with each eviction.
    assert traffic(cycle(mode="rw"), 1) == [[3, 3, 3, 3], [2, 3, 3, 3]]


def test_what_has_not_been_written_since_stays_where_it_is():
    # Of the two times that a leaves, it has been written before the first only.
    b = Trace.builder("once")
    first, second = (b.alloc(BLOCK) for _ in range(2))
    b.step()
    for handle, mode in ((first, "rw"), (second, "r"), (first, "r"), (second, "r")):
        b.launch("k", [(handle, mode)])
    assert traffic(b.build(), 1) == [[4, 4, 4, 4], [1, 1, 1, 1]]


def test_what_dies_moves_for_free():
    b = Trace.builder("dies")
    held = b.alloc(BLOCK)
    b.step()
    for _ in range(3):
        x = b.alloc(BLOCK)
        b.launch("make", [(x, "w")])
        b.launch("use", [(held, "r")])
        b.launch("take", [(x, "r")])
        b.free(x)
    trace = b.build()
    assert traffic(trace, 2) == [[1, 0, 0, 0], [0, 0, 0, 0]]
    # With one frame x goes out and comes back, and what is held comes in; nothing else moves.
    assert traffic(trace, 1) == [[6, 6, 6, 6], [3, 3, 3, 3]]


def test_bound():
    machine = dataclasses.replace(V100, bus_in_bytes_s=1e9, bus_out_bytes_s=0.5e9)
    inward, outward = BLOCK / 1e9, BLOCK / 0.5e9
    assert bound(cycle(), machine, 3 * BLOCK) == Bound(
        pytest.approx(3.5e-6), pytest.approx(3.5e-6), 0, 0
    )
    got = bound(cycle(mode="rw"), machine, BLOCK)
    assert got == Bound(pytest.approx(3.5e-6), pytest.approx(3 * outward), 3 * BLOCK, 3 * BLOCK)
    got = bound(cycle(), machine, BLOCK)
    assert got == Bound(pytest.approx(3.5e-6), pytest.approx(3 * inward), 3 * BLOCK, 0)
    # The least iteration counts, the first one aside.
    assert bound(cycle(), machine, 2 * BLOCK).bytes_in == BLOCK
    assert bound(cycle(), machine, 3 * BLOCK, iterations=1).bytes_in == 3 * BLOCK


def test_bound_of_a_trace_that_ends():
    b = Trace.builder("ends")
    handles = [b.alloc(BLOCK) for _ in range(3)]
    for _ in range(2):
        b.step()
        for handle in handles:
            b.launch("k", [(handle, "r")])
    trace = b.build(loop=False)
    assert bound(trace, memory=BLOCK, iterations=2).bytes_in == 3 * BLOCK


def test_the_ideal_is_that_of_the_shortest_iteration():
    b = Trace.builder("two", times="measured")
    handle = b.alloc(100)
    for time in (10, 30, 20):
        b.step()
        b.launch("k", [(handle, "r")], time_ns=time)
    trace = b.build(period=2)
    assert bound(trace, iterations=6).ideal_s == pytest.approx(20e-9)
    assert bound(trace, iterations=1).ideal_s == pytest.approx(10e-9)


def test_bound_counts_of_a_gather_only_what_it_surely_touches():
    # Each look-up hits a few of the blocks, other ones each time: a policy that fetches just
    # these must not beat the bound.
    b = Trace.builder("look-ups", times="measured")
    tables = [b.alloc(100 * BLOCK, "parameter") for _ in range(2)]
    whole = b.alloc(3 * BLOCK)
    b.step()
    for table in tables:
        look = Operand(table, "rw", pattern="gather", touches=10)
        b.launch("look", [look, (whole, "r")], time_ns=1000)
    trace = b.build()
    got = bound(trace, memory=110 * BLOCK, iterations=4)
    assert (got.bytes_in, got.bytes_out) == (0, 0)
    assert got.bound_s == got.ideal_s
    # One that hits every page is as good as a read of it all.
    b = Trace.builder("look-ups", times="measured")
    tables = [b.alloc(10 * BLOCK, "parameter") for _ in range(2)]
    b.step()
    for table in tables:
        b.launch("look", [Operand(table, "r", pattern="gather", touches=100_000)], time_ns=1000)
    trace = b.build()
    program = Program(trace.columns())
    assert program.gather_share.tolist() == [1.0, 1.0]
    assert bound(trace, memory=10 * BLOCK, iterations=4).bytes_in > 0


@pytest.mark.parametrize("touches", [50, 400])
def test_bound_knows_that_a_gather_brings_pages(touches):
    # Its faults bring a few pages of a block, and the update that follows finds the block there.
    b = Trace.builder("look-ups", times="measured")
    tables = [b.alloc(10 * BLOCK, "parameter") for _ in range(2)]
    b.step()
    for table in tables:
        look = Operand(table, "r", pattern="gather", touches=touches)
        b.launch("look", [look], time_ns=1000)
        b.launch("update", [(table, "rw")], time_ns=1000)
    trace = b.build()
    moved = simulate(trace, policy="noop", memory=10 * BLOCK, iterations=6).iterations[-1].bytes_in
    assert bound(trace, memory=10 * BLOCK).bytes_in <= moved


def test_bound_refuses_what_simulate_refuses():
    with pytest.raises(BudgetError, match="kernel 'k' alone touches"):
        b = Trace.builder("big")
        x = b.alloc(3 * BLOCK)
        b.step()
        b.launch("k", [(x, "r")])
        bound(b.build(), memory=2 * BLOCK)


def test_no_budget_is_too_large():
    assert traffic(cycle(), 1 << 40) == [[3, 0, 0, 0], [0, 0, 0, 0]]
    assert all(
        isinstance(part, np.ndarray)
        for part in least_traffic(Program(cycle().columns()), cycle().columns(), [0, 0], 3)
    )

# SPDX-License-Identifier: Apache-2.0
"""Each cost of the model, worked out by hand on traces of a few blocks."""

import dataclasses

import pytest
from random_traces import V100

from deepum.backends.sim import SimBackend, simulate
from deepum.policy import Policy
from deepum.trace import Operand, Trace

BLOCK = 2 << 20
US = 1e-6
MACHINE = dataclasses.replace(
    V100,
    name="round",
    fp32_flops=14e12,
    compute_efficiency=0.75,
    conv_efficiency=0.25,
    memory_bytes_s=900e9,
    memory_efficiency=0.8,
    launch_s=6 * US,
    bus_in_bytes_s=BLOCK / (1000 * US),
    bus_out_bytes_s=BLOCK / (2000 * US),
    # Half of what both could do alone: with both busy, in takes 2 ms a block and out 4 ms.
    bus_both_bytes_s=(BLOCK / (1000 * US) + BLOCK / (2000 * US)) / 2,
    move_in_s=100 * US,
    move_out_s=200 * US,
    max_run_blocks=16,
    fault_batch_s=10 * US,
    # A whole block faults on 256 pages if read in order, on all 512 if in strides.
    fault_page_s=20 * US / 256,
    fault_page_percent=50.0,
    fault_page_percent_strided=100.0,
    scattered_pages=16,
    fault_evict_ahead_blocks=0,
    fault_window_blocks=4,
    populate_s=5 * US,
)


class Plan(Policy):
    """Asks for what `launch` says at each launch, and `end` at each end."""

    learns = False
    pre_evicts = False

    def __init__(self, launch=None, end=None, *, invalidates=False):
        super().__init__()
        self.at = {"launch": launch or {}, "end": end or {}}
        self.invalidates = invalidates
        self.base = 0x7F00_0000_0000 >> 21

    def _do(self, view, when, seq):
        for what, first, count in self.at[when].get(seq, ()):
            assert getattr(view, what)(self.base + first, count) == count

    def on_launch(self, view, launch):
        self._do(view, "launch", launch.seq)

    def on_complete(self, view, launch):
        self._do(view, "end", launch.seq)


def one_step(*launches, kept=(), step_allocates=()):
    """A trace of one step over tensors of whole blocks, laid out one after the other.

    A launch is (microseconds, operands), an operand a tensor's number; a number is a host pause.
    """
    b = Trace.builder("hand", times="measured")
    handles = [b.alloc(blocks * BLOCK) for blocks in kept]
    b.step()
    handles += [b.alloc(blocks * BLOCK) for blocks in step_allocates]
    for launch in launches:
        if isinstance(launch, tuple):
            us, operands = launch
            b.launch("k", [(handles[o], "rw") for o in operands], time_ns=round(us * 1000))
        elif isinstance(launch, str):
            b.free(handles[int(launch)])
        else:
            b.host(launch * 1000)
    return b.build(loop=False)


def run(trace, policy="noop", blocks=256, machine=MACHINE, **more):
    return simulate(trace, machine, policy, memory=blocks * BLOCK, iterations=1, **more).iterations[
        0
    ]


def us(seconds):
    return pytest.approx(seconds * US, rel=1e-9)


def test_computation_alone():
    got = run(one_step((300, []), 50, (200, [])))
    assert got.time_s == us(550)
    assert got.compute_s == us(500)
    assert got.host_s == us(50)
    assert got.stall_s == 0


def test_a_kernel_without_memory_takes_its_time():
    assert run(one_step((123, []))).time_s == us(123)


def test_a_fault_on_a_block_without_contents():
    # The batch, the driver's work, an empty frame.
    got = run(one_step((300, [0]), step_allocates=[1]))
    assert got.time_s == us(300 + 10 + 20 + 5)
    assert got.stall_fault_s == got.stall_s == us(35)
    assert (got.faults, got.bytes_in, got.bytes_out) == (1, 0, 0)


def test_a_fault_with_a_transfer():
    got = run(one_step((300, [0]), kept=[1]))
    assert got.time_s == us(300 + 10 + 20 + 1000)
    assert (got.faults, got.bytes_in) == (1, BLOCK)
    assert got.page_faults == 256


def test_a_resident_block_costs_nothing():
    got = run(one_step((300, [0]), (100, [0]), (100, [0]), kept=[1]))
    assert got.time_s == us(500 + 1030)


@pytest.mark.parametrize(("blocks", "batches"), [(3, 1), (4, 1), (5, 2), (8, 2), (10, 3)])
def test_faults_are_served_in_batches(blocks, batches):
    # `fault_window_blocks` share the fixed cost; each has its own work and transfer.
    got = run(one_step((300, [0]), kept=[blocks]))
    assert got.time_s == us(300 + batches * 10 + blocks * 1020)
    assert got.faults == blocks


def test_a_batch_looks_no_further_than_twice_its_size():
    # Blocks 1..7 are there. The first fault of the last kernel finds none but itself within the
    # eight touches it looks at; of the ones after it, blocks 8..11 come as one batch.
    trace = one_step((100, [1]), (300, [0, 1, 2]), kept=[1, 7, 4])
    assert run(trace).time_s == us(400 + (2 * 10 + 7 * 1020) + (10 + 1020) + (10 + 4 * 1020))
    # With six there, the seventh and eighth touches are in reach.
    trace = one_step((100, [1]), (300, [0, 1, 2]), kept=[1, 6, 4])
    assert run(trace).time_s == us(400 + (2 * 10 + 6 * 1020) + (2 * 10 + 5 * 1020))


def test_the_window_has_at_most_64_blocks():
    wide = dataclasses.replace(MACHINE, fault_window_blocks=1000)
    got = run(one_step((300, [0]), kept=[65]), machine=wide)
    assert got.time_s == us(300 + 2 * 10 + 65 * 1020)


def test_eviction_within_a_fault():
    # One frame: the second kernel's block waits for the first one's to leave.
    got = run(one_step((300, [0]), (100, [1]), kept=[1, 1]), blocks=1)
    assert got.time_s == us(400 + 1030 + (10 + 200 + 2000 + 20 + 1000))
    assert got.stall_evict_s == us(2200)
    assert got.stall_fault_s == us(2 * 1030)
    assert (got.faults, got.fault_evictions, got.bytes_out) == (2, 1, BLOCK)


def test_each_eviction_within_a_fault_is_a_move_of_its_own():
    got = run(one_step((300, [0]), (100, [1]), kept=[3, 3]), blocks=3)
    assert got.time_s == us(400 + 2 * (10 + 3 * 1020) + 3 * 2200)
    assert got.fault_evictions == 3


def test_a_machine_may_evict_for_all_faults_of_a_batch_at_once():
    # Three frames; the three blocks of tensor 0 go out as one run, 200 + 3 x 2000, and the first
    # block in waits for the first one out only. With both busy, in takes 2000, out 4000 a block.
    ahead = dataclasses.replace(MACHINE, fault_evict_ahead_blocks=16)
    got = run(one_step((300, [0]), (90, [1]), kept=[3, 3]), blocks=3, machine=ahead)
    start = 300 + 10 + 3 * 1020 + 10
    first_out = start + 2200
    second_out = first_out + 2000  # started while the bus in was idle
    first_in = first_out + 20 + 2000
    third_out = second_out + 2000
    second_in = max(first_in, second_out) + 20 + 2000
    third_in = max(second_in, third_out) + 20 + 1000
    assert got.time_s == us(third_in + 90)
    assert got.fault_evictions == 3
    # No more than what is set: one ahead is as good as none.
    one = dataclasses.replace(MACHINE, fault_evict_ahead_blocks=1)
    got = run(one_step((300, [0]), (90, [1]), kept=[3, 3]), blocks=3, machine=one)
    assert got.time_s == us(390 + 2 * (10 + 3 * 1020) + 3 * 2200)


def test_what_was_never_written_goes_out_nonetheless():
    # As the driver does; the docs say so.
    b = Trace.builder("hand", times="measured")
    handles = [b.alloc(BLOCK) for _ in range(2)]
    b.step()
    for handle in handles:
        b.launch("k", [(handle, "r")], time_ns=1000)
    assert run(b.build(loop=False), blocks=1).bytes_out == BLOCK


def test_the_least_recently_migrated_goes_first():
    # a b c with two frames, then b: a has left, b is still there though a was used last.
    trace = one_step((10, [0]), (10, [1]), (10, [0]), (10, [2]), (10, [1]), kept=[1, 1, 1])
    got = run(trace, blocks=2)
    assert (got.faults, got.fault_evictions) == (3, 1)


def test_a_run_of_prefetches_pays_once():
    # 16 neighbours: one fixed cost, 16 transfers: 16,100 us. They come while kernel 1 runs.
    launch = {1: [("prefetch", 0, 16)]}
    got = run(one_step((16_100, []), (16, [0]), kept=[16]), Plan(launch))
    assert got.time_s == us(16_116)
    assert (got.prefetched, got.prefetch_used, got.late, got.faults) == (16, 16, 0, 0)
    assert got.bytes_in == 16 * BLOCK
    # A moment less, and the last one is late: the kernel waits for it and is replayed.
    got = run(one_step((16_099 - 15, []), (16, [0]), kept=[16]), Plan(launch))
    assert got.late == 1
    assert got.stall_late_s == us(1 + 10)
    assert got.time_s == us(16_100 + 10 + 1)


def test_a_longer_run_is_cut():
    short = dataclasses.replace(MACHINE, max_run_blocks=6)
    plan = Plan({1: [("prefetch", 0, 16)]})
    got = run(one_step((16_300, []), (16, [0]), kept=[16]), plan, machine=short)
    assert (got.late, got.time_s) == (0, us(16_316))
    got = run(one_step((16_299 - 15, []), (16, [0]), kept=[16]), plan, machine=short)
    assert got.late == 1


def test_blocks_that_are_no_neighbours_pay_each():
    plan = Plan({1: [("prefetch", 0, 1), ("prefetch", 2, 1)]})
    got = run(one_step((2199, []), (100, [1]), kept=[2, 1]), plan)
    assert got.time_s == us(2200 + 10 + 100)
    assert got.late == 1


def test_prefetching_what_has_no_contents():
    plan = Plan({1: [("prefetch", 0, 2)]})
    got = run(one_step((110, []), (100, [0]), step_allocates=[2]), plan)
    assert (got.time_s, got.bytes_in, got.prefetch_used) == (us(210), 0, 2)


def test_waiting_for_a_prefetch():
    # It arrives at 1100; kernel 2 touches it at 500, waits 600, and is replayed.
    plan = Plan({1: [("prefetch", 0, 1)]})
    got = run(one_step((500, []), (100, [0]), kept=[1]), plan)
    assert got.time_s == us(500 + 600 + 10 + 100)
    assert got.stall_late_s == got.stall_s == us(610)
    assert (got.faults, got.prefetched, got.prefetch_used, got.late) == (0, 1, 1, 1)


def test_a_touched_prefetch_goes_to_the_front():
    # Block 8 is last in a run of nine; touched at 500, while block 0 is moving (until 1100), it
    # comes next, with a fixed cost of its own. Then the others go on.
    plan = Plan({1: [("prefetch", 0, 9)]})
    got = run(one_step((500, []), (100, [1]), (800, [0]), kept=[8, 1]), plan)
    # At 1100 + 1100 block 8 is there; kernel 2 ends at 2200 + 10 + 100 = 2310. Blocks 1..7 come
    # at 3200 … 9200 while kernel 3 (100 a block) waits for each, then for its replay.
    now = 2310 + 100
    for arrives in range(3200, 9201, 1000):
        now = max(now, arrives) + 10 + 100
    assert got.time_s == us(now)
    assert got.late == 8


def test_a_host_pause_lets_a_prefetch_finish():
    plan = Plan({1: [("prefetch", 0, 1)]})
    got = run(one_step((500, []), 600, (100, [0]), kept=[1]), plan)
    assert (got.time_s, got.stall_s, got.late) == (us(1200), 0, 0)
    got = run(one_step((500, []), 599, (100, [0]), kept=[1]), plan)
    assert (got.stall_late_s, got.late) == (us(1 + 10), 1)


def test_what_a_policy_asks_for_at_an_end_moves_in_the_pause_after_it():
    plan = Plan(end={1: [("prefetch", 0, 1)]})
    got = run(one_step((500, []), 1100, (100, [0]), kept=[1]), plan)
    assert (got.time_s, got.late, got.prefetch_used) == (us(1700), 0, 1)


def test_both_directions_at_once():
    # Block 0 has come by a fault (1030). At launch 2 it goes out at full speed, for the way in is
    # idle: 2200. Block 1 comes in beside it at half speed: 100 + 2000.
    plan = Plan({2: [("evict", 0, 1), ("prefetch", 1, 1)]})
    got = run(one_step((10, [0]), (100, []), (30, [1]), kept=[1, 1]), plan)
    assert got.time_s == us(10 + 1030 + 2100 + 10 + 30)
    assert (got.pre_evictions, got.bytes_out, got.bytes_in) == (1, BLOCK, 2 * BLOCK)
    # With nothing going out the same prefetch takes 1100.
    plan = Plan({2: [("prefetch", 1, 1)]})
    got = run(one_step((10, [0]), (100, []), (30, [1]), kept=[1, 1]), plan)
    assert got.time_s == us(10 + 1030 + 1100 + 10 + 30)


def test_an_eviction_beside_a_prefetch_is_slower_too():
    # At launch 2 block 2 starts in (1100, alone). At launch 3, 100 later, block 0 starts out at
    # half speed: 200 + 4000. Kernel 4's fault on block 1 transfers while it is still going:
    # at half speed as well.
    plan = Plan({2: [("prefetch", 2, 1)], 3: [("evict", 0, 1)]})
    trace = one_step((10, [0]), (100, []), (1500, []), (30, [1]), kept=[1, 1, 1])
    got = run(trace, plan)
    assert got.time_s == us(10 + 1030 + 100 + 1500 + (10 + 20 + 2000) + 30)
    # The eviction ends at 1140 + 4200 = 5340, long after the last kernel.
    slow = one_step((10, [0]), (100, []), (4199, []), (30, [1]), kept=[1, 1, 1])
    assert run(slow, plan).stall_fault_s == us(1030 + 10 + 20 + 1000)
    # One frame less would do: at 2640 the block is still on its way out and keeps its frame.
    got = run(trace, plan, blocks=16)
    assert got.stall_evict_s == 0


def test_what_arrives_goes_before_what_leaves_at_the_same_moment():
    # An eviction and a prefetch end together; the next prefetch still sees the bus out busy.
    tie = dataclasses.replace(
        MACHINE,
        bus_out_bytes_s=BLOCK / (1024 * US),
        bus_in_bytes_s=2 * BLOCK / (1024 * US),
        bus_both_bytes_s=1.5 * BLOCK / (1024 * US),
        move_in_s=0.0,
        move_out_s=0.0,
    )
    plan = Plan({2: [("evict", 0, 1), ("prefetch", 1, 2)]})
    got = run(one_step((10, [0]), (100, []), (30, [1]), kept=[1, 2]), plan, machine=tie)
    assert got.time_s == us(10 + (10 + 20 + 512) + 2048 + 10 + 15)


def test_a_fault_waits_for_the_prefetch_that_is_moving():
    # At 50 the fault's batch begins; block 1 moves until 1100, and the fault's transfer after it.
    plan = Plan({1: [("prefetch", 1, 2)]})
    got = run(one_step((50, []), (30, [0]), (10, [1]), kept=[1, 2]), plan)
    # Served at 1100 + 1000 = 2100. Only then does the second prefetch start: until 3100.
    served = 1100 + 1000
    assert got.stall_fault_s == us(served - 50)
    assert got.time_s == us(3100 + 10 + 5)


def test_a_fault_that_needs_the_frame_of_a_prefetch_that_waits_for_it():
    # Four frames. Two are given to prefetches, of which the first is moving; the kernel needs all
    # four. The second prefetch, held up while faults are served, has to come in to be evicted.
    plan = Plan({1: [("prefetch", 4, 2)]})
    got = run(one_step((40, [0]), kept=[4, 2]), plan, blocks=4, options={"queue": 2})
    third = 1100 + 1000 + 1020 + 2200 + 1020
    assert got.time_s == us(third + 1000 + 2200 + 1020 + 40)
    assert (got.faults, got.prefetched, got.wasted, got.fault_evictions) == (4, 2, 2, 2)


def test_a_fault_evicts_before_those_that_wait():
    # Blocks 0..3 fill the budget. Launch 2 asks for 0 and 1 to go; the fault of kernel 2 takes
    # the frame of block 0, which is on its way out already.
    plan = Plan({2: [("evict", 0, 2)]})
    got = run(one_step((40, [0]), (30, [1]), kept=[4, 1]), plan, blocks=4)
    assert got.stall_evict_s == us(2200 - 10)
    assert (got.fault_evictions, got.pre_evictions) == (0, 2)


def test_a_touch_of_a_block_on_its_way_out_waits_and_fetches_it():
    plan = Plan({2: [("evict", 0, 1)]})
    got = run(one_step((40, [0]), (30, [0]), kept=[1]), plan)
    assert got.time_s == us(40 + 1030 + 2200 + 20 + 1000 + 30)
    assert got.faults == 2


def test_dropping_what_is_dead():
    # Tensor 0 is freed; its frame is wanted. Dropped at once if the policy invalidates.
    launches = ((40, [0]), "0", (30, [1]))
    trace = one_step(*launches, step_allocates=[1, 1])
    got = run(trace, Plan(invalidates=True), blocks=1)
    assert got.time_s == us(70 + 2 * 35)
    assert (got.bytes_dropped, got.bytes_out, got.discarded) == (BLOCK, 0, 1)
    assert (got.fault_evictions, got.stall_evict_s) == (0, 0)
    # Copied like any other if not.
    for policy, without in ((Plan(), ()), (Plan(invalidates=True), ("invalidate",))):
        got = run(trace, policy, blocks=1, without=without)
        assert got.time_s == us(70 + 2 * 35 + 2200)
        assert (got.bytes_dropped, got.bytes_out, got.discarded) == (0, BLOCK, 0)


def test_what_was_dropped_has_no_contents():
    # Freed and allocated again at the same place: a frame without a transfer.
    b = Trace.builder("hand", times="measured")
    other = b.alloc(BLOCK)
    b.step()
    for handle in (None, other, None):
        x = b.alloc(BLOCK) if handle is None else handle
        b.launch("k", [(x, "rw")], time_ns=1000)
        if handle is None:
            b.free(x)
    trace = b.build()
    got = run(trace, Plan(invalidates=True), blocks=1)
    assert (got.bytes_in, got.bytes_dropped, got.bytes_out) == (BLOCK, BLOCK, BLOCK)
    got = run(trace, Plan(), blocks=1)
    assert (got.bytes_in, got.bytes_dropped, got.bytes_out) == (2 * BLOCK, 0, 2 * BLOCK)


def test_time_is_spread_evenly_over_the_touches():
    # 400 us over four blocks; block 3 is prefetched and arrives at 1100: it is touched at 300
    # after the kernel's start, so what is lost is 1100 - 800 and the replay.
    plan = Plan({2: [("prefetch", 3, 1)]})
    got = run(one_step((10, [0]), (500, []), (400, [0, 1]), kept=[3, 1]), plan)
    assert got.stall_late_s == us(1100 - 500 - 300 + 10)


@pytest.mark.parametrize("name", ["conv2d", "aten::native_batch_norm", "max_pool2d_backward"])
def test_strided_kernels_fault_on_more_pages(name):
    b = Trace.builder("strided", times="measured")
    x = b.alloc(BLOCK)
    b.step()
    b.launch(name, [(x, "r")], time_ns=1000)
    got = run(b.build())
    assert (got.page_faults, got.time_s) == (512, us(1 + 10 + 40 + 1000))


def test_the_drivers_work_follows_the_pages_touched():
    # 101 bytes in two pages: one of them faults. All of the block is fetched.
    b = Trace.builder("small", times="measured")
    x = b.alloc(BLOCK)
    b.step()
    b.launch("k", [Operand(x, "r", 4090, 101)], time_ns=1000)
    got = run(b.build())
    assert (got.page_faults, got.bytes_in) == (1, BLOCK)
    assert got.time_s == us(1 + 10 + 20 / 256 + 1000)


def test_scattered_rows_bring_pages():
    # 64 rows in each of 8 blocks: 1 - exp(-64/512) of their pages fault, 1 - exp(-64/32) move.
    b = Trace.builder("gather", times="measured")
    x, y = b.alloc(8 * BLOCK), b.alloc(8 * BLOCK)
    b.step()
    b.launch("k", [Operand(x, "rw", pattern="gather", touches=512)], time_ns=8000)
    b.launch("l", [(y, "r")], time_ns=8000)
    faults, moved = 60, 442
    got = run(b.build(), blocks=8)
    assert got.page_faults == 8 * (faults + 256)
    assert got.bytes_in == 8 * (moved * 4096 + BLOCK)
    assert got.bytes_out == 8 * moved * 4096
    assert got.time_s == us(
        16
        + 4 * 10
        + 8 * (faults * 20 / 256 + moved / 512 * 1000)
        + 8 * (20 + 1000 + 200 + moved / 512 * 2000)
    )


def test_estimated_times_come_from_the_machine():
    b = Trace.builder("roofline")
    x = b.alloc(BLOCK)
    b.step()
    b.launch("gemm", [(x, "r")], flops=10.5e9, time_ns=77)
    b.launch("copy", [(x, "r")], bytes=720_000_000)
    b.launch("tiny", [(x, "r")])
    b.launch("conv2d", [(x, "r")], flops=3.5e9)
    got = run(b.build())
    # 10.5e9 / (14e12 x .75), 720 MB at 900 x .8, a launch, 3.5e9 / (14e12 x .25)
    assert got.compute_s == us(1000 + 1000 + 6 + 1000)
    b = Trace.builder("measured", times="measured")
    b.step()
    b.launch("a", time_ns=77_000, flops=10.5e9)
    b.launch("b", flops=10.5e9)  # a measurement that failed
    assert run(b.build()).compute_s == us(1077)


def test_a_timeline_does_not_count_what_is_on_its_way():
    # As of each kernel's last touch: at launch 2 two prefetches begin, at launch 3 one has come.
    trace = one_step((10, [0]), (1500, [0]), (1000, [0]), (10, [0]), kept=[1, 2])
    backend = SimBackend(trace, MACHINE, Plan({2: [("prefetch", 1, 2)]}), memory=256 * BLOCK)
    line = backend.run(1, timeline=True).timeline
    assert line.resident_bytes.tolist() == [BLOCK, BLOCK, 2 * BLOCK, 3 * BLOCK]


def test_a_timeline_follows_each_kernel():
    trace = one_step((300, [0]), (100, [1]), (50, []), kept=[2, 3], step_allocates=[1])
    backend = SimBackend(trace, MACHINE, "noop", memory=4 * BLOCK)
    line = backend.run(1, timeline=True).timeline
    first = 300 + 10 + 2 * 1020
    second = 100 + 10 + 3 * 1020 + 2200
    assert line.time_s.tolist() == [us(first), us(first + second), us(first + second + 50)]
    assert line.resident_bytes.tolist() == [2 * BLOCK, 4 * BLOCK, 4 * BLOCK]
    assert line.live_bytes.tolist() == [6 * BLOCK] * 3
    assert line.bytes_in.tolist() == [2 * BLOCK, 5 * BLOCK, 5 * BLOCK]
    assert line.bytes_out.tolist() == [0, BLOCK, BLOCK]
    assert SimBackend(trace, MACHINE, "noop").run(1).timeline is None


@pytest.mark.parametrize("live", [False, True])
def test_a_recorded_live_launch_has_its_execution_id_for_a_key(live):
    # There a small tensor that lies elsewhere makes no other launch: see _core/feed.pyx.
    b = Trace.builder("twice", times="measured", **({"live": []} if live else {}))
    tensors = [b.alloc(BLOCK) for _ in range(3)]
    b.step()
    for tensor in tensors[1:]:
        b.launch("k", [(tensors[0], "rw"), (tensor, "r")], key=7, time_ns=1000)
    backend = SimBackend(b.build(), MACHINE, "noop", memory=8 * BLOCK)
    assert len(set(backend._program.exec_id.tolist())) == (1 if live else 2)

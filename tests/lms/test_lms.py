# SPDX-License-Identifier: Apache-2.0
"""LMS: what it swaps, when it is out of memory, and what its time consists of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from deepum_policies.lms import LMS, LMSMod

import deepum
from deepum.errors import DeepUMError, OutOfMemoryError, PolicyError
from deepum.machine import Machine
from deepum.trace import Trace

MIB = 1 << 20
BLOCK = 2 * MIB
# One block a second each way, nothing else costs anything.
MACHINE = dataclasses.replace(
    Machine.load("v100-pcie3-32g"),
    bus_in_bytes_s=float(BLOCK),
    bus_out_bytes_s=float(BLOCK),
    bus_both_bytes_s=2.0 * BLOCK,
    move_in_s=0.0,
    move_out_s=0.0,
    populate_s=100.0,
    launch_s=0.0,
)
PATCHES = ("1.3", "1.5")


def simulate(trace: Trace, memory: int, iterations: int = 3, **options: Any) -> Any:
    return deepum.simulate(
        trace, MACHINE, LMS, memory=memory, iterations=iterations, options=options
    )


def chain(tensors: int, size: int, kernel_ns: int = 0) -> Trace:
    """Forward: each tensor is made from the last; backward: each is read and freed."""
    b = Trace.builder("chain", times="measured")
    weight = b.alloc(size, "parameter")
    for _ in range(3):
        b.step()
        made = [weight]
        for _ in range(tensors):
            made.append(b.alloc(size))
            b.launch("forward", [(made[-2], "r"), (made[-1], "w")], time_ns=kernel_ns or 1)
        while len(made) > 1:
            b.launch("backward", [(made[-1], "r"), (made[-2], "r")], time_ns=kernel_ns or 1)
            b.free(made.pop())
    return b.build()


@pytest.mark.parametrize("patch", PATCHES)
def test_no_faults_and_right_traffic(patch: str) -> None:
    trace = chain(tensors=10, size=20 * MIB)
    run = simulate(trace, 100 * MIB, patch=patch)
    last = run.iterations[-1]
    assert run.set_aside == ""
    assert last.page_faults == last.faults == last.refused == 0
    # 11 tensors live at the peak, at most 5 of them on the device.
    assert last.bytes_in >= 6 * 20 * MIB
    assert last.bytes_out >= 6 * 20 * MIB
    assert last.time_s >= last.compute_s + last.bytes_out / BLOCK * (patch == "1.3")


def test_what_fits_does_not_move_with_the_later_patch() -> None:
    trace = chain(tensors=4, size=20 * MIB)
    first, _, last = simulate(trace, 400 * MIB, patch="1.5").iterations
    assert first.bytes_in == 20 * MIB  # the parameter comes from the host
    assert last.bytes_in == last.bytes_out == 0
    # Plain memory is handed out without being cleared, whatever populating would cost.
    assert last.time_s == pytest.approx(last.compute_s)


def test_the_earlier_patch_reuses_memory_before_it_asks_for_more() -> None:
    trace = chain(tensors=4, size=20 * MIB)
    last = simulate(trace, 400 * MIB, patch="1.3").iterations[-1]
    assert last.bytes_out > 0


def test_what_was_swapped_out_before_leaves_early() -> None:
    # With 1.5 the copies of the second iteration and later run beside the kernels.
    trace = chain(tensors=10, size=20 * MIB, kernel_ns=20_000_000_000)
    first, _, last = simulate(trace, 100 * MIB, patch="1.5").iterations
    assert last.bytes_out >= 5 * 20 * MIB
    assert last.stall_evict_s < first.stall_evict_s


def test_copies_in_run_beside_the_kernel_before_with_the_earlier_patch() -> None:
    trace = chain(tensors=10, size=20 * MIB, kernel_ns=20_000_000_000)
    hidden = simulate(trace, 100 * MIB, patch="1.3").iterations[-1]
    shown = simulate(trace, 100 * MIB, patch="1.5").iterations[-1]
    assert hidden.stall_late_s / hidden.bytes_in < shown.stall_late_s / shown.bytes_in


@pytest.mark.parametrize("patch", PATCHES)
def test_out_of_memory_ends_the_run_in_one_line(patch: str) -> None:
    b = Trace.builder("wide")
    b.step()
    b.launch("begin", [(b.alloc(1024), "w")])
    held = [b.alloc(20 * MIB) for _ in range(4)]
    b.launch("all", [(h, "w") for h in held])  # outputs stay until they have been used
    b.launch("one", [(b.alloc(60 * MIB), "w")])
    b.launch("again", [(h, "r") for h in held])
    trace = b.build(loop=False)
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(trace, 128 * MIB, iterations=1, patch=patch)
    text = str(caught.value)
    assert isinstance(caught.value, DeepUMError)
    assert "\n" not in text
    assert "0.06 GiB asked for" in text
    assert "GiB free in all" in text
    assert "in the largest piece" in text


def fragmenting() -> Trace:
    """Two segments of 60 MiB, each with a small unread output in it; then 60 MiB in one piece."""
    b = Trace.builder("fragments")
    b.step()
    for _ in range(2):
        whole = b.alloc(60 * MIB)
        b.launch("whole", [(whole, "w")])
        b.free(whole)
        first = b.alloc(20 * MIB)
        b.launch("first", [(first, "w")])
        mask = b.alloc(20 * MIB)
        b.launch("mask", [(mask, "w")])
        rest = b.alloc(20 * MIB)
        b.launch("rest", [(rest, "w")])
        b.launch("use", [(first, "r"), (rest, "r")])
    b.launch("large", [(b.alloc(60 * MIB), "w")])
    return b.build(loop=False)


def test_fragmentation_counts() -> None:
    # 160 MiB less two masks of 20 are 120, in pieces of less than 60.
    with pytest.raises(OutOfMemoryError):
        simulate(fragmenting(), 160 * MIB, iterations=1, patch="1.5")
    simulate(fragmenting(), 200 * MIB, iterations=1, patch="1.5")


def test_modified_lms_gives_back_what_is_cached() -> None:
    b = Trace.builder("cached")
    b.step()
    for size in (20, 40, 60, 80):
        tensor = b.alloc(size * MIB)
        b.launch("use", [(tensor, "w")])
        b.free(tensor)
    trace = b.build(loop=False)
    policy = LMSMod(release_every=1)
    deepum.simulate(trace, MACHINE, policy, memory=160 * MIB, iterations=1)
    assert policy._device is not None
    assert policy._device.reserved_bytes == 80 * MIB  # the last one was alive until the end
    assert LMSMod().options["release_every"] > 0
    assert LMS().options["release_every"] == 0


def test_small_tensors_stay() -> None:
    b = Trace.builder("small")
    b.step()
    small = [b.alloc(MIB // 2) for _ in range(8)]
    b.launch("make", [(s, "w") for s in small])
    b.launch("use", [(s, "r") for s in small])
    for _ in range(4):
        big = b.alloc(40 * MIB)
        b.launch("big", [(big, "w")])
        b.launch("big", [(big, "r")])
    b.launch("use", [(s, "r") for s in small])
    policy = LMS()
    run = deepum.simulate(b.build(loop=False), MACHINE, policy, memory=100 * MIB, iterations=1)
    assert run.iterations[0].faults == 0
    assert all(s.place for s in policy._storages.values() if s.bytes < MIB)
    assert any(s.place is None for s in policy._storages.values())


def test_it_can_take_over_from_another_policy() -> None:
    trace = chain(tensors=10, size=20 * MIB)
    session = deepum.Session("noop", memory_limit=100 * MIB, machine=MACHINE)
    session.run(trace, iterations=1)
    session.policy = LMS()
    session.run(iterations=2)
    assert session.stats["set_aside"] == ""
    session.policy = "noop"
    session.run(iterations=1)
    assert session.stats["policy"] == "noop"


def test_by_name() -> None:
    trace = chain(tensors=4, size=20 * MIB)
    for name in ("lms", "lms-mod"):
        run = deepum.simulate(trace, MACHINE, name, memory=100 * MIB, iterations=1)
        assert run.policy == name
        assert run.set_aside == ""


def test_options() -> None:
    with pytest.raises(PolicyError, match=r"patch is 1\.3 or 1\.5, not 2"):
        LMS(patch="2")
    with pytest.raises(PolicyError, match="no option"):
        LMS(limit=1)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_a_recorded_model_runs_without_faults(patch: str) -> None:
    run = deepum.simulate("bert-large-b14", policy="lms", iterations=2, options={"patch": patch})
    for iteration in run.iterations:
        assert iteration.page_faults == 0
        assert iteration.time_s >= iteration.compute_s

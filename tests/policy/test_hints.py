# SPDX-License-Identifier: Apache-2.0
"""Hints placed by hand: what stays on the host is used over the bus and takes no frame."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from deepum_policies.hints import Hints

import deepum
from deepum.backends.sim import SimBackend
from deepum.errors import PolicyError
from deepum.machine import Machine
from deepum.trace import Operand, Trace

MIB = 1 << 20
BLOCK = 2 * MIB
# A block takes two seconds in and four out, and half as long again while both are busy.
MACHINE = dataclasses.replace(
    Machine.load("v100-pcie3-32g"),
    bus_in_bytes_s=BLOCK / 2,
    bus_out_bytes_s=BLOCK / 4,
    bus_both_bytes_s=(BLOCK / 2 + BLOCK / 4) / 1.5,
    move_in_s=0.0,
    move_out_s=0.0,
    populate_s=0.0,
    launch_s=0.0,
)
SECOND = 10**9


def one(kind: str, mode: str, blocks: int = 3, seconds: int = 3) -> Trace:
    b = Trace.builder("one", times="measured")
    tensor = b.alloc(blocks * BLOCK, kind)
    b.step()
    b.launch("use", [(tensor, mode)], time_ns=seconds * SECOND)
    return b.build()


def last(trace: Trace, policy: Any = "hints", **options: Any) -> Any:
    run = deepum.simulate(trace, MACHINE, policy, memory=20 * BLOCK, iterations=3, options=options)
    assert run.set_aside == ""
    return run.iterations[-1]


def test_reading_goes_over_the_bus_and_takes_no_frame() -> None:
    trace = one("optimizer", "r")
    backend = SimBackend(trace, MACHINE, "hints", memory=20 * BLOCK)
    i = backend.run(2).iterations[-1]
    assert backend.engine.resident == i.faults == i.refused == 0
    assert i.bytes_in == 3 * BLOCK
    assert i.bytes_out == 0
    # Each block takes two seconds on the bus, one of which the kernel computes.
    assert i.stall_late_s == pytest.approx(3 * (2 - 1))
    assert i.time_s == pytest.approx(6)


def test_reading_and_writing_go_at_once() -> None:
    i = last(one("optimizer", "rw"))
    assert i.bytes_in == i.bytes_out == 3 * BLOCK
    assert i.time_s == pytest.approx(3 * 4 * 1.5)


def test_a_long_kernel_hides_it() -> None:
    i = last(one("optimizer", "r", seconds=30))
    assert i.time_s == pytest.approx(30)
    assert i.stall_late_s == 0


def test_other_data_moves_as_ever() -> None:
    trace = one("activation", "r")
    assert last(trace).bytes_in == last(trace, "noop").bytes_in == 0  # it stays once it came
    assert last(trace).time_s == last(trace, "noop").time_s


def test_the_classes_are_an_option() -> None:
    trace = one("parameter", "r")
    assert last(trace).bytes_in > 0
    assert last(trace, on_host="optimizer state, gradient").bytes_in == 0
    assert last(trace, on_host=" parameter ,gradient").bytes_in > 0
    assert last(trace, on_host="").bytes_in == 0
    with pytest.raises(PolicyError, match="no data class 'weights'; known: parameter, "):
        Hints(on_host="weights")


def test_a_place_ends_with_what_was_in_it() -> None:
    # The same memory holds optimizer state in one half of the step and activations in the other.
    b = Trace.builder("turns", times="measured")
    b.step()
    state = b.alloc(20 * MIB, "optimizer")
    b.launch("write", [(state, "w")], time_ns=1)
    b.launch("read", [(state, "r")], time_ns=1)
    b.free(state)
    activation = b.alloc(20 * MIB)
    b.launch("make", [(activation, "w")], time_ns=1)
    b.launch("use", [(activation, "r")], time_ns=1)
    b.free(activation)
    backend = SimBackend(b.build(), MACHINE, "hints", memory=20 * BLOCK)
    i = backend.run(1).iterations[-1]
    # What is dead is copied like all else under plain demand paging: 20 MiB more come in.
    assert i.bytes_in == 40 * MIB
    assert i.bytes_out == 20 * MIB
    assert i.faults == 10
    assert backend.engine.resident == 10


def test_what_is_smaller_than_a_block_stays_as_it_is() -> None:
    b = Trace.builder("small", times="measured")
    held = [b.alloc(MIB // 2, "optimizer") for _ in range(4)]
    b.step()
    b.launch("use", [(h, "rw") for h in held], time_ns=1)
    i = last(b.build())
    assert i.bytes_in == i.bytes_out == 0


def test_of_a_gather_only_the_rows_cross() -> None:
    b = Trace.builder("gather", times="measured")
    table = b.alloc(16 * BLOCK, "parameter")
    out = b.alloc(4096)
    b.step()
    b.launch(
        "look_up",
        [Operand(table, "r", pattern="gather", touches=1000), (out, "w")],
        time_ns=1,
        bytes=2 * 1000 * 256,
    )
    trace = b.build()
    i = last(trace)
    assert 0 < i.bytes_in < 2 * 1000 * 256
    assert i.faults == 0


def test_a_policy_may_ask_for_it() -> None:
    asked: list[int] = []

    class Some(deepum.Policy):
        learns = False

        def on_alloc(self, view: Any, allocation: Any) -> None:
            asked.append(view.use_in_place(allocation.address // BLOCK, 2))
            asked.append(view.use_in_place(5, 3))

    i = last(one("input", "r"), Some)
    assert asked[:2] == [2, 0]
    assert i.bytes_in == 2 * BLOCK

# SPDX-License-Identifier: Apache-2.0
"""Building traces call by call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepum.errors import TraceError
from deepum.trace import Operand, Trace
from deepum.trace.build import TraceBuilder
from how_many import examples

MIB = 1 << 20


def builder(**meta) -> TraceBuilder:
    return Trace.builder("t", **meta)


def test_meta_may_have_any_names():
    b = builder(self=1, name="other", loop_from=9, times="measured")
    b.step()
    b.launch("k")
    assert b.build().meta == {"self": 1, "name": "t", "loop_from": 0, "times": "measured"}


def test_equal_kernels_and_steps_are_stored_once():
    b = builder()
    w = b.alloc(MIB, "parameter")
    for _ in range(3):
        b.step()
        for _ in range(5):
            b.launch("k", [(w, "rw")], flops=3)
    trace = b.build()
    assert len(trace.kernel_name) == len(trace.step_start) - 1 == 1
    assert len(trace.event_op) == trace.kernels_per_step == 5
    assert (trace.schedule.tolist(), trace.loop_from) == ([0, 0, 0], 2)


def test_keys_ignore_pointers_and_nothing_else():
    b = builder()
    w, v, small = b.alloc(MIB), b.alloc(MIB), b.alloc(512)
    b.step()
    b.launch("k", [(w, "r")])
    b.launch("k", [(v, "r")])
    assert len(set(b.build().kernel_key.tolist())) == 1
    b.launch("other", [(w, "r")])
    b.launch("k", [(w, "rw")])
    b.launch("k", [(small, "r")])
    b.launch("k", [(w, "r")], flops=1)
    b.launch("k", [(w, "r")], bytes=1)
    b.launch("k", [(w, "r")], dtype="tf32")
    b.launch("k", [Operand(w, pattern="gather")])
    b.launch("k", [Operand(w, touches=3)])
    b.launch("k", [(w, "r"), (w, "r")])
    assert len(set(b.build().kernel_key.tolist())) == 10
    # Stable across runs and versions: execution IDs are made of it.
    assert b.build().kernel_key[0] == 9940645226656718331


def test_retag_and_address():
    b = builder()
    w, x = b.alloc(MIB), b.alloc(MIB)
    assert b.address(x) == b.address(w) + MIB
    assert b.alive == [w, x]
    assert b.reserved_bytes == 2 * MIB
    b.retag(w, "gradient")
    b.step()
    b.launch("k", [(w, "r")])
    assert b.build().tensor_kind.tolist() == [2, 4]


def test_addresses_of_ones_own():
    b = builder()
    b.segment(64 * MIB, 4 * MIB)
    a = b.alloc_at(65 * MIB, 100, 512, kind="parameter", name="a")
    b.alloc_at(2 * MIB - 512, 1024)  # across a boundary: both blocks around it
    b.alloc_at(5 * MIB, MIB)
    b.alloc_at(20 * MIB, MIB)
    c = b.alloc(MIB)
    b.step()
    b.launch("k", [(a, "rw"), (c, "r")])
    trace = b.build()
    segments = zip(trace.segment_address.tolist(), trace.segment_bytes.tolist(), strict=True)
    assert [(s // MIB, n // MIB) for s, n in segments] == [
        (0, 6),
        (20, 2),
        (64, 4),
        (0x7F00_0000_0000 // MIB, 2),
    ]
    assert trace.tensor_block_bytes.tolist() == [512, 1024, MIB, MIB, MIB]
    b.free(a)  # nothing of the model's
    assert b.reserved_bytes == 2 * MIB


def test_the_fewest_last_steps_repeat():
    """Two buffers used in turn: two steps repeat, not one."""
    b = builder()
    old = b.alloc(MIB, "input")
    for _ in range(6):
        b.step()
        new = b.alloc(MIB, "input")
        b.launch("k", [(old, "r"), (new, "w")])
        b.free(old)
        old = new
    trace = b.build()
    assert (trace.schedule.tolist(), trace.loop_from) == ([0, 1, 0, 1, 0, 1], 4)
    assert [trace.step_at(i) for i in range(6, 10)] == [0, 1, 0, 1]
    assert b.build(period=4).loop_from == 2
    assert b.build(loop=False).loop_from == -1
    with pytest.raises(TraceError, match="step 3 does not repeat: at its end 1 tensors are left"):
        b.build(period=3)
    for period in (0, 7):
        with pytest.raises(TraceError, match=f"a period of {period} steps does not fit the 6"):
            b.build(period=period)


def test_what_does_not_repeat():
    b = builder()
    w = b.alloc(MIB, "parameter", "w")
    b.step()
    kept = [b.alloc(100 * i, "gradient", "g1" if i == 1 else None) for i in (1, 2, 3, 4)]
    b.launch("k", [(w, "r"), (kept[0], "w")])
    b.free(w)
    with pytest.raises(TraceError) as error:
        b.build()
    assert str(error.value) == (
        "step 0 does not repeat: at its end 4 tensors are left over (g1, gradient of 200 bytes, "
        "gradient of 300 bytes, …) and 1 are missing (w); free what the step allocated, "
        "record one more step, or call build(loop=False)"
    )
    assert b.build(loop=False).iterations == 1


def test_an_empty_last_step_does_not_count():
    b = builder()
    with pytest.raises(TraceError, match="nothing to build: no step"):
        b.build()
    w = b.alloc(MIB)
    b.step()
    with pytest.raises(TraceError, match="nothing to build: no step"):
        b.build()
    b.launch("k", [(w, "r")])
    b.step()
    b.step()
    assert b.build().iterations == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b, w: b.alloc(0), "cannot allocate 0 bytes"),
        (lambda b, w: b.alloc(-1), "bytes: -1 is not a whole number from 0 to 2^62"),
        (lambda b, w: b.alloc(1.5), "bytes: 1.5 is not a whole number"),
        (lambda b, w: b.alloc(1, "wieght"), "'wieght' is not a kind of tensor; choose from other,"),
        (lambda b, w: b.alloc_at(-1, 1), "address: -1 is not a whole number"),
        (lambda b, w: b.alloc_at(0, 0), "a tensor of 0 bytes does not fit a block of 0"),
        (lambda b, w: b.alloc_at(0, 600, 512), "a tensor of 600 bytes does not fit a block of 512"),
        (lambda b, w: b.alloc_at(1 << 48, 1), "ends above address 2^48"),
        (lambda b, w: b.segment(1, 2 * MIB), "is not made of 2 MiB blocks below 2^48"),
        (lambda b, w: b.segment(0, 0), "a segment of 0 bytes at 0x0 is not made of 2 MiB blocks"),
        (lambda b, w: b.free(99), "99 is not a handle of this builder"),
        (lambda b, w: b.address(-1), "-1 is not a handle of this builder"),
        (lambda b, w: b.retag(w, "x"), "'x' is not a kind of tensor"),
        (lambda b, w: (b.free(w), b.free(w)), "free of 'w', which has been freed"),
        (
            lambda b, w: (b.free(w), b.launch("k", [(w, "r")])),
            "kernel 'k': use of 'w', which has been freed",
        ),
        (lambda b, w: b.launch("k", [(77, "r")]), "77 is not a handle of this builder"),
        (lambda b, w: b.launch("k", [(w, "x")]), "'x' is not a mode; choose from r, w, rw"),
        (lambda b, w: b.launch("k", [Operand(w, pattern="x")]), "'x' is not a pattern"),
        (lambda b, w: b.launch("k", [Operand(w, touches=-1)]), "touches: -1 is not a whole number"),
        (
            lambda b, w: b.launch("k", [Operand(w, offset=100)]),
            "kernel 'k' takes 0 bytes at 100 of 'w', which has 100",
        ),
        (
            lambda b, w: b.launch("k", [Operand(b.alloc(9), length=10)]),
            "kernel 'k' takes 10 bytes at 0 of tensor 1, which has 9",
        ),
        (lambda b, w: b.launch("k", dtype="fp8"), "'fp8' is not a dtype; choose from fp32, tf32"),
        (lambda b, w: b.launch("k", flops=float("nan")), "kernel 'k': nan is not a number of ops"),
        (lambda b, w: b.launch("k", flops=10**400), "is not a number of operations"),
        (lambda b, w: b.launch("k", time_ns=-1), "time_ns: -1 is not a whole number"),
        (lambda b, w: b.launch("k", bytes=-1), "bytes: -1 is not a whole number"),
        (lambda b, w: b.launch("k", key=1 << 64), "kernel 'k': key 18446744073709551616 does not"),
        (lambda b, w: b.host(-1), "ns: -1 is not a whole number"),
    ],
)
def test_errors(call, text):
    b = builder()
    w = b.alloc(100, name="w")
    b.step()
    with pytest.raises(TraceError) as error:
        call(b, w)
    assert text.replace("ops", "operations") in str(error.value)


def test_the_set_up_only_allocates():
    b = builder()
    with pytest.raises(TraceError, match=r"kernel 'k' is launched before the first step\(\)"):
        b.launch("k")
    with pytest.raises(TraceError, match=r"call step\(\) before anything but allocations"):
        b.host(1)


PROGRAM = st.lists(
    st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 5)), max_size=8),
    min_size=1,
    max_size=4,
)


@given(PROGRAM, st.integers(1, 3))
@examples(60)
def test_any_program_that_frees_what_it_allocates_repeats(steps, weights):
    """Whatever the sizes and the order: it builds, and live bytes never exceed what was held."""
    b = builder()
    held = [b.alloc(MIB * (i + 1), "parameter") for i in range(weights)]
    peak = live = sum(MIB * (i + 1) for i in range(weights))
    for step in [*steps, steps[-1]]:
        b.step()
        b.launch("begin", [(h, "r") for h in held])
        mine = []
        for size, pick in step:
            mine.append((b.alloc(size), size))
            live += size
            peak = max(peak, live)
            b.launch("k", [(mine[pick % len(mine)][0], "w")])
            if pick > 3:
                handle, size = mine.pop(0)
                b.free(handle)
                live -= size
        for handle, size in mine:
            b.free(handle)
            live -= size
    trace = b.build()
    assert trace.peak_bytes == peak
    assert trace.loop_from == len(steps)
    assert trace.step_at(1000) == trace.schedule[-1]

# SPDX-License-Identifier: Apache-2.0
"""Traces: what they answer, and that they refuse to be nonsense."""

import numpy as np
import pytest

from deepum.errors import TraceError
from deepum.trace import Trace
from deepum.trace.columns import ALLOC, DTYPE_OF, FREE, HOST, KERNEL

MIB = 1 << 20


def test_what_it_says(trace):
    assert trace.name == "small"
    assert trace.names == ["embed", "zero", "gemm", "adam"]
    assert trace.meta == {
        "model": "toy",
        "batch": 2,
        "times": "estimated",
        "name": "small",
        "loop_from": 3,
    }
    assert trace.schedule.tolist() == [0, 1, 1, 1]
    assert (trace.iterations, trace.loop_from, trace.kernels_per_step) == (4, 3, 3)
    # w, table, state; x and y overlap in time with all of them in the later steps.
    assert trace.peak_bytes == (3 + 700 + 3 + 1) * MIB + 100
    assert [trace.step_at(i) for i in (0, 1, 2, 3, 4, 1000)] == [0, 1, 1, 1, 1, 1]
    assert "small" in repr(trace)
    assert "0.69 GiB" in repr(trace)


def test_columns_are_typed_contiguous_and_read_only(trace):
    columns = trace.columns()
    assert list(columns) == list(DTYPE_OF)
    for name, column in columns.items():
        assert column.dtype == DTYPE_OF[name]
        assert column.flags.c_contiguous
        assert column.flags.aligned
        assert column is getattr(trace, name)
        with pytest.raises(ValueError, match="read-only"):
            column[:1] = 0
    columns.clear()
    assert trace.columns()


def test_rows(trace):
    assert trace.tensor_bytes.tolist() == [3 * MIB, 700 * MIB, MIB, 100, 3 * MIB]
    assert trace.tensor_block_bytes.tolist() == [3 * MIB, 700 * MIB, MIB, 512, 3 * MIB]
    assert trace.tensor_kind.tolist() == [1, 1, 5, 4, 3]
    assert trace.initial.tolist() == [0, 1]
    assert trace.kernel_name.tolist() == [0, 1, 2, 3]
    assert trace.kernel_time_ns.tolist() == [0, 1234, 0, 0]
    assert trace.kernel_flops.tolist() == [0, 0, 1e9, 2.5]
    assert trace.kernel_bytes.tolist() == [6400, 3 * MIB, 3 * MIB + 20, 6 * MIB]
    assert trace.kernel_dtype.tolist() == [2, 0, 0, 0]
    assert trace.kernel_key[2] == 7
    assert trace.kernel_operand_start.tolist() == [0, 3, 4, 6, 8]
    assert trace.operand_tensor.tolist() == [1, 2, 3, 4, 0, 3, 0, 4]
    assert trace.operand_mode.tolist() == [1, 1, 2, 2, 1, 3, 3, 3]
    assert trace.operand_pattern.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert trace.operand_touches.tolist() == [64, 0, 0, 0, 0, 0, 0, 0]
    assert trace.operand_offset.tolist() == [0, 0, 0, 0, 0, 10, 0, 0]
    assert trace.operand_length[[1, 5]].tolist() == [MIB, 20]
    second = slice(int(trace.step_start[1]), None)
    k, a, f, h = KERNEL, ALLOC, FREE, HOST
    assert trace.event_op[second].tolist() == [a, a, k, h, k, f, k, f]
    assert trace.event_arg[second].tolist() == [2, 3, 0, 500, 2, 2, 3, 3]


def test_equality(trace):
    assert trace == trace.replace()
    assert hash(trace) == hash(trace.replace())
    assert trace != trace.replace(meta={"batch": 3})
    assert trace != trace.replace(kernel_time_ns=trace.kernel_time_ns + np.uint64(1))
    assert trace != "small"
    assert trace.replace(meta={"machine": "m"}).meta["machine"] == "m"


def test_columns_of_other_types_are_converted_if_that_is_safe(trace):
    again = trace.replace(initial=trace.initial.astype(np.uint8), schedule=trace.schedule[:])
    assert again == trace
    with pytest.raises(TraceError, match="column initial is of type float64, not uint32"):
        trace.replace(initial=trace.initial.astype(float))
    with pytest.raises(TraceError, match="column initial has 2 dimensions instead of 1"):
        trace.replace(initial=trace.initial.reshape(1, -1))
    with pytest.raises(TraceError, match="unknown columns foo"):
        trace.replace(foo=trace.initial)
    columns = trace.columns()
    del columns["initial"]
    with pytest.raises(TraceError, match="column initial is missing"):
        Trace(trace.names, columns, trace.meta)


def test_a_trace_that_ends(trace):
    ends = trace.replace(meta={"loop_from": -1})
    assert [ends.step_at(i) for i in range(4)] == [0, 1, 1, 1]
    with pytest.raises(
        TraceError, match="iteration 4: trace 'small' ends after 4 iterations and does not loop"
    ):
        ends.step_at(4)
    with pytest.raises(TraceError, match="there is no iteration -1"):
        trace.step_at(-1)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"name": 3}, "meta lacks 'name', a string"),
        ({"times": None}, "meta lacks 'times', a string"),
        ({"times": "guessed"}, 'meta "times" is neither "estimated" nor "measured"'),
        ({"loop_from": "x"}, "meta lacks 'loop_from', an integer"),
        ({"loop_from": True}, "meta lacks 'loop_from', an integer"),
        ({"loop_from": 4}, "loop_from is 4, but there are 4 iterations"),
        ({"loop_from": -2}, "loop_from is -2, but there are 4 iterations"),
        ({"loop_from": 0}, "the loop from iteration 0 does not close: 1 tensors are alive only"),
    ],
)
def test_wrong_meta(trace, meta, text):
    with pytest.raises(TraceError) as error:
        trace.replace(meta=meta)
    assert text in str(error.value)


def put(column, index, value):
    """Return a function that changes one entry of a column."""

    def change(trace):
        array = trace.columns()[column].copy()
        array[index] = value
        return {column: array}

    return change


def without_last(column):
    return lambda trace: {column: trace.columns()[column][:-1]}


def events(*pairs):
    """Return a function that makes the pairs the second step."""

    def change(trace):
        first = int(trace.step_start[1])
        op = np.array([p[0] for p in pairs], dtype=np.uint8)
        arg = np.array([p[1] for p in pairs], dtype=np.uint64)
        return {
            "event_op": np.append(trace.event_op[:first], op),
            "event_arg": np.append(trace.event_arg[:first], arg),
            "step_start": np.array([0, first, first + len(pairs)], dtype=np.uint32),
        }

    return change


X, Y, STATE = 2, 3, 4
BIG = 1 << 63
WRONG = [
    (without_last("tensor_bytes"), "the columns of the tensor table differ in length"),
    (without_last("event_arg"), "the columns of the event table differ in length"),
    (without_last("kernel_operand_start"), "kernel_operand_start has 4 entries where 5 are needed"),
    (put("kernel_operand_start", 0, 1), "kernel_operand_start does not rise from 0 to 8"),
    (put("kernel_operand_start", 1, 5), "kernel_operand_start does not rise from 0 to 8"),
    (put("step_start", -1, 99), "step_start does not rise from 0 to 18"),
    (lambda t: {"step_start": t.step_start[:0]}, "step_start does not rise from 0 to 18"),
    (lambda t: {"schedule": t.schedule[:0]}, "the trace has no iterations"),
    (put("schedule", 1, 2), "schedule holds 2, but there are only 2 steps"),
    (put("initial", 0, 5), "initial holds 5, but there are only 5 tensors"),
    (put("initial", 0, 1), "a tensor is listed twice in initial"),
    (put("operand_tensor", 2, 5), "operand_tensor holds 5, but there are only 5 tensors"),
    (put("kernel_name", 2, 4), "kernel_name holds 4, but there are only 4 kernel names"),
    (put("tensor_kind", 2, 7), "tensor_kind holds 7, but there are only 7 kinds"),
    (put("kernel_dtype", 2, 4), "kernel_dtype holds 4, but there are only 4 dtypes"),
    (put("operand_pattern", 2, 2), "operand_pattern holds 2, but there are only 2 patterns"),
    (put("operand_mode", 2, 4), "operand_mode holds 4, but there are only 4 modes"),
    (put("operand_mode", 2, 0), "operand_mode holds 0: an operand is read"),
    (put("event_op", 2, 4), "event_op holds 4, but there are only 4 kinds of event"),
    (put("event_arg", 0, 5), "event_arg holds 5, but there are only 5 tensors"),
    (put("event_arg", 2, 4), "event_arg holds 4, but there are only 4 kernels"),
    (put("event_arg", 5, BIG), f"event_arg holds {BIG}, which is absurd"),
    (put("kernel_time_ns", 0, BIG), f"kernel_time_ns holds {BIG}, which is absurd"),
    (put("kernel_bytes", 0, BIG), f"kernel_bytes holds {BIG}, which is absurd"),
    (put("operand_touches", 0, BIG), f"operand_touches holds {BIG}, which is absurd"),
    (put("kernel_flops", 0, np.nan), "kernel_flops holds a number that is not finite and positive"),
    (put("kernel_flops", 0, -1), "kernel_flops holds a number that is not finite and positive"),
    (put("segment_address", 0, BIG), "segment 0 does not end below address 2^48"),
    (put("segment_bytes", 0, 1 << 48), "segment 0 does not end below address 2^48"),
    (put("segment_address", 0, MIB), "a segment does not begin and end at a multiple of 2 MiB"),
    (put("segment_bytes", 0, MIB), "a segment does not begin and end at a multiple of 2 MiB"),
    (put("segment_bytes", 0, 1 << 30), "two segments overlap"),
    (put("tensor_address", 1, BIG), "tensor 1 does not end below address 2^48"),
    (put("tensor_block_bytes", 1, BIG), "tensor 1 does not end below address 2^48"),
    (put("tensor_address", 1, 0), "tensor 1 does not lie in a segment"),
    (put("tensor_block_bytes", 1, 1 << 32), "tensor 1 does not lie in a segment"),
    (lambda t: {"segment_address": t.segment_address[:0], "segment_bytes": t.segment_bytes[:0]},
     "tensor 0 does not lie in a segment"),
    (put("tensor_bytes", 1, 0), "tensor 1 has 0 bytes in a block of 734003200"),
    (put("tensor_bytes", 3, 513), "tensor 3 has 513 bytes in a block of 512"),
    (put("operand_offset", 5, 81), "operand 5 takes 20 bytes at 81 of a tensor of 100 bytes"),
    (put("operand_length", 5, 0), "operand 5 takes 0 bytes at 10 of a tensor of 100 bytes"),
    (put("operand_length", 5, 2**64 - 1), "bytes at 10 of a tensor of 100 bytes"),
    (put("operand_offset", 5, 2**64 - 1), "operand 5 takes 20 bytes at"),
    (lambda t: {"event_op": np.where(t.event_op == KERNEL, HOST, t.event_op).astype(np.uint8)},
     "the trace launches no kernels"),
    (events((ALLOC, X), (ALLOC, X)), "step 1, event 1: the program allocates tensor 2 (1048576"),
    (events((FREE, 0), (FREE, 0)), "step 1, event 1: the program frees tensor 0"),
    (events((ALLOC, Y), (FREE, Y), (HOST, 1), (KERNEL, 2)),
     "step 1, event 3: a kernel uses tensor 3 (100 bytes at 0x"),
    (events((KERNEL, 2)), "iteration 1 (step 1) uses or frees tensor 3 (100 bytes at 0x"),
    (events((FREE, X)), "iteration 1 (step 1) uses or frees tensor 2"),
    (events((ALLOC, 0)), "iteration 1 (step 1) allocates tensor 0"),
    (events((KERNEL, 3), (ALLOC, STATE)), "allocates tensor 4"),
    (events((FREE, 0)), "iteration 2 (step 1) uses or frees tensor 0"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_columns(trace, number):
    change, text = WRONG[number]
    with pytest.raises(TraceError) as error:
        trace.replace(**change(trace))
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_no_operands_and_no_memory():
    b = Trace.builder("nothing")
    b.step()
    b.launch("spin")
    trace = b.build()
    assert (trace.peak_bytes, trace.kernels_per_step, len(trace.segment_bytes)) == (0, 1, 0)


def overlapping(first, second):
    """Build a trace in which two tensors at 0 are alive in turn, or not."""
    b = Trace.builder("overlap")
    old = b.alloc_at(0, MIB) if first == "initial" else None
    if second == "initial":
        b.alloc_at(512, 512)
    b.step()
    if old is None:
        old = b.alloc_at(0, MIB)
    b.launch("k", [(old, "r")])
    if second == "after":
        b.free(old)
    new = b.alloc_at(512, 512) if second != "initial" else None
    if new is not None:
        b.launch("k", [(new, "r")])
    return b.build(loop=False)


def test_overlaps():
    assert overlapping("initial", "after").peak_bytes == MIB
    with pytest.raises(TraceError, match=r"iteration 0 \(step 0\) begins with overlapping tensors"):
        overlapping("initial", "initial")
    with pytest.raises(TraceError, match=r"puts tensor 1 .512 bytes at 0x200. over a live one"):
        overlapping("initial", "before")
    with pytest.raises(TraceError, match=r"puts tensor 1 .1048576 bytes at 0x0. over a live one"):
        overlapping("later", "initial")


def test_a_long_schedule_is_checked_quickly(trace):
    long = trace.replace(schedule=np.append(0, np.ones(20_000)).astype(np.uint32))
    assert long.iterations == 20_001
    assert long.step_at(20_001) == 1

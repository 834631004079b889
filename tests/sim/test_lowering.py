# SPDX-License-Identifier: Apache-2.0
"""From operands to block touches and execution IDs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import traces
from reference_simulator import lower

from deepum._core.lowering import Program, exec_id
from deepum.trace import Operand, Trace

MIB = 1 << 20
BLOCK = 2 * MIB
BASE = 0x7F00_0000_0000
FIRST = BASE >> 21
WRITE, RANDOM = 1, 2


def program_of(*launches, tensors=(), **options):
    """Lower kernels over tensors given as (first byte from BASE, bytes)."""
    b = Trace.builder("t")
    handles = [b.alloc_at(BASE + start, size) for start, size in tensors]
    b.step()
    for launch in launches:
        named = {}
        operands = launch
        if isinstance(launch, dict):
            named, operands = launch, launch["operands"]
        b.launch(
            named.get("name", "k"),
            [
                Operand(handles[o[0]], *o[1:])
                if not isinstance(o, Operand)
                else Operand(handles[o.handle], o.mode, o.offset, o.length, o.pattern, o.touches)
                for o in operands
            ],
            key=named.get("key", 1),
        )
    return Program(b.build().columns(), **options)


def rows(program, k=0):
    at = slice(int(program.touch_start[k]), int(program.touch_start[k + 1]))
    return [
        (int(b) - FIRST, int(p), int(f))
        for b, p, f in zip(
            program.touch_block[at], program.touch_pages[at], program.touch_flags[at], strict=True
        )
    ]


def test_touches_come_in_the_order_of_the_operands():
    program = program_of(
        [(1, "r"), (0, "w"), (2, "rw")],
        tensors=[(0, 2 * BLOCK), (4 * BLOCK, 3 * BLOCK), (8 * BLOCK, BLOCK)],
    )
    assert [b for b, _, _ in rows(program)] == [4, 5, 6, 0, 1, 8]
    assert [f for _, _, f in rows(program)] == [0, 0, 0, WRITE, WRITE, WRITE]
    assert {p for _, p, _ in rows(program)} == {512}


def test_pages_are_those_that_the_bytes_lie_in():
    #            operand                         pages in each block
    cases = [
        ((0, 1), [1]),
        ((0, 4096), [1]),
        ((0, 4097), [2]),
        ((4095, 2), [2]),
        ((BLOCK - 1, 2), [1, 1]),
        ((BLOCK - 4096, 4096 + 8192), [1, 2]),
        ((100, BLOCK), [512, 1]),
        ((5 * 4096, 3 * BLOCK), [507, 512, 512, 5]),
    ]
    for (start, size), expected in cases:
        program = program_of([(0, "r")], tensors=[(start, size)])
        assert [p for _, p, _ in rows(program)] == expected, (start, size)
        assert [b for b, _, _ in rows(program)] == list(range(len(expected)))


def test_part_of_a_tensor():
    program = program_of([(0, "r", BLOCK + 5, BLOCK - 5)], tensors=[(0, 4 * BLOCK)])
    assert rows(program) == [(1, 512, 0)]


def test_nothing_of_a_tensor():
    b = Trace.builder("t")
    handles = [b.alloc_at(BASE + start, 10) for start in (0, BLOCK, 2 * BLOCK)]
    b.step()
    b.launch("k", [(h, "w") for h in handles])
    columns = b.build().columns()
    columns["operand_length"] = np.array([0, 10, 0], dtype=np.uint64)
    assert rows(Program(columns)) == [(1, 1, WRITE)]
    columns["operand_length"] = np.zeros(3, dtype=np.uint64)
    assert rows(Program(columns)) == []


def test_a_block_counts_once_and_what_is_done_with_it_adds_up():
    # Two tensors share block 1; the second is written, the first only read.
    program = program_of(
        [(0, "r"), (1, "w"), (0, "r")],
        tensors=[(0, BLOCK + 8192), (BLOCK + 8192, 4096)],
    )
    assert rows(program) == [(0, 512, 0), (1, 2 + 1 + 2, WRITE)]
    # No block has more than its 512 pages.
    program = program_of([(0, "w"), (0, "r")], tensors=[(0, BLOCK)])
    assert rows(program) == [(0, 512, WRITE)]
    # Once written, a later read does not take that back.
    assert rows(program_of([(0, "w"), (0, "r")], tensors=[(0, 8192)])) == [(0, 4, WRITE)]


def test_kernels_do_not_share_what_they_touch():
    program = program_of(
        {"operands": [(0, "r")], "key": 1},
        {"operands": [(0, "w"), (1, "r")], "key": 2},
        {"operands": [(0, "r")], "key": 3},
        tensors=[(0, BLOCK), (BLOCK, BLOCK)],
    )
    assert program.touch_start.tolist() == [0, 1, 3, 4]
    assert rows(program, 0) == [(0, 512, 0)]
    assert rows(program, 1) == [(0, 512, WRITE), (1, 512, 0)]
    assert rows(program, 2) == [(0, 512, 0)]
    assert program.working_set.tolist() == [1, 2, 1]
    assert program.working_set.dtype == np.int64


def test_a_kernel_without_operands_touches_nothing():
    program = program_of([], tensors=[(0, 10)])
    assert program.working_set.tolist() == [0]
    assert len(program.touch_block) == 0


def test_a_gather_touches_the_share_that_its_rows_fall_on():
    gather = Operand(0, "r", pattern="gather", touches=7)
    program = program_of([gather, (1, "w")], tensors=[(0, 10 * BLOCK), (20 * BLOCK, BLOCK)])
    assert [f for _, _, f in rows(program)] == [RANDOM] * 10 + [WRITE]
    assert program.gather_share[0] == pytest.approx(1 - math.exp(-0.7))
    # Of two look-ups the sparser one counts.
    sparse = Operand(1, "rw", pattern="gather", touches=1)
    program = program_of([gather, sparse], tensors=[(0, 10 * BLOCK), (20 * BLOCK, 4 * BLOCK)])
    assert program.gather_share[0] == pytest.approx(1 - math.exp(-0.25))
    assert rows(program)[-1][2] == RANDOM | WRITE


def test_what_a_kernel_reads_as_a_whole_comes_as_a_whole():
    # In whatever order it also looks rows up there.
    gather = Operand(0, "r", pattern="gather", touches=3)
    for operands in ([gather, (0, "r")], [(0, "r"), gather]):
        program = program_of(operands, tensors=[(0, 3 * BLOCK)])
        assert program.touch_moved.tolist() == [512] * 3
    assert program_of([gather], tensors=[(0, 3 * BLOCK)]).touch_moved.tolist() == [16] * 3
    few = program_of([gather], tensors=[(0, 3 * BLOCK)], scattered=4)
    assert few.touch_moved.tolist() == [4] * 3
    assert few.touch_pages.tolist() == [1] * 3


def test_a_gather_within_one_block_is_not_random():
    gather = Operand(0, "r", pattern="gather", touches=7)
    program = program_of([gather], tensors=[(0, BLOCK)])
    assert rows(program) == [(0, 512, 0)]
    assert program.gather_share.tolist() == [1.0]
    # Nor is what the kernel reads as a whole before.
    program = program_of([(0, "r"), gather], tensors=[(0, 3 * BLOCK)])
    assert [f for _, _, f in rows(program)] == [0, 0, 0]


@given(trace=traces(), scattered=st.sampled_from([1, 4, 16]))
def test_as_the_reference(trace, scattered):
    columns = trace.columns()
    strided = [k % 3 == 1 for k in range(len(columns["kernel_name"]))]
    program = Program(columns, strided=strided, scattered=scattered)
    for k, kernel in enumerate(lower(columns, scattered)):
        at = slice(int(program.touch_start[k]), int(program.touch_start[k + 1]))
        expected = [
            (t.block, t.pages, t.moved, t.write + 2 * t.random + 4 * strided[k])
            for t in kernel.touches
        ]
        names = ("block", "pages", "moved", "flags")
        got = zip(*(getattr(program, f"touch_{name}")[at] for name in names), strict=True)
        assert [tuple(int(v) for v in row) for row in got] == expected
        assert program.gather_share[k] == pytest.approx(kernel.share)


# Execution IDs


def test_an_execution_id_is_a_hash_of_name_shape_and_pointers():
    tensors = [(0, BLOCK), (BLOCK, BLOCK)]
    launches = [
        {"name": "a", "key": 1, "operands": [(0, "r")]},
        {"name": "b", "key": 1, "operands": [(0, "r")]},
        {"name": "a", "key": 2, "operands": [(0, "r")]},
        {"name": "a", "key": 1, "operands": [(1, "r")]},
        {"name": "a", "key": 1, "operands": [(0, "r", 4)]},
        {"name": "a", "key": 1, "operands": [(0, "r"), (1, "r")]},
        {"name": "a", "key": 1, "operands": [(1, "r"), (0, "r")]},
        {"name": "a", "key": 1, "operands": []},
    ]
    ids = program_of(*launches, tensors=tensors).exec_id
    assert len(set(ids.tolist())) == len(launches)
    # Its words: the name's number, the key, then one pointer for each operand.
    assert ids[0] == exec_id([0, 1, BASE])
    assert ids[1] == exec_id([1, 1, BASE])
    assert ids[4] == exec_id([0, 1, BASE + 4])
    assert ids[6] == exec_id([0, 1, BASE + BLOCK, BASE])
    assert ids[7] == exec_id([0, 1])


def test_pointers_can_be_left_out():
    tensors = [(0, BLOCK), (BLOCK, BLOCK)]
    launches = [
        {"name": "a", "key": 1, "operands": [(0, "r")]},
        {"name": "a", "key": 1, "operands": [(1, "r")]},
        {"name": "a", "key": 2, "operands": [(1, "r")]},
    ]
    ids = program_of(*launches, tensors=tensors, pointers=False).exec_id
    assert ids[0] == ids[1] == exec_id([0, 1])
    assert ids[2] == exec_id([0, 2])


def test_the_hash_is_the_one_that_was_published():
    # The finalizer of splitmix64 (Stafford's mix 13) over a seed chained word by word, worked out
    # here with Python's integers: tables saved by one version must fit the next.
    mask = (1 << 64) - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def chained(words):
        h = 0
        for word in words:
            h = mix(h ^ ((word + 0x9E3779B97F4A7C15 + (h << 6) + (h >> 2)) & mask))
        return h

    assert exec_id([]) == 0
    for words in ([0], [1], [1, 2], [2, 1], [mask, mask, 7], [BASE] * 5):
        assert exec_id(words) == chained(words)


def test_hashes_spread():
    ids = {exec_id([a, b]) for a in range(100) for b in range(100)}
    assert len(ids) == 10_000
    ones = np.array([bin(i).count("1") for i in ids])
    assert 31 < ones.mean() < 33

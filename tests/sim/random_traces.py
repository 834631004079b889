# SPDX-License-Identifier: Apache-2.0
"""Small traces, machines and budgets for hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from deepum._core.lowering import Program
from deepum.machine import Machine, Vmm
from deepum.trace import Operand, Trace

MIB = 1 << 20
BLOCK = 2 * MIB
SIZES = (*(m * MIB for m in (20, 6, 30, 3, 11, 44, 8, 2, 1)), 4097, 300)

V100 = Machine.load("v100-pcie3-32g")
REMAPPED = Vmm(13e9, 11e9, 24e9, (2.0 * MIB, 5.0 * MIB, 32.0 * MIB), (7e-5, 9e-5, 5e-5), 8e9)

Call = tuple[int, int, int, int]


def calls() -> st.SearchStrategy[list[Call]]:
    """What a step does: each call is (what, which, how, how long), read as `play` does."""
    small = st.integers(0, 60)
    return st.lists(st.tuples(st.integers(0, 9), small, small, small), min_size=3, max_size=16)


def play(b: Any, held: list[int], program: list[Call], gathers: bool) -> None:
    """One step: allocations, frees, launches and host pauses; temporaries end with it."""
    temporary: list[int] = []
    sizes: dict[int, int] = dict(held)
    for what, which, how, long in program:
        alive = list(sizes)
        if what <= 1:
            size = SIZES[which % len(SIZES)]
            handle = b.alloc(size)
            sizes[handle] = size
            temporary.append(handle)
        elif what == 2 and temporary:
            handle = temporary.pop(which % len(temporary))
            del sizes[handle]
            b.free(handle)
        elif what == 3:
            b.host(long * 20_000)
        else:
            operands: list[Any] = []
            for i in range(min(len(alive), 1 + how % 3)):
                handle = alive[(which + i * (1 + long)) % len(alive)]
                mode = ("r", "w", "rw")[(how + i) % 3]
                size = sizes[handle]
                if gathers and what == 9 and i == 0:
                    operands.append(
                        Operand(handle, mode, pattern="gather", touches=(which * 7) % 50)
                    )
                elif long % 5 == 0:
                    offset = size // 3
                    operands.append(Operand(handle, mode, offset, size // 2))
                else:
                    operands.append((handle, mode))
            name = f"conv{what}" if what == 8 else f"k{what}"
            b.launch(name, operands, time_ns=long * 9_000, flops=1e7 * how)
    for handle in temporary:
        b.free(handle)


@st.composite
def traces(draw: st.DrawFn, *, gathers: bool = True, same: bool = False) -> Trace:
    """Return a trace of two to four steps, of one or two kinds; later iterations repeat."""
    b = Trace.builder("random", times=draw(st.sampled_from(["measured", "estimated"])))
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=6))
    held = [(b.alloc(size, "parameter"), size) for size in sizes]
    programs = [draw(calls())]
    if not same:
        programs.append(draw(calls()))
    order = draw(st.lists(st.integers(0, len(programs) - 1), min_size=1, max_size=3))
    for which in order:
        b.step()
        play(b, held, [*programs[which], (4, 0, 3, 11)], gathers)
    return b.build()


def machines() -> st.SearchStrategy[Machine]:
    """Machines whose costs differ from each other and are all seen."""
    return st.builds(
        lambda window, run, both, move, populate, percent, scattered, ahead: dataclasses.replace(
            V100,
            name="drawn",
            fault_window_blocks=window,
            max_run_blocks=run,
            bus_both_bytes_s=both,
            move_in_s=move,
            move_out_s=move * 0.7,
            populate_s=populate,
            fault_page_s=0.7e-6,
            fault_page_percent=percent,
            fault_page_percent_strided=percent * 3,
            scattered_pages=scattered,
            fault_evict_ahead_blocks=ahead,
            vmm=dataclasses.replace(
                REMAPPED, bus_both_bytes_s=both, remap_s=(7e-5, 9e-5, move + 5e-5)
            ),
        ),
        st.sampled_from([1, 2, 4, 7]),
        st.sampled_from([1, 3, 16]),
        st.sampled_from([13e9, 21e9, 40e9]),
        st.sampled_from([0.0, 31e-6, 500e-6]),
        st.sampled_from([0.0, 17e-6, 400e-6]),
        st.sampled_from([11.0, 23.0, 33.3]),
        st.sampled_from([1, 4, 16]),
        st.sampled_from([0, 2, 16]),
    )


def blocks_needed(trace: Trace) -> int:
    """Return the blocks that the largest kernel touches."""
    sizes = Program(trace.columns()).working_set
    return max(1, int(sizes.max()) if len(sizes) else 1)


def blocks_managed(trace: Trace) -> int:
    """Return the blocks of all segments."""
    return int(trace.columns()["segment_bytes"].sum()) >> 21


@st.composite
def trainings(draw: st.DrawFn) -> Trace:
    """Return a trace of a training step: forward, backward, optimizer, over layers of any size."""
    b = Trace.builder("training", times="measured")
    layers = draw(
        st.lists(
            st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(20, 400)),
            min_size=3,
            max_size=12,
        )
    )
    adam = draw(st.booleans())
    weights = [b.alloc(w * BLOCK, "parameter") for w, _, _ in layers]
    gradients = [b.alloc(w * BLOCK, "gradient") for w, _, _ in layers]
    states = [b.alloc(w * BLOCK, "optimizer") for w, _, _ in layers] if adam else []
    for _ in range(2):
        b.step()
        x = b.alloc(layers[0][1] * BLOCK, "input")
        b.launch("load", [(x, "w")], time_ns=50_000)
        made = [x]
        for weight, (_, size, us) in zip(weights, layers, strict=True):
            out = b.alloc(size * BLOCK)
            work = [(weight, "r"), (made[-1], "r"), (out, "w")]
            b.launch("forward", work, time_ns=us * size * 1000)
            made.append(out)
        error = b.alloc(layers[-1][1] * BLOCK)
        b.launch("loss", [(made.pop(), "r"), (error, "w")], time_ns=20_000)
        freed = [out]
        for i in range(len(layers) - 1, -1, -1):
            b.free(freed.pop())
            below = b.alloc(layers[max(0, i - 1)][1] * BLOCK)
            work = [(error, "r"), (made[-1], "r"), (weights[i], "r")]
            work += [(gradients[i], "w"), (below, "w")]
            b.launch("backward", work, time_ns=layers[i][2] * layers[i][1] * 2000)
            b.free(error)
            freed.append(made.pop())
            error = below
        b.free(error)
        b.free(freed.pop())
        for i, (size, _, us) in enumerate(layers):
            work = [(weights[i], "rw"), (gradients[i], "r")] + [
                (s, "rw") for s in states[i : i + 1]
            ]
            b.launch("optimizer", work, time_ns=us * size * 500)
    return b.build()

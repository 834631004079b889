# SPDX-License-Identifier: Apache-2.0
"""A kernel that says whether memory holds what it held before: 128 bits of its contents.

The digest of words ``w[0..n)`` of 64 bits is two sums modulo 2^64 over ``i``, with ``k = i + 1``:

- ``f(w[i] + k A)``, where ``f`` is the finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable
  pseudorandom number generators, OOPSLA 2014);
- ``g(w[i] ^ k B)``, where ``g`` is the same form with shifts of 32 and the multiplier ``B``.

Both are one to one in each word, so contents that differ in one word never agree; others agree by
chance once in 2^128. It guards against nobody who chooses contents so that they agree. The sums may
be taken in any order, so thread blocks need not know of each other: each leaves a pair of its own.
"""

from __future__ import annotations

NAME = "deepum_digest"
BLOCKS = 16
"""Thread blocks of a launch: few, so that most of the card stays the program's."""
THREADS = 512
"""Of each."""
_AT_ONCE = 4  # loads that a thread waits for together


def _half(start: str, shifts: tuple[int, int, int], by: tuple[str, str], into: str) -> str:
    """Return PTX that mixes what `start` leaves in `%x`, and adds it."""
    lines = [start]
    for shift, factor in zip(shifts, (*by, ""), strict=True):
        lines += [f"shr.u64 %y, %x, {shift};", "xor.b64 %x, %x, %y;"]
        if factor:
            lines.append(f"mul.lo.u64 %x, %x, {factor};")
    return "\n    ".join([*lines, f"add.u64 {into}, {into}, %x;"])


_SPLITMIX = ("0xBF58476D1CE4E5B9", "0x94D049BB133111EB")
_A, _B = "0x9E3779B97F4A7C15", "0xD6E8FEB86659FD93"
_MIX = f"""
    {_half("add.u64 %x, %w{word}, %a;", (30, 27, 31), _SPLITMIX, "%first")}
    {_half("xor.b64 %x, %w{word}, %b;", (32, 32, 32), (_B, _B), "%second")}
    add.u64 %a, %a, {_A};
    add.u64 %b, %b, {_B};
"""


def _take(pairs: int) -> str:
    """Return PTX that adds so many pairs of words, the first at `%i`, and goes on behind."""
    lines = ["mov.u64 %j, %i;"]
    for n in range(pairs):
        lines += [
            "shl.b64 %x, %j, 4;",
            "add.u64 %at, %words, %x;",
            f"ld.global.v2.u64 {{%w{2 * n}, %w{2 * n + 1}}}, [%at];",
            "add.u64 %j, %j, %stride;",
        ]
    for n in range(pairs):
        lines += [
            "shl.b64 %x, %i, 1;",
            "add.u64 %x, %x, 1;",  # k of the first of the two
            f"mul.lo.u64 %a, %x, {_A};",
            f"mul.lo.u64 %b, %x, {_B};",
            _MIX.format(word=2 * n),
            _MIX.format(word=2 * n + 1),
            "add.u64 %i, %i, %stride;",
        ]
    return "\n    ".join(lines)


PTX = f"""
.version 6.4
.target sm_60
.address_size 64

.visible .entry {NAME}(
    .param .u64 words,          // at a multiple of 16 bytes
    .param .u64 pairs,          // of words
    .param .u64 sums            // a pair for each thread block
)
.maxntid {THREADS}, 1, 1
{{
    .reg .pred  %leads, %ends;
    .reg .u32   %thread, %group, %groups, %left, %right;
    .reg .u64   %words, %pairs, %sums, %i, %j, %stride, %ahead, %at, %zero, %first, %second;
    .reg .u64   %w<{2 * _AT_ONCE}>, %a, %b, %x, %y;
    .shared .align 8 .u64 left;
    .shared .align 8 .u64 right;

    ld.param.u64 %words, [words];
    ld.param.u64 %pairs, [pairs];
    ld.param.u64 %sums, [sums];
    cvta.to.global.u64 %words, %words;
    cvta.to.global.u64 %sums, %sums;
    mov.u32 %thread, %tid.x;
    mov.u32 %group, %ctaid.x;
    mov.u32 %groups, %nctaid.x;
    mov.u32 %left, left;
    mov.u32 %right, right;
    mov.u64 %zero, 0;
    mov.u64 %first, 0;
    mov.u64 %second, 0;
    setp.eq.u32 %leads, %thread, 0;
    @%leads st.shared.u64 [%left], %zero;
    @%leads st.shared.u64 [%right], %zero;
    bar.sync 0;

    mul.wide.u32 %i, %group, {THREADS};
    cvt.u64.u32 %x, %thread;
    add.u64 %i, %i, %x;
    mul.wide.u32 %stride, %groups, {THREADS};
    mul.lo.u64 %ahead, %stride, {_AT_ONCE - 1};

MANY:
    add.u64 %x, %i, %ahead;
    setp.ge.u64 %ends, %x, %pairs;
    @%ends bra FEW;
    {_take(_AT_ONCE)}
    bra MANY;

FEW:
    setp.ge.u64 %ends, %i, %pairs;
    @%ends bra DONE;
    {_take(1)}
    bra FEW;

DONE:
    atom.shared.add.u64 %x, [%left], %first;
    atom.shared.add.u64 %x, [%right], %second;
    bar.sync 0;
    @!%leads bra END;
    ld.shared.u64 %x, [%left];
    ld.shared.u64 %y, [%right];
    mul.wide.u32 %at, %group, 16;
    add.u64 %at, %sums, %at;
    st.global.v2.u64 [%at], {{%x, %y}};
END:
    ret;
}}
"""
"""For any card of compute capability 6.0 or newer: the driver compiles it when it is loaded."""

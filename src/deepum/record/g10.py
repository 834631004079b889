# SPDX-License-Identifier: Apache-2.0
"""Kernel traces of the G10 artifact: one training iteration, measured on an A100.

The file is a JSON object with ``names`` (of kernels), ``tensors`` (lists of id, is-a-weight, bytes
and offset), ``kernels`` (lists of index of the name, cycles, input ids and output ids), and
``cycle_hz``. Weights and intermediates have an address space each, put one after the other here,
and every tensor has its own address: freed memory is never used again. An intermediate is
allocated before the first kernel that names it and freed after the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from .allocator import BASE, ROUND_SEGMENT
from .fields import field, typed

if TYPE_CHECKING:
    from ..trace import Trace


def recognise(value: dict[str, Any]) -> bool:
    """Tell whether a JSON object is such a trace."""
    return value.keys() >= {"names", "tensors", "kernels", "cycle_hz"}


def from_json(value: dict[str, Any], name: str) -> Trace:
    """Make a trace of a JSON object."""
    from ..trace import Trace

    names = [typed(n, str, "a kernel name") for n in field(value, "names", list, "the trace")]
    hz = field(value, "cycle_hz", float, "the trace")
    if not 0 < hz < float("inf"):
        raise TraceError(f"cycle_hz is {hz}")
    tensors = _tensors(value)
    kernels = _kernels(value, len(names), tensors)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, (_, _, inputs, outputs) in enumerate(kernels):
        for t in (*inputs, *outputs):
            first.setdefault(t, i)
            last[t] = i
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for t, i in first.items():
        if not tensors[t][0]:
            begins.setdefault(i, []).append(t)
            ends.setdefault(last[t], []).append(t)

    batch = name.rpartition("-")[2]
    meta = {"batch": int(batch)} if batch.isascii() and batch.isdigit() else {}
    b = Trace.builder(name, **meta, source="g10", times="measured")
    base = BASE
    for weight in (True, False):
        size = max((o + n for w, n, o in tensors.values() if w is weight), default=0)
        size = -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        if size:
            b.segment(base, size)
        for t, (w, n, offset) in tensors.items():
            if w is weight:
                tensors[t] = (w, n, base + offset)
        base += size
    handles = {t: b.alloc_at(a, n, kind="parameter") for t, (w, n, a) in tensors.items() if w}
    b.step()
    for i, (kernel, cycles, inputs, outputs) in enumerate(kernels):
        for t in begins.get(i, ()):
            handles[t] = b.alloc_at(tensors[t][2], tensors[t][1])
        modes = dict.fromkeys(inputs, "r")
        for t in outputs:
            modes[t] = "rw" if modes.get(t, "w") != "w" else "w"
        operands = [(handles[t], mode) for t, mode in modes.items()]
        b.launch(names[kernel], operands, time_ns=round(cycles / hz * 1e9))
        for t in ends.get(i, ()):
            b.free(handles[t])
    return b.build()


def _tensors(value: dict[str, Any]) -> dict[int, tuple[bool, int, int]]:
    """Id -> is a weight, bytes, offset."""
    tensors = {}
    for i, row in enumerate(field(value, "tensors", list, "the trace")):
        where = f"tensor {i}"
        if len(typed(row, list, where)) != 4:
            raise TraceError(f"{where} has {len(row)} fields instead of 4")
        ident, weight, size, offset = (int(typed(x, int, where)) for x in row)
        if ident in tensors or weight not in (0, 1) or size <= 0 or offset < 0:
            raise TraceError(f"{where}: {row} is not [a new id, 0 or 1, bytes, offset]")
        tensors[ident] = (weight == 1, size, offset)
    return tensors


def _kernels(
    value: dict[str, Any], names: int, tensors: dict[int, Any]
) -> list[tuple[int, int, list[int], list[int]]]:
    kernels = []
    for i, row in enumerate(field(value, "kernels", list, "the trace")):
        where = f"kernel {i}"
        if len(typed(row, list, where)) != 4:
            raise TraceError(f"{where} has {len(row)} fields instead of 4")
        name, cycles = (int(typed(x, int, where)) for x in row[:2])
        if not 0 <= name < names or cycles < 0:
            raise TraceError(f"{where} has name {name} of {names} and {cycles} cycles")
        ids = [[int(typed(t, int, where)) for t in typed(x, list, where)] for x in row[2:]]
        for t in ids[0] + ids[1]:
            if t not in tensors:
                raise TraceError(f"{where} names tensor {t}, which does not exist")
        kernels.append((name, cycles, ids[0], ids[1]))
    return kernels

# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a trace, for people and for programs in other languages.

``docs/trace-format.md`` describes it, with an example.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from ..trace.columns import ALLOC, DTYPES, FREE, HOST, KERNEL, KINDS, MODES, PATTERNS
from .fields import field, number, only, typed

if TYPE_CHECKING:
    import os

    from ..trace import Trace, TraceBuilder

FORMAT = "deepum-trace-json"
VERSION = 1
MAX_EVENTS = 20_000_000
SETTLE = 8
"""How often the last step is played again, at most, until its addresses repeat."""

_TOP = {
    "format",
    "version",
    "name",
    "meta",
    "tensors",
    "segments",
    "initial",
    "steps",
    "schedule",
    "loop",
}
_TENSOR = {"bytes", "kind", "address", "block_bytes"}
_KERNEL = {"kernel", "operands", "time_ns", "flops", "bytes", "dtype", "key"}
_OPERAND = {"tensor", "mode", "offset", "length", "pattern", "touches"}


def recognise(value: dict[str, Any]) -> bool:
    """Tell whether a JSON object is such a trace."""
    return value.get("format") == FORMAT


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from a JSON file."""
    from .formats import load_foreign

    return load_foreign(path)


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as a JSON file, with its addresses."""
    value = to_json(trace)
    steps = value.pop("steps")
    head = json.dumps(value, indent=1)
    body = ",\n".join("[\n" + ",\n".join(json.dumps(e) for e in step) + "\n]" for step in steps)
    try:
        Path(path).write_text(f'{head[:-2]},\n "steps": [{body}]\n}}\n', encoding="utf-8")
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error


# Reading


def from_json(value: dict[str, Any], name: str) -> Trace:
    """Make a trace of a JSON object; ``name`` is its name if it does not say one."""
    only(value, _TOP, "the trace")
    version = field(value, "version", int, "the trace")
    if version > VERSION:
        raise TraceError(
            f"written by a newer deepum (JSON format {version}); "
            f"this one reads up to {VERSION}: upgrade deepum"
        )
    return _Reader(value, name).read()


class _Reader:
    def __init__(self, value: dict[str, Any], name: str) -> None:
        from ..trace import Trace

        meta = field(value, "meta", dict, "the trace", {})
        self.value = value
        self.builder: TraceBuilder = Trace.builder(
            field(value, "name", str, "the trace", name), **meta
        )
        self.handles: dict[str, int] = {}
        self.tensors: dict[str, dict[str, Any]] = {}
        tensors = field(value, "tensors", dict, "the trace")
        for tensor, row in tensors.items():
            where = f"tensor {tensor!r}"
            only(typed(row, dict, where), _TENSOR, where)
            self.tensors[tensor] = {
                "bytes": number(row.get("bytes"), f"{where}: 'bytes'"),
                "kind": field(row, "kind", str, where, "activation"),
                **_numbers(row, ("address", "block_bytes"), where),
            }
        with_address = sum("address" in row for row in self.tensors.values())
        if 0 < with_address < len(tensors):
            raise TraceError("either all tensors or none of them have an address")
        self.fixed = with_address > 0

    def read(self) -> Trace:
        b, value = self.builder, self.value
        for i, row in enumerate(field(value, "segments", list, "the trace", [])):
            where = f"segments[{i}]"
            if len(typed(row, list, where)) != 2:
                raise TraceError(f"{where} must be [address, bytes]")
            b.segment(number(row[0], where), number(row[1], where))
        for tensor in field(value, "initial", list, "the trace", []):
            self.alloc(tensor, "initial")
        steps = field(value, "steps", list, "the trace")
        loop = value.get("loop", True)
        period = None if isinstance(loop, bool) else int(typed(loop, int, "'loop'"))
        schedule = field(value, "schedule", list, "the trace", None)
        again = SETTLE if schedule is None and loop is not False and not self.fixed else 0
        schedule = range(len(steps)) if schedule is None else schedule
        played = 0
        before: list[int] = []
        for s in [*schedule, *(list(schedule)[-1:] * again)]:
            if not 0 <= typed(s, int, "schedule") < len(steps):
                raise TraceError(f"schedule names step {s}, but there are {len(steps)}")
            played += len(typed(steps[s], list, f"steps[{s}]"))
            if played > MAX_EVENTS:
                raise TraceError(f"the schedule plays more than {MAX_EVENTS} events")
            after = self.play(steps[s], f"steps[{s}]")
            if again and before == after and s == len(steps) - 1:
                break
            before = after
        return b.build(loop=loop is not False, period=period)

    def play(self, step: list[Any], where: str) -> list[int]:
        """Play a step; return the addresses it was given and those it leaves alive."""
        b = self.builder
        b.step()
        addresses = []
        for i, event in enumerate(step):
            at = f"{where}[{i}]"
            kinds = typed(event, dict, at).keys() & {"kernel", "alloc", "free", "host"}
            if len(kinds) != 1:
                raise TraceError(f"{at} must have one of 'kernel', 'alloc', 'free' and 'host'")
            kind = kinds.pop()
            only(event, _KERNEL if kind == "kernel" else {kind}, at)
            try:
                if kind == "alloc":
                    addresses.append(b.address(self.alloc(event["alloc"], at)))
                elif kind == "free":
                    b.free(self.handle(event["free"], at))
                    del self.handles[event["free"]]
                elif kind == "host":
                    b.host(number(event["host"], f"{at}: 'host'"))
                else:
                    self.launch(event, at)
            except TraceError as error:
                text = str(error)
                raise TraceError(text if text.startswith(at) else f"{at}: {text}") from None
        return addresses + [b.address(h) for h in b.alive]

    def alloc(self, tensor: Any, where: str) -> int:
        row = self.tensors.get(typed(tensor, str, where))
        if row is None:
            raise TraceError(f"{where}: there is no tensor {tensor!r}")
        if tensor in self.handles:
            raise TraceError(f"{where}: tensor {tensor!r} is alive already")
        try:
            if self.fixed:
                handle = self.builder.alloc_at(name=tensor, **row)
            else:
                handle = self.builder.alloc(row["bytes"], row["kind"], tensor)
        except TraceError as error:
            raise TraceError(f"tensor {tensor!r}: {error}") from None
        self.handles[tensor] = handle
        return handle

    def handle(self, tensor: Any, where: str) -> int:
        if typed(tensor, str, where) not in self.handles:
            known = "is not alive" if tensor in self.tensors else "does not exist"
            raise TraceError(f"{where}: tensor {tensor!r} {known}")
        return self.handles[tensor]

    def launch(self, event: dict[str, Any], where: str) -> None:
        operands = [
            self.operand(o, f"{where}.operands[{i}]")
            for i, o in enumerate(field(event, "operands", list, where, []))
        ]
        self.builder.launch(
            field(event, "kernel", str, where),
            operands,
            flops=field(event, "flops", float, where, 0.0),
            dtype=field(event, "dtype", str, where, "fp32"),
            **_numbers(event, ("time_ns", "bytes", "key"), where),
        )

    def operand(self, value: Any, where: str) -> Any:
        from ..trace import Operand

        if isinstance(value, list):
            if len(value) != 2:
                raise TraceError(f"{where} must be [tensor, mode]")
            return Operand(self.handle(value[0], where), typed(value[1], str, where))
        only(typed(value, dict, where), _OPERAND, where)
        return Operand(
            self.handle(field(value, "tensor", str, where), where),
            field(value, "mode", str, where),
            pattern=field(value, "pattern", str, where, "sequential"),
            **_numbers(value, ("offset", "length", "touches"), where),
        )


def _numbers(owner: dict[str, Any], keys: tuple[str, ...], where: str) -> dict[str, Any]:
    return {k: number(owner[k], f"{where}: {k!r}") for k in keys if k in owner}


# Writing


def to_json(trace: Trace) -> dict[str, Any]:
    """Return the JSON object of a trace; :func:`from_json` makes an equal trace of it."""
    meta = {k: v for k, v in trace.meta.items() if k not in ("name", "loop_from")}
    period = len(trace.schedule) - trace.loop_from if trace.loop_from >= 0 else False
    rows = zip(
        trace.tensor_address.tolist(),
        trace.tensor_bytes.tolist(),
        trace.tensor_block_bytes.tolist(),
        trace.tensor_kind.tolist(),
        strict=True,
    )
    segments = zip(trace.segment_address.tolist(), trace.segment_bytes.tolist(), strict=True)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": trace.name,
        "meta": meta,
        "tensors": {
            f"t{i}": {"address": a, "bytes": b, "block_bytes": c, "kind": KINDS[k]}
            for i, (a, b, c, k) in enumerate(rows)
        },
        "segments": [[a, b] for a, b in segments],
        "initial": [f"t{i}" for i in trace.initial.tolist()],
        "steps": _steps(trace),
        "schedule": trace.schedule.tolist(),
        "loop": period,
    }


def _steps(trace: Trace) -> list[list[dict[str, Any]]]:
    kernels = _kernels(trace)
    events: list[dict[str, Any]] = []
    for op, arg in zip(trace.event_op.tolist(), trace.event_arg.tolist(), strict=True):
        if op == KERNEL:
            events.append(kernels[arg])
        elif op == HOST:
            events.append({"host": arg})
        else:
            events.append({{ALLOC: "alloc", FREE: "free"}[op]: f"t{arg}"})
    start = trace.step_start.tolist()
    return [events[a:b] for a, b in pairwise(start)]


def _kernels(trace: Trace) -> list[dict[str, Any]]:
    fields = ("tensor", "mode", "pattern", "offset", "length", "touches")
    columns = trace.columns()
    operands: list[Any] = []
    for t, m, p, o, n, g in zip(*(columns[f"operand_{f}"].tolist() for f in fields), strict=True):
        size = int(trace.tensor_bytes[t])
        if (p, o, n, g) == (0, 0, size, 0):
            operands.append([f"t{t}", MODES[m]])
            continue
        operands.append(
            {"tensor": f"t{t}", "mode": MODES[m], "offset": o, "length": n}
            | ({"pattern": PATTERNS[p], "touches": g} if p or g else {})
        )
    fields = ("name", "key", "time_ns", "flops", "bytes", "dtype")
    start = trace.kernel_operand_start.tolist()
    kernels = []
    rows = zip(*(columns[f"kernel_{f}"].tolist() for f in fields), start, start[1:], strict=False)
    for name, key, time_ns, flops, size, dtype, low, high in rows:
        kernel: dict[str, Any] = {"kernel": trace.names[name], "operands": operands[low:high]}
        kernel |= {"time_ns": time_ns} if time_ns else {}
        kernel |= {"flops": flops} if flops else {}
        kernel |= {"bytes": size, "dtype": DTYPES[dtype], "key": f"{key:#x}"}
        kernels.append(kernel)
    return kernels

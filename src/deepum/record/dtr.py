# SPDX-License-Identifier: Apache-2.0
"""Operator logs of Dynamic Tensor Rematerialization (DTR): one training iteration each.

A log has one JSON object a line, told apart by ``INSTRUCTION``:

``CONSTANT``
    with ``NAME``, and a ``MEMORY`` line after it: a storage that is there from the beginning and
    stays. All of them are allocated before the first step.
``CALL``
    with ``NAME``, ``ARGS``, ``RESULT`` and ``TIME`` (ns); then, for each result, a ``MEMORY`` line
    and an ``ALIAS`` line, which says -1 for a new storage or which argument the result is a view
    of. It becomes a kernel that reads its arguments and writes the new storages; a call that only
    makes views touches no memory, and its time becomes time of the host.
``MUTATE``
    with ``NAME``, ``ARGS``, ``TIME`` and ``MUTATE``, the indices of arguments it writes in place.
``COPY``, ``COPY_FROM`` (``DST``, ``SRC``) and ``RELEASE`` (``NAME``)
    counts of references: one more name for a storage, a name given to another storage, and a name
    gone. A storage without names is freed.
``ANNOTATE``
    ``START`` (what comes before is left out) or ``BACKWARD``.

What is still alive at the end of the log, apart from the constants, is freed there, so that
iterations repeat. Addresses come from the model of PyTorch's caching allocator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from .fields import field, number, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..trace import Trace, TraceBuilder

ITERATIONS = 3
"""The allocator grows in the first, so the second has other addresses, which the third repeats."""


@dataclass(slots=True, eq=False)
class _Storage:
    size: int
    constant: bool
    names: int = 1
    handle: int = -1


@dataclass(slots=True)
class _Op:
    """What one line makes the program do: launch a kernel, allocating before, or free."""

    name: str
    time_ns: int
    fresh: list[_Storage]
    modes: dict[_Storage, str]
    view: bool


def from_lines(lines: Sequence[str], name: str) -> Trace:
    """Make a trace of the lines of a log."""
    from ..trace import Trace

    log = _Log(lines)
    log.read()
    b = Trace.builder(name, source="dtr", times="measured")
    for storage in log.constants:
        if storage.size:
            storage.handle = b.alloc(storage.size, "parameter")
    for _ in range(ITERATIONS):
        b.step()
        for op in log.ops:
            _play(b, op)
        for storage in log.left:
            if storage.size:
                b.free(storage.handle)
    return b.build()


def _play(b: TraceBuilder, op: _Op | _Storage) -> None:
    if isinstance(op, _Storage):
        if op.size:
            b.free(op.handle)
        return
    for storage in op.fresh:
        if storage.size:
            storage.handle = b.alloc(storage.size)
    if op.view:
        if op.time_ns:
            b.host(op.time_ns)
        return
    operands = [(s.handle, mode) for s, mode in op.modes.items() if s.size]
    b.launch(op.name, operands, time_ns=op.time_ns)


class _Log:
    """Reads the lines into operations on storages."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.rows = self._rows(lines)
        self.where = "the log"
        self.names: dict[str, _Storage] = {}
        self.constants: list[_Storage] = []
        self.ops: list[_Op | _Storage] = []
        self.left: list[_Storage] = []

    def read(self) -> None:
        readers: dict[str, Callable[[dict[str, Any]], None]] = {
            "CONSTANT": self._constant,
            "CALL": self._call,
            "MUTATE": self._mutate,
            "COPY": self._copy,
            "COPY_FROM": self._copy_from,
            "RELEASE": self._release,
            "ANNOTATE": lambda row: None,
        }
        for row in self.rows:
            instruction = self._get(row, "INSTRUCTION")
            if instruction not in readers:
                raise TraceError(f"{self.where}: instruction {instruction!r} is unknown here")
            readers[instruction](row)
        self.left = [s for s in dict.fromkeys(self.names.values()) if s.names and not s.constant]

    def _rows(self, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
        rows = []
        for i, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise TraceError(f"line {i} is not JSON") from None
            rows.append((i, typed(row, dict, f"line {i}")))
        starts = [n for n, (_, row) in enumerate(rows) if row.get("ANNOTATION") == "START"]
        for i, row in rows[starts[0] if starts else 0 :]:
            self.where = f"line {i}"
            yield row

    def _get(self, row: dict[str, Any], key: str, kind: type = str) -> Any:
        return field(row, key, kind, self.where)

    def _follower(self, instruction: str, name: str, key: str) -> int:
        """Return the number in the next line, which belongs to this one."""
        row = next(self.rows, {})
        if row.get("INSTRUCTION") != instruction or row.get("NAME") != name:
            raise TraceError(f"{self.where}: the {instruction} line of {name!r} is missing")
        value = number(row.get(key), f"{self.where}: {key!r}")
        if value < (-1 if key == "ALIAS" else 0):
            raise TraceError(f"{self.where}: {key!r} is {value}")
        return value

    def _define(self, name: str, storage: _Storage) -> None:
        if name in self.names:
            raise TraceError(f"{self.where}: {name!r} is defined twice")
        self.names[name] = storage

    def _storage(self, name: Any) -> _Storage:
        storage = self.names.get(typed(name, str, f"{self.where}: an argument"))
        if storage is None:
            raise TraceError(f"{self.where}: {name!r} is not defined")
        if not storage.names and not storage.constant:
            raise TraceError(f"{self.where}: {name!r} has been freed")
        return storage

    def _time(self, row: dict[str, Any]) -> int:
        value = number(row.get("TIME"), f"{self.where}: 'TIME'")
        if value < 0:
            raise TraceError(f"{self.where}: 'TIME' is {value}")
        return value

    def _constant(self, row: dict[str, Any]) -> None:
        name = self._get(row, "NAME")
        storage = _Storage(self._follower("MEMORY", name, "MEMORY"), constant=True)
        self._define(name, storage)
        self.constants.append(storage)

    def _call(self, row: dict[str, Any]) -> None:
        time_ns = self._time(row)
        args = [self._storage(a) for a in self._get(row, "ARGS", list)]
        results = [typed(r, str, f"{self.where}: a result") for r in self._get(row, "RESULT", list)]
        fresh, views = [], 0
        for result in results:
            size = self._follower("MEMORY", result, "MEMORY")
            alias = self._follower("ALIAS", result, "ALIAS")
            if alias >= len(args):
                raise TraceError(f"{self.where}: there is no argument {alias} to be a view of")
            if alias >= 0:
                storage = args[alias]
                storage.names += 1
                views += 1
            else:
                storage = _Storage(size, constant=False)
                fresh.append(storage)
            self._define(result, storage)
        modes = dict.fromkeys(args, "r") | dict.fromkeys(fresh, "w")
        view = 0 < views == len(results)
        self.ops.append(_Op(self._get(row, "NAME"), time_ns, fresh, modes, view))

    def _mutate(self, row: dict[str, Any]) -> None:
        args = [self._storage(a) for a in self._get(row, "ARGS", list)]
        modes = dict.fromkeys(args, "r")
        for index in self._get(row, "MUTATE", list):
            if not 0 <= typed(index, int, f"{self.where}: 'MUTATE'") < len(args):
                raise TraceError(f"{self.where}: there is no argument {index} to mutate")
            modes[args[index]] = "rw"
        self.ops.append(_Op(self._get(row, "NAME"), self._time(row), [], modes, False))

    def _copy(self, row: dict[str, Any]) -> None:
        storage = self._storage(self._get(row, "SRC"))
        self._define(self._get(row, "DST"), storage)
        storage.names += 1

    def _copy_from(self, row: dict[str, Any]) -> None:
        name = self._get(row, "DST")
        old, new = self._storage(name), self._storage(self._get(row, "SRC"))
        new.names += 1
        self.names[name] = new
        self._drop(old)

    def _release(self, row: dict[str, Any]) -> None:
        storage = self.names.get(self._get(row, "NAME"))
        if storage is not None:  # logs release some names that they never defined
            if storage.names == 0:
                raise TraceError(f"{self.where}: {row['NAME']!r} has been freed")
            self._drop(storage)

    def _drop(self, storage: _Storage) -> None:
        storage.names -= 1
        if storage.names == 0 and not storage.constant:
            self.ops.append(storage)

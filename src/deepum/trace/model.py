# SPDX-License-Identifier: Apache-2.0
"""The trace as an object."""

from __future__ import annotations

import difflib
import importlib.resources
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from . import file
from .columns import DTYPE_OF, KERNEL, Columns
from .validate import check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from .build import TraceBuilder

SUFFIX = ".trace"


class Trace:
    """A recorded program: its kernels, its tensors, and what happens in each iteration.

    Parameters
    ----------
    names
        Names of kernels.
    columns
        The arrays listed in ``docs/trace-format.md``; they are copied only where their type or
        layout is not the right one, and become read-only.
    meta
        Facts about the recording: ``name``, ``loop_from``, ``times`` (``"estimated"`` or
        ``"measured"``), and whatever else the recorder noted (``model``, ``batch``, ``machine``).

    Raises
    ------
    TraceError
        If the parts contradict each other.
    """

    tensor_address: NDArray[np.uint64]
    tensor_bytes: NDArray[np.uint64]
    tensor_block_bytes: NDArray[np.uint64]
    tensor_kind: NDArray[np.uint8]
    segment_address: NDArray[np.uint64]
    segment_bytes: NDArray[np.uint64]
    kernel_name: NDArray[np.uint32]
    kernel_key: NDArray[np.uint64]
    kernel_time_ns: NDArray[np.uint64]
    kernel_flops: NDArray[np.float64]
    kernel_bytes: NDArray[np.uint64]
    kernel_dtype: NDArray[np.uint8]
    kernel_operand_start: NDArray[np.uint32]
    operand_tensor: NDArray[np.uint32]
    operand_mode: NDArray[np.uint8]
    operand_pattern: NDArray[np.uint8]
    operand_offset: NDArray[np.uint64]
    operand_length: NDArray[np.uint64]
    operand_touches: NDArray[np.uint64]
    initial: NDArray[np.uint32]
    event_op: NDArray[np.uint8]
    event_arg: NDArray[np.uint64]
    step_start: NDArray[np.uint32]
    schedule: NDArray[np.uint32]

    def __init__(self, names: Iterable[str], columns: Columns, meta: dict[str, Any]) -> None:
        self.names = list(names)
        self.meta = dict(meta)
        if unknown := sorted(columns.keys() - DTYPE_OF.keys()):
            raise TraceError(f"unknown columns {', '.join(unknown)}")
        self._columns: Columns = {}
        for name, dtype in DTYPE_OF.items():
            if name not in columns:
                raise TraceError(f"column {name} is missing")
            column = np.asarray(columns[name])
            if column.ndim != 1:
                raise TraceError(f"column {name} has {column.ndim} dimensions instead of 1")
            if column.dtype != dtype:
                if column.size and not np.can_cast(column.dtype, dtype, "safe"):
                    raise TraceError(f"column {name} is of type {column.dtype}, not {dtype}")
                column = column.astype(dtype)
            column = np.ascontiguousarray(column).view()
            column.flags.writeable = False
            self._columns[name] = column
            setattr(self, name, column)
        for key in ("name", "times"):
            if not isinstance(self.meta.get(key), str):
                raise TraceError(f"meta lacks {key!r}, a string")
        if self.meta["times"] not in ("estimated", "measured"):
            raise TraceError('meta "times" is neither "estimated" nor "measured"')
        loop_from = self.meta.get("loop_from")
        if isinstance(loop_from, bool) or not isinstance(loop_from, int):
            raise TraceError("meta lacks 'loop_from', an integer")
        self._peak_bytes = check(self._columns, self.names, loop_from)

    # What it says about itself

    @property
    def name(self) -> str:
        """Name of the trace, such as ``gpt2-xl-b3``."""
        return str(self.meta["name"])

    @property
    def loop_from(self) -> int:
        """The iterations after the recorded ones repeat ``schedule[loop_from:]``; -1: none do."""
        return int(self.meta["loop_from"])

    @property
    def iterations(self) -> int:
        """Number of recorded iterations."""
        return len(self.schedule)

    @property
    def peak_bytes(self) -> int:
        """Peak of the live requested bytes over the recorded iterations."""
        return self._peak_bytes

    @property
    def kernels_per_step(self) -> int:
        """Kernels launched in the last recorded iteration."""
        step = int(self.schedule[-1])
        low, high = int(self.step_start[step]), int(self.step_start[step + 1])
        return int((self.event_op[low:high] == KERNEL).sum())

    def step_at(self, iteration: int) -> int:
        """Index of the step that an iteration runs, counted from 0 and without an end.

        Raises
        ------
        TraceError
            If the iteration lies beyond the recorded ones and the trace does not loop.
        """
        count = len(self.schedule)
        if iteration < 0:
            raise TraceError(f"there is no iteration {iteration}")
        if iteration >= count:
            if self.loop_from < 0:
                raise TraceError(
                    f"iteration {iteration}: trace {self.name!r} ends after {count} "
                    f"iteration{'s' * (count != 1)} and does not loop"
                )
            iteration = self.loop_from + (iteration - count) % (count - self.loop_from)
        return int(self.schedule[iteration])

    def columns(self) -> Columns:
        """Return the arrays by name; they are C-contiguous and read-only."""
        return dict(self._columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return (
            self.names == other.names
            and self.meta == other.meta
            and all(np.array_equal(a, other._columns[n]) for n, a in self._columns.items())
        )

    def __hash__(self) -> int:
        return hash((self.name, len(self.event_op), len(self.tensor_bytes), self._peak_bytes))

    def __repr__(self) -> str:
        return (
            f"<Trace {self.name!r}: {self.iterations} iterations, {self.kernels_per_step} kernels "
            f"a step, peak {self.peak_bytes / 2**30:.2f} GiB>"
        )

    # Making one

    def replace(self, *, meta: dict[str, Any] | None = None, **columns: NDArray[Any]) -> Trace:
        """Return a trace with some columns exchanged and some meta entries added or changed."""
        return Trace(self.names, {**self._columns, **columns}, {**self.meta, **(meta or {})})

    @staticmethod
    def builder(name: str, /, **meta: Any) -> TraceBuilder:
        """Return a :class:`TraceBuilder`; ``meta`` is kept with the trace."""
        from .build import TraceBuilder

        return TraceBuilder(name, **meta)

    # Files

    def save(self, path: str | os.PathLike[str], beside: Mapping[str, bytes] | None = None) -> None:
        """Write the trace to a file, by custom named ``*.trace``.

        Parameters
        ----------
        path
            The file.
        beside
            Members that lie in the file without being part of the trace, by name.
        """
        try:
            json.dumps(self.meta)
        except (TypeError, ValueError) as error:
            raise TraceError(f"meta cannot be written as JSON: {error}") from None
        file.write(Path(path), self._columns, self.names, self.meta, beside)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace file, a shipped trace by name, or a file in another known format.

        Raises
        ------
        TraceError
            In one line, if there is no such trace or its contents are wrong.
        """
        where = cls._find(path)
        try:
            with where.open("rb") as stream:
                head = stream.read(512)
        except OSError as error:
            raise TraceError(f"cannot read {where}: {error.strerror or error}") from error
        if not head:
            raise TraceError(f"{where} is empty")
        if not head.startswith(b"PK"):
            return _load_foreign(where, head)
        columns, names, meta = file.read(where)
        try:
            return cls(names, columns, meta)
        except TraceError as error:
            raise TraceError(f"{where}: {error}") from None

    @classmethod
    def shipped(cls) -> dict[str, Path]:
        """Return the traces that come with deepum: name -> path."""
        folder = Path(str(importlib.resources.files("deepum"))) / "traces"
        return {p.name.removesuffix(SUFFIX): p for p in sorted(folder.glob(f"*{SUFFIX}"))}

    @classmethod
    def _find(cls, path: str | os.PathLike[str]) -> Path:
        where, text = Path(path), os.fspath(path)
        shipped = cls.shipped()
        if text in shipped and not where.is_file():
            return shipped[text]
        if where.exists():
            return where
        if where.suffix or os.sep in text:
            raise TraceError(f"there is no file {text}")
        near = difflib.get_close_matches(text, shipped, n=4, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "`deepum info` lists the shipped ones"
        )
        raise TraceError(f"there is no trace file and no shipped trace named {text!r}; {hint}")


def _load_foreign(path: Path, head: bytes) -> Trace:
    if head.startswith(b"\x1f\x8b") or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        from ..record.formats import load_foreign

        return load_foreign(path)
    raise TraceError(f"{path} is not a deepum trace")

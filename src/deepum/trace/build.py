# SPDX-License-Identifier: Apache-2.0
"""Building a trace, call by call."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from ..record.allocator import CachingAllocator
from .columns import (
    ALLOC,
    DTYPE_ALIASES,
    DTYPE_OF,
    DTYPES,
    FREE,
    HOST,
    KERNEL,
    KINDS,
    MAX_ADDRESS,
    MODES,
    PATTERNS,
    UM_BLOCK,
    Columns,
)
from .model import Trace
from .validate import MAX_AMOUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FLOPS = 1e30

_KIND = {name: code for code, name in enumerate(KINDS)}
_MODE = {name: code for code, name in enumerate(MODES) if name}
_PATTERN = {name: code for code, name in enumerate(PATTERNS)}
_DTYPE = {name: code for code, name in enumerate(DTYPES)}
_DTYPE |= {alias: _DTYPE[name] for alias, name in DTYPE_ALIASES.items()}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor, or a part of it, that a kernel touches.

    Parameters
    ----------
    handle
        What :meth:`TraceBuilder.alloc` returned.
    mode
        ``"r"``, ``"w"`` or ``"rw"``.
    offset, length
        Bytes of the tensor that the kernel is given; by default up to its end.
    pattern
        ``"sequential"``, or ``"gather"`` for random rows.
    touches
        For a gather, how many random rows a launch touches.
    """

    handle: int
    mode: str = "r"
    offset: int = 0
    length: int | None = None
    pattern: str = "sequential"
    touches: int = 0


class TraceBuilder:
    """Builds a :class:`Trace` from the calls that a program makes.

    Tensors allocated before the first :meth:`step` are there when the program begins; their
    contents lie on the host. Addresses come from a model of PyTorch's caching allocator.

    Examples
    --------
    >>> from deepum.trace import Trace
    >>> b = Trace.builder("two-layers")
    >>> weights = [b.alloc(64 << 20, "parameter") for _ in range(2)]
    >>> for _ in range(3):
    ...     b.step()
    ...     x = b.alloc(8 << 20)
    ...     for w in weights:
    ...         b.launch("layer", [(w, "r"), (x, "rw")], flops=1e12)
    ...     b.free(x)
    >>> b.build().kernels_per_step
    2
    """

    def __init__(self, name: str, /, **meta: Any) -> None:
        self._meta = {"times": "estimated", **meta, "name": name}
        self._allocator = CachingAllocator()
        self._segments: list[tuple[int, int]] = []
        # One entry a handle.
        self._address: list[int] = []
        self._bytes: list[int] = []
        self._block: list[int] = []
        self._kind: list[int] = []
        self._label: list[str | None] = []
        self._modelled = bytearray()
        self._alive: dict[int, None] = {}  # ordered
        # One entry an event; the argument is a handle, a launch or a time.
        self._op: list[int] = []
        self._arg: list[int] = []
        self._launches: list[tuple[Any, ...]] = []
        self._launch_index: dict[tuple[Any, ...], int] = {}
        self._names: dict[str, int] = {}
        # One entry a step: where its events begin and what is alive there.
        self._starts: list[int] = []
        self._alive_at: list[list[int]] = []

    # Memory

    def alloc(
        self,
        bytes: int,  # noqa: A002
        kind: str = "activation",
        name: str | None = None,
    ) -> int:
        """Allocate a tensor and return its handle.

        Parameters
        ----------
        bytes
            Its size, at least one byte.
        kind
            ``"parameter"``, ``"gradient"``, ``"optimizer"``, ``"activation"``, ``"input"``,
            ``"workspace"`` or ``"other"``.
        name
            What error messages call it.
        """
        code = self._code(_KIND, kind, "kind of tensor")
        block = self._allocator.alloc(self._whole(bytes, "bytes"))
        return self._add(block.address, bytes, block.block_bytes, code, name, True)

    def alloc_at(
        self,
        address: int,
        bytes: int,  # noqa: A002
        block_bytes: int | None = None,
        kind: str = "activation",
        name: str | None = None,
    ) -> int:
        """Allocate a tensor at an address known from elsewhere.

        ``block_bytes`` is the size of its PT block, by default ``bytes``. It lies in a region
        named with :meth:`segment`, or else the 2 MiB blocks around it become one.
        """
        code = self._code(_KIND, kind, "kind of tensor")
        block = self._whole(bytes if block_bytes is None else block_bytes, "block_bytes")
        if self._whole(address, "address") + block > MAX_ADDRESS:
            raise TraceError(f"a block of {block} bytes at {address:#x} ends above address 2^48")
        if not 0 < self._whole(bytes, "bytes") <= block:
            raise TraceError(f"a tensor of {bytes} bytes does not fit a block of {block}")
        return self._add(address, bytes, block, code, name, False)

    def segment(self, address: int, bytes: int) -> None:  # noqa: A002
        """Name a region that the allocator got from the driver (for :meth:`alloc_at`)."""
        if (
            address % UM_BLOCK
            or bytes % UM_BLOCK
            or not 0 <= address < address + bytes <= MAX_ADDRESS
        ):
            raise TraceError(
                f"a segment of {bytes} bytes at {address:#x} is not made of 2 MiB blocks below 2^48"
            )
        self._segments.append((address, bytes))

    def free(self, handle: int) -> None:
        """Free a tensor."""
        self._check_alive(handle, "free")
        del self._alive[handle]
        if self._modelled[handle]:
            self._allocator.free(self._address[handle])
        if self._starts:
            self._event(FREE, handle)

    def retag(self, handle: int, kind: str) -> None:
        """Change the kind of a tensor, where it becomes known only after its allocation."""
        self._check_handle(handle)
        self._kind[handle] = self._code(_KIND, kind, "kind of tensor")

    def address(self, handle: int) -> int:
        """Return the address of a tensor."""
        self._check_handle(handle)
        return self._address[handle]

    @property
    def alive(self) -> list[int]:
        """Handles of the tensors alive now, oldest first."""
        return list(self._alive)

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the modelled allocator has got from the driver."""
        return self._allocator.reserved_bytes

    # The program

    def step(self) -> None:
        """Begin the next iteration; the first call ends the set-up."""
        self._starts.append(len(self._op))
        self._alive_at.append(list(self._alive))

    def launch(
        self,
        name: str,
        operands: Iterable[tuple[int, str] | Operand] = (),
        *,
        time_ns: int | None = None,
        flops: float = 0.0,
        bytes: int | None = None,  # noqa: A002
        dtype: str = "fp32",
        key: int | None = None,
    ) -> None:
        """Launch a kernel.

        Parameters
        ----------
        name
            Its name.
        operands
            The tensors it touches, in the order in which it touches them: ``(handle, mode)`` or
            :class:`Operand`.
        time_ns
            How long it runs with everything in GPU memory; by default it is estimated from
            ``flops`` and ``bytes`` when a machine is chosen.
        flops, bytes
            Its work, and the bytes it moves (by default the bytes of its operands).
        dtype
            What it computes in: ``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"`` or ``"other"``.
        key
            A hash of its launch shape (everything but pointers), by default one of the arguments
            of this call.
        """
        if not self._starts:
            raise TraceError(f"kernel {name!r} is launched before the first step()")
        rows = tuple(self._operand(name, o) for o in operands)
        moved = sum(r[4] for r in rows) if bytes is None else self._whole(bytes, "bytes")
        time = 0 if time_ns is None else self._whole(time_ns, "time_ns")
        if not 0 <= flops <= MAX_FLOPS:
            raise TraceError(f"kernel {name!r}: {flops} is not a number of operations")
        work = float(flops)
        code = self._code(_DTYPE, dtype, "dtype")
        if key is None:
            key = self._key(name, rows, work, moved, code)
        elif not 0 <= key < 1 << 64:
            raise TraceError(f"kernel {name!r}: key {key} does not fit 64 bits")
        launch = (
            self._names.setdefault(name, len(self._names)),
            key,
            time,
            work,
            moved,
            code,
            rows,
        )
        index = self._launch_index.setdefault(launch, len(self._launches))
        if index == len(self._launches):
            self._launches.append(launch)
        self._event(KERNEL, index)

    def host(self, ns: int) -> None:
        """Let time pass in which the program gives the GPU nothing to do."""
        self._event(HOST, self._whole(ns, "ns"))

    # The result

    def build(self, loop: bool = True, *, period: int | None = None) -> Trace:
        """Return the trace of everything so far.

        Parameters
        ----------
        loop
            Whether iterations after the recorded ones repeat the last of them: the fewest last
            steps that leave exactly the tensors, at the same addresses, that they found.
        period
            How many last steps repeat, if not the fewest.

        Raises
        ------
        TraceError
            If there is nothing to build, or the last steps do not repeat.
        """
        starts, alive_at = list(self._starts), list(self._alive_at)
        while starts and starts[-1] == len(self._op):  # step() called once more after the last
            starts.pop()
            alive_at.pop()
        if not starts:
            raise TraceError("nothing to build: no step() was followed by a launch")
        rows, tensors = self._tensor_table(alive_at[0])
        loop_from = self._find_loop(alive_at, rows, period) if loop else -1
        columns = tensors | self._segment_table(tensors) | self._kernel_tables(rows)
        columns |= self._event_tables(starts, rows, columns.pop("kernel_row"))
        columns["initial"] = np.array([rows[h] for h in alive_at[0]], dtype=np.uint32)
        columns = {name: columns[name].astype(dtype) for name, dtype in DTYPE_OF.items()}
        return Trace(self._names, columns, {**self._meta, "loop_from": loop_from})

    def _tensor_table(self, initial: list[int]) -> tuple[list[int], Columns]:
        """Rows by handle, -1 for tensors that only the set-up saw."""
        kept = set(initial)
        kept.update(h for op, h in zip(self._op, self._arg, strict=True) if op == ALLOC)
        table: dict[tuple[int, int, int, int], int] = {}
        rows = [-1] * len(self._address)
        columns = zip(self._address, self._bytes, self._block, self._kind, strict=True)
        for handle, row in enumerate(columns):
            if handle in kept:
                rows[handle] = table.setdefault(row, len(table))
        fields = np.array(list(table), dtype=np.uint64).reshape(-1, 4).T
        named = zip(("address", "bytes", "block_bytes", "kind"), fields, strict=True)
        return rows, {f"tensor_{name}": field for name, field in named}

    def _segment_table(self, tensors: Columns) -> Columns:
        """Named segments, the model's, and the 2 MiB blocks around tensors that lie in none."""
        known = sorted(self._segments + self._allocator.segments)
        start = tensors["tensor_address"].astype(np.int64)
        end = start + tensors["tensor_block_bytes"].astype(np.int64)
        address = np.array([a for a, _ in known], dtype=np.int64)
        known_end = np.array([a + b for a, b in known] + [-1], dtype=np.int64)
        outside = end > known_end[np.searchsorted(address, start, side="right") - 1]
        merged: list[list[int]] = []
        low, high = start[outside] // UM_BLOCK, -(-end[outside] // UM_BLOCK)
        for a, b in sorted(zip(low.tolist(), high.tolist(), strict=True)):
            if merged and a <= merged[-1][1]:
                merged[-1][1] = max(b, merged[-1][1])
            else:
                merged.append([a, b])
        known += [(a * UM_BLOCK, (b - a) * UM_BLOCK) for a, b in merged]
        known.sort()
        return {
            "segment_address": np.array([a for a, _ in known], dtype=np.uint64),
            "segment_bytes": np.array([b for _, b in known], dtype=np.uint64),
        }

    def _kernel_tables(self, rows: list[int]) -> Columns:
        table: dict[tuple[Any, ...], int] = {}
        kernel_row = []
        for *fields, operands in self._launches:
            placed = tuple((rows[o[0]], *o[1:]) for o in operands)
            kernel_row.append(table.setdefault((*fields, placed), len(table)))
        columns: Columns = {"kernel_row": np.array(kernel_row, dtype=np.int64)}
        for i, name in enumerate(("name", "key", "time_ns", "flops", "bytes", "dtype")):
            dtype = DTYPE_OF[f"kernel_{name}"]
            columns[f"kernel_{name}"] = np.array([k[i] for k in table], dtype=dtype)
        counts = [len(k[6]) for k in table]
        columns["kernel_operand_start"] = np.append(0, np.cumsum(counts, dtype=np.int64))
        flat = [o for k in table for o in k[6]]
        cells = np.array(flat, dtype=np.uint64).reshape(-1, 6).T
        names = ("tensor", "mode", "pattern", "offset", "length", "touches")
        named = zip(names, cells, strict=True)
        return columns | {f"operand_{name}": field for name, field in named}

    def _event_tables(self, starts: list[int], rows: list[int], kernel_row: Any) -> Columns:
        """Events with their final arguments; equal steps are stored once."""
        op = np.array(self._op, dtype=np.uint8)
        arg = np.array(self._arg, dtype=np.uint64)
        memory = (op == ALLOC) | (op == FREE)
        arg[memory] = np.array(rows, dtype=np.int64)[arg[memory].astype(np.int64)]
        arg[op == KERNEL] = kernel_row[arg[op == KERNEL].astype(np.int64)]
        seen: dict[bytes, int] = {}
        schedule, ops, args = [], [op[:0]], [arg[:0]]
        for low, high in zip(starts, [*starts[1:], len(op)], strict=True):
            content = op[low:high].tobytes() + arg[low:high].tobytes()
            index = seen.setdefault(content, len(seen))
            if index == len(ops) - 1:
                ops.append(op[low:high])
                args.append(arg[low:high])
            schedule.append(index)
        return {
            "event_op": np.concatenate(ops),
            "event_arg": np.concatenate(args),
            "step_start": np.cumsum([len(o) for o in ops]),
            "schedule": np.array(schedule, dtype=np.uint32),
        }

    def _find_loop(self, alive_at: list[list[int]], rows: list[int], period: int | None) -> int:
        steps = len(alive_at)
        if period is not None and not 1 <= period <= steps:
            raise TraceError(f"a period of {period} steps does not fit the {steps} recorded ones")
        end = {rows[h]: h for h in self._alive}
        for first in range(steps - 1, -1, -1) if period is None else [steps - period]:
            if {rows[h] for h in alive_at[first]} == end.keys():
                return first
        first = steps - (period or 1)
        begin = {rows[h]: h for h in alive_at[first]}
        extra = [h for r, h in end.items() if r not in begin]
        gone = [h for r, h in begin.items() if r not in end]
        parts = [f"{len(extra)} tensors are left over ({self._list(extra)})"] if extra else []
        parts += [f"{len(gone)} are missing ({self._list(gone)})"] if gone else []
        raise TraceError(
            f"step {first} does not repeat: at its end {' and '.join(parts)}; "
            "free what the step allocated, record one more step, or call build(loop=False)"
        )

    # Small things

    def _list(self, handles: list[int]) -> str:
        words = [
            self._label[h] or f"{KINDS[self._kind[h]]} of {self._bytes[h]} bytes" for h in handles
        ]
        return ", ".join(words[:3]) + (", …" if len(words) > 3 else "")

    def _add(
        self, address: int, size: int, block: int, kind: int, name: str | None, modelled: bool
    ) -> int:
        handle = len(self._address)
        self._address.append(address)
        self._bytes.append(size)
        self._block.append(block)
        self._kind.append(kind)
        self._label.append(name)
        self._modelled.append(modelled)
        self._alive[handle] = None
        if self._starts:
            self._event(ALLOC, handle)
        return handle

    def _event(self, op: int, arg: int) -> None:
        if not self._starts:
            raise TraceError("call step() before anything but allocations")
        self._op.append(op)
        self._arg.append(arg)

    def _operand(self, kernel: str, operand: tuple[int, str] | Operand) -> tuple[int, ...]:
        o = operand if isinstance(operand, Operand) else Operand(*operand)
        self._check_alive(o.handle, f"kernel {kernel!r}: use")
        size = self._bytes[o.handle]
        length = size - o.offset if o.length is None else o.length
        if o.offset < 0 or length <= 0 or o.offset + length > size:
            raise TraceError(
                f"kernel {kernel!r} takes {length} bytes at {o.offset} of {self._name(o.handle)}, "
                f"which has {size}"
            )
        mode = self._code(_MODE, o.mode, "mode")
        pattern = self._code(_PATTERN, o.pattern, "pattern")
        touches = self._whole(o.touches, "touches")
        return (o.handle, mode, pattern, o.offset, length, touches)

    @staticmethod
    def _key(name: str, rows: tuple[Any, ...], flops: float, moved: int, dtype: int) -> int:
        shape = struct.pack("<dQB", flops, moved, dtype)
        shape += b"".join(struct.pack("<BBQQ", r[1], r[2], r[4], r[5]) for r in rows)
        digest = blake2b(
            name.encode(errors="surrogatepass") + b"\0" + shape, digest_size=8
        ).digest()
        return int.from_bytes(digest, "little")

    @staticmethod
    def _code(table: dict[str, int], word: str, what: str) -> int:
        if word not in table:
            raise TraceError(f"{word!r} is not a {what}; choose from {', '.join(table)}")
        return table[word]

    @staticmethod
    def _whole(value: int, what: str) -> int:
        if not 0 <= value <= MAX_AMOUNT or value != int(value):
            raise TraceError(f"{what}: {value} is not a whole number from 0 to 2^62")
        return int(value)

    def _check_handle(self, handle: int) -> None:
        if not 0 <= handle < len(self._address):
            raise TraceError(f"{handle!r} is not a handle of this builder")

    def _name(self, handle: int) -> str:
        return repr(self._label[handle]) if self._label[handle] else f"tensor {handle}"

    def _check_alive(self, handle: int, what: str) -> None:
        if handle not in self._alive:
            self._check_handle(handle)
            raise TraceError(f"{what} of {self._name(handle)}, which has been freed")

# SPDX-License-Identifier: Apache-2.0
"""The trace file: a zip of ``.npy`` columns and two JSON members.

Reading trusts nothing: no pickle, no size that a header claims before the bytes are there.
``docs/trace-format.md`` describes the format.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import re
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from .columns import DTYPE_OF, FORMAT, HOST, VERSION, Columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MAX_BYTES = 1 << 30
"""Bytes of all members, unpacked."""
MAX_MEMBERS = 64
CHUNK = 4096  # packed bytes unpacked at once: bounds what a decompression bomb can do

PACKED = frozenset(
    {
        "tensor_address",
        "segment_address",
        "kernel_operand_start",
        "operand_tensor",
        "initial",
        "event_arg",
        "step_start",
    }
)
"""Columns stored as differences (see :func:`_pack`), a third of the size when compressed."""

# What numpy writes; nothing else is evaluated.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': *'([<>=|]\w{1,8})', *'fortran_order': *False, *"
    rb"'shape': *\(([0-9]{1,18}(?:, *[0-9]{1,18})*),?\),? *\} *\n",
    re.DOTALL,
)

_BAD_ZIP = (
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # encrypted; NotImplementedError for methods unknown to zipfile
    ValueError,
    IndexError,
    KeyError,
    struct.error,
    MemoryError,
    OverflowError,
)


def write(
    path: Path,
    columns: Columns,
    names: list[str],
    meta: dict[str, Any],
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write a trace file; the same trace gives the same bytes.

    Members `beside` the trace's own are ignored by `read`.
    """
    members = {
        "meta.json": _json({"format": FORMAT, "version": VERSION, **meta}),
        "names.json": _json(names),
    }
    for name, column in columns.items():
        stored = _pack(name, column, columns["event_op"]) if name in PACKED else column
        members[f"{name}.npy"] = npy(stored)
    members |= beside or {}
    partial = path.with_name(path.name + ".partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_LZMA) as file:
            for name, data in members.items():
                info = zipfile.ZipInfo(name)  # dated 1980, so that nothing depends on the clock
                info.compress_type = zipfile.ZIP_LZMA
                file.writestr(info, data)
        partial.replace(path)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def npy(column: NDArray[Any]) -> bytes:
    """Return a column as a ``.npy`` member."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, column, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def read(path: Path) -> tuple[Columns, list[str], dict[str, Any]]:
    """Read a trace file's parts, each of the right type but not yet checked for sense."""
    try:
        with zipfile.ZipFile(path) as file:
            members = _members(file)
            meta = json_member(_unpack(file, members, "meta.json"), dict, "meta.json")
            _check_version(meta)
            names = json_member(_unpack(file, members, "names.json"), list, "names.json")
            if not all(isinstance(name, str) for name in names):
                raise TraceError("names.json is not a list of strings")
            columns = {
                name: column(_unpack(file, members, f"{name}.npy"), name, dtype)
                for name, dtype in DTYPE_OF.items()
            }
            for name in PACKED:
                columns[name] = _unpacked(name, columns[name], columns["event_op"])
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except _BAD_ZIP as error:
        why = str(error) or type(error).__name__
        raise TraceError(f"{path}: truncated or corrupt: {why}") from error
    del meta["format"], meta["version"]
    return columns, names, meta


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes] | None:
    """Return members of a trace file that lie beside the trace; None if one is not there."""
    try:
        with zipfile.ZipFile(path) as file:
            members = _members(file)
            if not members.keys() >= set(names):
                return None
            return {name: _unpack(file, members, name) for name in names}
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except _BAD_ZIP as error:
        why = str(error) or type(error).__name__
        raise TraceError(f"{path}: truncated or corrupt: {why}") from error


def _members(file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = file.infolist()
    if len(infos) > MAX_MEMBERS:
        raise TraceError(f"{len(infos)} members are too many for a trace")
    if (total := sum(info.file_size for info in infos)) > MAX_BYTES:
        raise TraceError(f"its members claim {total} bytes, more than the {MAX_BYTES} allowed")
    return {info.filename: info for info in infos}


def _unpack(file: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    if name not in members:
        raise TraceError(f"not a deepum trace: it has no {name}")
    size = members[name].file_size
    parts = []
    with file.open(members[name]) as member:
        while part := member.read(CHUNK):
            parts.append(part)
    data = b"".join(parts)
    if len(data) != size:
        raise TraceError(f"truncated: {name} holds {len(data)} of {size} bytes")
    return data


def json_member(data: bytes, kind: type, name: str) -> Any:
    """Return what a JSON member holds, an object of the right kind."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise TraceError(f"corrupt: {name} is not JSON") from None
    if not isinstance(value, kind):
        raise TraceError(f"{name} is not a JSON {'object' if kind is dict else 'array'}")
    return value


def _check_version(meta: dict[str, Any]) -> None:
    if meta.get("format") != FORMAT:
        raise TraceError("not a deepum trace: meta.json does not say so")
    version = meta.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise TraceError(f"version {version!r} is not a format version")
    if version > VERSION:
        raise TraceError(
            f"written by a newer deepum (format {version}); "
            f"this one reads up to {VERSION}: upgrade deepum"
        )


def column(data: bytes, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array in a ``.npy`` member; its header is believed only if the sizes agree."""
    header = _HEADER.match(data)
    if not header or header.end() != 10 + int.from_bytes(data[8:10], "little"):
        raise TraceError(f"column {name} is not a version 1.0 .npy array in C order")
    stored, shape = header[1].decode(), tuple(int(n) for n in header[2].split(b",") if n.strip())
    rest = len(data) - header.end()
    if name in PACKED:
        wanted: tuple[int, ...] = (dtype.itemsize, rest // dtype.itemsize)
        dtype = np.dtype(np.uint8)
    else:
        wanted = (rest // dtype.itemsize,)
    if stored != dtype.str:
        raise TraceError(f"column {name} is of type {stored}, not {dtype.str}")
    if shape != wanted or math.prod(shape) * dtype.itemsize != rest:
        raise TraceError(f"column {name} has shape {shape} but {rest} bytes")
    return np.frombuffer(data, dtype=dtype, offset=header.end()).reshape(shape).copy()


def _pack(name: str, column: NDArray[Any], ops: NDArray[Any]) -> NDArray[Any]:
    """Return the differences of neighbours, modulo the type's range, as planes of bytes.

    Plane ``k`` holds byte ``k``, the lowest first, of every difference. For ``event_arg`` the
    neighbour is the previous event with the same op.
    """
    differences = np.empty_like(column)
    for part in _parts(name, ops):
        differences[part] = np.diff(column[part], prepend=column.dtype.type(0))
    planes = differences.view(np.uint8).reshape(-1, column.itemsize).T
    return np.ascontiguousarray(planes)


def _unpacked(name: str, planes: NDArray[Any], ops: NDArray[Any]) -> NDArray[Any]:
    """Undo :func:`_pack`."""
    dtype = DTYPE_OF[name]
    differences = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
    if name == "event_arg" and len(differences) != len(ops):
        raise TraceError("the columns of the event table differ in length")
    column = np.empty_like(differences)
    for part in _parts(name, ops):
        column[part] = np.cumsum(differences[part], dtype=dtype)
    return column


def _parts(name: str, ops: NDArray[Any]) -> list[Any]:
    if name != "event_arg":
        return [slice(None)]
    if len(ops) and ops.max() > HOST:
        raise TraceError(f"event_op holds {int(ops.max())}, but there are only {HOST + 1} ops")
    return [ops == op for op in range(HOST + 1)]

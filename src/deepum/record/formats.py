# SPDX-License-Identifier: Apache-2.0
"""Traces in other formats: which one a file is in, told from its contents."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from . import dtr, g10, json_form

if TYPE_CHECKING:
    import os

    from ..trace import Trace

MAX_BYTES = 1 << 30
"""Bytes of a file, unpacked."""

_READERS = (json_form, g10)


def load_foreign(path: str | os.PathLike[str]) -> Trace:
    """Read a trace in the JSON form, a G10 kernel trace or a DTR operator log.

    Any of them may be gzipped.

    Raises
    ------
    TraceError
        In one line, if the file is in no known format, or says something impossible.
    """
    where = Path(path)
    name = where.name.removesuffix(".gz").removesuffix(".json").removesuffix(".log")
    try:
        text = _text(where)
        head = text.lstrip().partition("\n")[0]
        if '"INSTRUCTION"' in head and isinstance(_json(head), dict):
            return dtr.from_lines(text.splitlines(), name)
        value = _json(text)
        for reader in _READERS:
            if isinstance(value, dict) and reader.recognise(value):
                return reader.from_json(value, name)
    except TraceError as error:
        raise TraceError(f"{where}: {error}") from None
    raise TraceError(
        f"{where}: JSON, but neither the JSON form of a trace (docs/trace-format.md), "
        "nor a G10 kernel trace, nor a DTR operator log"
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot be read: {error}") from None
    if len(data) > MAX_BYTES:
        raise TraceError(f"more than {MAX_BYTES} bytes are too many for a trace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError("not a deepum trace, and not text") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"not JSON: {error}") from None
    except (RecursionError, ValueError):
        raise TraceError(
            "not JSON that can be read: nested too deep, or a number too long"
        ) from None

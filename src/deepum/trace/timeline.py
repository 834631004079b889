# SPDX-License-Identifier: Apache-2.0
"""When everything happened in a recorded live run.

A trace says what a program does; a live recording also carries what the session did about it. It
lies in the same file, in members of its own that readers of the trace ignore.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TraceError
from . import file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

KINDS = ("kernel", "wait", "in", "out", "drop", "fault", "resident", "step", "host")
"""What an entry tells of: a kernel that ran; a launch that waited behind its gate; blocks moved to
the device, to the host, or dropped; fault records; blocks that have a frame; a step; a while in
which the program gave the device nothing."""

KIND = {name: number for number, name in enumerate(KINDS)}

DTYPES: dict[str, np.dtype[Any]] = {
    "kind": np.dtype("u1"),
    "begin_ns": np.dtype("<u8"),
    "end_ns": np.dtype("<u8"),
    "what": np.dtype("<u8"),
    "amount": np.dtype("<u8"),
    "name": np.dtype("<u4"),
}
_PREFIX = "timeline_"
_NAMES = "timeline.json"


@dataclass(frozen=True)
class LiveTimeline:
    """Entries in order of their beginning, as columns.

    Attributes
    ----------
    kind
        Index into `KINDS`.
    begin_ns, end_ns
        From the start of the recording; equal where something has no length.
    what
        A kernel's number in the session, a first block, or a fault's address.
    amount
        Blocks, or fault records.
    name
        Index into `names`, for kernels and waits.
    """

    kind: NDArray[np.uint8]
    begin_ns: NDArray[np.uint64]
    end_ns: NDArray[np.uint64]
    what: NDArray[np.uint64]
    amount: NDArray[np.uint64]
    name: NDArray[np.uint32]
    names: list[str]

    def members(self) -> dict[str, bytes]:
        """Return what `deepum.trace.file.write` puts beside a trace."""
        found = {
            f"{_PREFIX}{column}.npy": file.npy(getattr(self, column).astype(dtype))
            for column, dtype in DTYPES.items()
        }
        return {**found, _NAMES: json.dumps(self.names, separators=(",", ":")).encode("ascii")}

    @classmethod
    def load(cls, path: Path) -> LiveTimeline:
        """Read the timeline in a trace file.

        Raises
        ------
        TraceError
            The file has none, or it is damaged.
        """
        wanted = [_NAMES, *(f"{_PREFIX}{column}.npy" for column in DTYPES)]
        if not zipfile.is_zipfile(path):
            raise TraceError(f"{path} is not a trace file")
        found = file.read_members(path, wanted)
        if found is None:
            raise TraceError(
                f"{path} has no timeline: record a live run with deepum run --trace FILE"
            )
        try:
            names = file.json_member(found[_NAMES], list, _NAMES)
            columns: dict[str, Any] = {
                column: file.column(found[f"{_PREFIX}{column}.npy"], f"{_PREFIX}{column}", dtype)
                for column, dtype in DTYPES.items()
            }
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        made = cls(**columns, names=names)
        made._check(path)
        return made

    def _check(self, path: Path) -> None:
        sizes = {len(getattr(self, column)) for column in DTYPES}
        if len(sizes) != 1:
            raise TraceError(f"{path}: the columns of its timeline differ in length")
        if self.kind.size and (
            self.kind.max() >= len(KINDS)
            or self.name.max(initial=0) >= max(1, len(self.names))
            or (self.end_ns < self.begin_ns).any()
        ):
            raise TraceError(f"{path}: its timeline has an entry that cannot be")

    def of(self, kind: str) -> NDArray[np.int64]:
        """Return the rows of one kind."""
        return np.flatnonzero(self.kind == KIND[kind])

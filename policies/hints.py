# SPDX-License-Identifier: Apache-2.0
"""Unified memory with hints placed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deepum.errors import PolicyError
from deepum.policy import Policy

if TYPE_CHECKING:
    from deepum._core.python_policy import Allocation, View

BLOCK = 1 << 21
KINDS = ("parameter", "gradient", "optimizer state", "activation", "input", "workspace")


class Hints(Policy):
    """Plain demand paging, but some classes of data stay on the host and are used there.

    What a programmer does with ``cudaMemAdvise``: preferred location host, accessed by the device,
    for the classes named in `on_host` (separated by commas). Kernels then read and write them over
    the bus, and they take no device memory. Everything else is moved on faults. What is smaller
    than a UM block shares one with other data, and stays as it is.
    """

    name = "hints"
    learns = False
    pre_evicts = False
    invalidates = False
    defaults: ClassVar[dict[str, str]] = {"on_host": "parameter,gradient,optimizer state"}

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        named = [part.strip() for part in str(self.options["on_host"]).split(",")]
        self._on_host = frozenset(part for part in named if part)
        for kind in sorted(self._on_host - set(KINDS)):
            raise PolicyError(f"option on_host: no data class {kind!r}; known: {', '.join(KINDS)}")

    def on_alloc(self, view: View, allocation: Allocation) -> None:
        if allocation.kind in self._on_host:
            first = -(-allocation.address // BLOCK)
            count = (allocation.address + allocation.bytes) // BLOCK - first
            if count > 0:
                view.use_in_place(first, count)

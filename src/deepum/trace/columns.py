# SPDX-License-Identifier: Apache-2.0
"""What a trace is made of: the columns, their types, and the codes used in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]

FORMAT = "deepum-trace"
VERSION = 1

UM_BLOCK = 1 << 21
"""Bytes of a UM block; regions that the allocator got from the driver are multiples of it."""

MAX_ADDRESS = 1 << 48
"""Addresses lie below this, so that sums of an address and a length never wrap."""

KINDS = ("other", "parameter", "gradient", "optimizer", "activation", "input", "workspace")
DTYPES = ("fp32", "tf32", "fp16", "other")
DTYPE_ALIASES = {"bf16": "fp16", "half": "fp16", "fp64": "other", "int": "other"}
MODES = ("", "r", "w", "rw")
PATTERNS = ("sequential", "gather")

KERNEL, ALLOC, FREE, HOST = range(4)
OPS = ("kernel", "alloc", "free", "host")

DTYPE_OF: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "tensor_address": "<u8",
        "tensor_bytes": "<u8",
        "tensor_block_bytes": "<u8",
        "tensor_kind": "<u1",
        "segment_address": "<u8",
        "segment_bytes": "<u8",
        "kernel_name": "<u4",
        "kernel_key": "<u8",
        "kernel_time_ns": "<u8",
        "kernel_flops": "<f8",
        "kernel_bytes": "<u8",
        "kernel_dtype": "<u1",
        "kernel_operand_start": "<u4",
        "operand_tensor": "<u4",
        "operand_mode": "<u1",
        "operand_pattern": "<u1",
        "operand_offset": "<u8",
        "operand_length": "<u8",
        "operand_touches": "<u8",
        "initial": "<u4",
        "event_op": "<u1",
        "event_arg": "<u8",
        "step_start": "<u4",
        "schedule": "<u4",
    }.items()
}
"""Every column and its type in memory."""

TABLES = {
    "tensor": ("address", "bytes", "block_bytes", "kind"),
    "segment": ("address", "bytes"),
    "kernel": ("name", "key", "time_ns", "flops", "bytes", "dtype"),
    "operand": ("tensor", "mode", "pattern", "offset", "length", "touches"),
    "event": ("op", "arg"),
}
"""Columns of one table have one length."""

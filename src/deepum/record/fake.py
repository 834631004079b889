# SPDX-License-Identifier: Apache-2.0
"""A device on which programs run without memory and without results: what recording runs on."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import TYPE_CHECKING, Any

from deepum.errors import RecordError
from deepum.record import shim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CPU_DIFFERS = (
    "recording on fake CPU tensors instead, where some operators differ: dropout keeps a "
    "floating-point mask, so a transformer shows about a sixth more memory than on a GPU"
)


def require_torch() -> Any:
    """PyTorch, or a :class:`RecordError` that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise RecordError(
            "recording needs PyTorch: pip install torch (its CPU build is enough)"
        ) from error
    return torch


def choose_device() -> str:
    """The type of the device to fake: ``"cuda"``, or ``"cpu"`` with a warning where that fails."""
    torch = require_torch()
    if torch.cuda.is_available():
        return "cuda"
    try:
        shim.install()
    except RecordError as error:
        warnings.warn(f"{error}; {CPU_DIFFERS}", RuntimeWarning, stacklevel=2)
        return "cpu"
    return "cuda"


@contextlib.contextmanager
def fake_device(device: str | None = None) -> Iterator[str]:
    """Run a block on a fake device, which is also the default device inside; yields its type.

    Autograd works on the calling thread and the garbage collector stands still, so that operators
    and frees come in the same order each time.
    """
    torch = require_torch()
    from torch._subclasses.fake_tensor import FakeTensorMode

    from deepum.record.attention import fused

    class NoGpuMode(FakeTensorMode):
        """Never touches the device, although `torch.cuda.is_available` pretends that it can."""

        avoid_device_init = True

    device = device or choose_device()
    with contextlib.ExitStack() as stack:
        mode = FakeTensorMode
        if device == "cuda" and not torch.cuda.is_available():
            functional = torch.nn.functional
            attention = fused(functional.scaled_dot_product_attention)
            stack.enter_context(_replaced(torch.cuda, _ONE_GPU))
            stack.enter_context(_replaced(functional, {"scaled_dot_product_attention": attention}))
            mode = NoGpuMode
        stack.enter_context(_replaced(torch.utils, {"swap_tensors": _take_over}))
        stack.enter_context(mode(allow_non_fake_inputs=True))
        stack.enter_context(torch.device(device))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(_no_garbage_collection())
        yield device


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _replaced(module: Any, attributes: Mapping[str, Any]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _take_over(parameter: Any, converted: Any) -> None:
    """Let a parameter become its converted self, in place.

    ``model.to(...)`` swaps the two when they are fake, which fails as soon as anything holds a weak
    reference to one of them, as fake tensors themselves do.
    """
    parameter.data = converted.data
    parameter.fake_device = converted.fake_device


# Lets programs that ask PyTorch for a GPU find one.
_ONE_GPU = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "reset_peak_memory_stats": lambda device=None: None,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
}

# SPDX-License-Identifier: Apache-2.0
"""Which backends run real programs, which of them works here, and how one is opened."""

from __future__ import annotations

import importlib.util
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepum import proofs
from deepum.errors import BackendError, DeepUMError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deepum.backends.gpu import GpuBackend
    from deepum.backends.host import HostBackend

NAMES = ("kmod", "uffd")
"""Host backends, the one that ``auto`` prefers first."""

GPU = "managed"
"""The backend that runs PyTorch on a GPU; ``auto`` prefers it to all others."""

GPUS = (GPU, "vmm")
"""All that do, by the memory they use."""


def unavailable(name: str) -> str:
    """Return why a live backend does not work here, in one line; empty if it does."""
    if importlib.util.find_spec(f"deepum.backends.{name}") is None:
        return f"this version has no backend {name!r}"
    return str(import_module(f"deepum.backends.{name}").unavailable())


def choose(name: str) -> str:
    """Return the backend that a name stands for.

    ``"auto"`` is the GPU's, or the first host backend that works here, and the simulator where
    none does.

    Raises
    ------
    BackendError
        The backend does not work here; says why.
    """
    if name == "auto":
        reasons = {name: unavailable(name) for name in (GPU, *NAMES)}
        for found, reason in reasons.items():
            if not reason:
                return found
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        warnings.warn(f"backend 'auto' simulates only: {why}", stacklevel=3)
        return "sim"
    if name in (*GPUS, *NAMES) and (reason := unavailable(name)):
        raise BackendError(f"backend {name!r} does not work here: {reason}")
    return name


def choose_memory(memory: str, script: Path | None = None) -> str:
    """Return the backend for a kind of GPU memory.

    ``"auto"`` is ``"vmm"`` for a script that ``deepum doctor --coverage`` found nothing against
    (the program's own, if None), and ``"managed"`` for all others.

    Raises
    ------
    BackendError
        There is no such memory.
    """
    if memory == "auto":
        return "vmm" if proofs.proved(script) else GPU
    if memory not in GPUS:
        raise BackendError(f"no memory named {memory!r}; this version has: {', '.join(GPUS)}, auto")
    return memory


def open_gpu(name: str, policy: Any, **options: Any) -> GpuBackend:
    """Return a backend of a GPU; options are those of `deepum.backends.gpu.GpuBackend`."""
    if name == "vmm":
        from deepum.backends.vmm import VmmBackend

        return VmmBackend(policy, **options)
    from deepum.backends.managed import ManagedBackend

    return ManagedBackend(policy, **options)


def open_backend(name: str, policy: Any, **options: Any) -> HostBackend:
    """Return a host backend; options are those of `deepum.backends.host.HostBackend`."""
    from deepum.backends.host import HostBackend

    module = import_module(f"deepum.backends.{name}")
    return HostBackend(name, module.open_mechanism, policy, **options)


def tensor(backend: HostBackend, shape: int | Sequence[int], dtype: Any = None) -> Any:
    """Return a CPU tensor of PyTorch's in a backend's memory."""
    try:
        import torch
    except ImportError as error:
        raise DeepUMError("PyTorch is not installed: pip install 'deepum[torch]'") from error
    dtype = torch.get_default_dtype() if dtype is None else dtype
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for size in sizes:
        count *= int(size)
    memory = backend.empty(count * dtype.itemsize, "u1")
    return torch.from_numpy(memory).view(dtype).view(sizes)

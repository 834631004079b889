# SPDX-License-Identifier: Apache-2.0
"""What a session hears from PyTorch's Python side: steps of optimizers, wishes for memory back."""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Hooks:
    """Hooks in PyTorch until closed.

    Parameters
    ----------
    torch
        PyTorch.
    on_step
        Called when a step of the program ends: when the optimizer that stepped first has stepped
        again. A program may have several, and takes a step with each.
    on_empty_cache
        Called after ``torch.cuda.empty_cache()``.

    Notes
    -----
    `torch.cuda.empty_cache` is one call of a private function, looked up each time; that one is
    replaced, so that names bound to the public one before the session work too.
    """

    def __init__(
        self, torch: Any, on_step: Callable[[], object], on_empty_cache: Callable[[], object]
    ) -> None:
        self._library = torch._C
        self._on_step = on_step
        self._on_empty_cache = on_empty_cache
        self._optimizer: Callable[[], Any] = lambda: None
        self._open = True
        self._empty = self._library._cuda_emptyCache
        self._replacement = self._empty_cache
        self._library._cuda_emptyCache = self._replacement
        # PyTorch deletes the module's name from its package.
        optimizer = getattr(torch.optim, "optimizer", None)
        module: Any = optimizer or import_module("torch.optim.optimizer")
        self._handle = module.register_optimizer_step_post_hook(self._stepped)

    def _empty_cache(self) -> None:
        self._empty()
        if self._open:
            self._on_empty_cache()

    def _stepped(self, optimizer: Any, *_: object) -> None:
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._on_step()

    def close(self) -> None:
        """Take the hooks away."""
        self._open = False
        self._handle.remove()
        # Somebody else may have replaced it after us; ours only passes the call on then.
        if self._library._cuda_emptyCache is self._replacement:
            self._library._cuda_emptyCache = self._empty

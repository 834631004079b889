# SPDX-License-Identifier: Apache-2.0
"""Hooks in PyTorch's Python side, and the pool that gives memory back."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from deepum.torch.hooks import Hooks


class Library:
    """Stands for what of PyTorch is touched; notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hook: Any = None
        self.capturing = False
        made = iter(range(1, 100))
        outer = self

        class MemPool:
            def __init__(self, allocator: Any) -> None:
                self.id = (0, next(made))

            def __del__(self) -> None:
                outer.calls.append(f"gone {self.id[1]}")

        def note(name: str) -> Any:
            return lambda _device, pool: self.calls.append(f"{name} {pool[1]}")

        self._C = SimpleNamespace(
            _cuda_emptyCache=lambda: self.calls.append("empty"),
            _cuda_customAllocator=lambda allocate, release: (allocate, release),
            _cuda_beginAllocateToPool=note("begin"),
            _cuda_endAllocateToPool=note("end"),
            _cuda_releasePool=note("release"),
        )
        self.cuda = SimpleNamespace(
            MemPool=MemPool,
            synchronize=lambda: self.calls.append("wait"),
            is_current_stream_capturing=lambda: self.capturing,
            device=lambda _device: nullcontext(),
        )
        self.optim = SimpleNamespace(
            optimizer=SimpleNamespace(register_optimizer_step_post_hook=self._register)
        )

    def _register(self, hook: Any) -> Any:
        self.hook = hook
        return SimpleNamespace(remove=lambda: self.calls.append("removed"))


class Optimizer:
    pass


def test_emptying_the_cache_reaches_the_session_while_it_is_open() -> None:
    library, released = Library(), []
    early = library._C._cuda_emptyCache
    hooks = Hooks(library, lambda: None, lambda: released.append(1))
    library._C._cuda_emptyCache()
    assert (library.calls, released) == (["empty"], [1])
    hooks.close()
    assert library._C._cuda_emptyCache is early
    library._C._cuda_emptyCache()
    assert released == [1]


def test_a_function_replaced_by_somebody_else_stays() -> None:
    library, released = Library(), []
    hooks = Hooks(library, lambda: None, lambda: released.append(1))
    ours = library._C._cuda_emptyCache
    theirs = lambda: ours()  # noqa: E731
    library._C._cuda_emptyCache = theirs
    hooks.close()
    assert library._C._cuda_emptyCache is theirs
    theirs()
    assert (library.calls, released) == (["removed", "empty"], [])


def test_a_step_is_one_of_the_first_optimizer() -> None:
    library, steps = Library(), []
    hooks = Hooks(library, lambda: steps.append(1), lambda: None)
    one, other = Optimizer(), Optimizer()
    for _ in range(3):
        library.hook(one, (), {})
        library.hook(other, (), {})
    assert len(steps) == 3
    del one
    gc.collect()
    library.hook(other, (), {})  # the first one is gone: the next in its place
    assert len(steps) == 4
    hooks.close()


@pytest.mark.torch
def test_pytorch_has_what_is_hooked() -> None:
    import torch

    steps: list[int] = []
    # A build for the CPU has no such function; what stands for it is enough here.
    library = SimpleNamespace(_C=SimpleNamespace(_cuda_emptyCache=lambda: None), optim=torch.optim)
    hooks = Hooks(library, lambda: steps.append(1), lambda: None)
    weight = torch.nn.Parameter(torch.ones(3))
    first = torch.optim.AdamW([weight])
    second = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        weight.square().sum().backward()
        first.step()
        second.step()
    assert len(steps) == 4
    hooks.close()
    first.step()
    assert len(steps) == 4

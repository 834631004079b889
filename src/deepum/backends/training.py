# SPDX-License-Identifier: Apache-2.0
"""A small network that really trains: what ``deepum demo --live`` and the tests run.

A multilayer perceptron with momentum, written out kernel by kernel, so that every array and every
launch is known. With PyTorch on the CPU or with numpy, whichever is there; in ordinary memory or
in a session's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from deepum.record.allocator import CachingAllocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Memory(Protocol):
    """Where arrays come from, and who hears of launches: a `deepum.Session`, or nobody."""

    def empty(self, shape: Sequence[int]) -> Any:
        """Return an array of 32-bit floats."""

    def launch(
        self, name: str, reads: Iterable[Any], writes: Iterable[Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Return what a kernel runs in."""


class Ordinary:
    """Ordinary memory, and how much of it is in use."""

    def __init__(self, empty: Callable[[Sequence[int]], Any]) -> None:
        self._empty = empty
        self._heap = CachingAllocator()
        self.peak_bytes = 0

    def empty(self, shape: Sequence[int]) -> Any:
        """Return an array; count it as a caching allocator would."""
        array = self._empty(shape)
        place = self._heap.alloc(4 * int(np.prod(shape)))
        weakref.finalize(array, self._heap.free, place.address)
        self.peak_bytes = max(self.peak_bytes, self._heap.allocated_bytes)
        return array

    @contextlib.contextmanager
    def launch(self, name: str, reads: Iterable[Any], writes: Iterable[Any]) -> Iterator[None]:
        """Tell nobody."""
        yield


class Managed:
    """A session's memory.

    Parameters
    ----------
    session
        A `deepum.Session` or a host backend.
    empty
        Makes an array of 32-bit floats in it.
    """

    def __init__(self, session: Any, empty: Callable[[Sequence[int]], Any]) -> None:
        self.launch = session.launch
        self.empty = empty


@dataclasses.dataclass(frozen=True)
class Shape:
    """How big the network is."""

    layers: int = 32
    width: int = 1024
    batch: int = 32


def library() -> str:
    """Return the library that computes: ``"torch"`` where it is installed, else ``"numpy"``."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return "numpy"
    return "torch"


class Network:
    """The network with its optimizer.

    Parameters
    ----------
    memory
        Where its arrays live.
    shape
        Its size.
    lib
        ``"numpy"`` or ``"torch"``.
    """

    def __init__(self, memory: Memory, shape: Shape, lib: str) -> None:
        self.memory, self.shape = memory, shape
        if lib == "torch":
            import torch

            self.x: Any = torch
        else:
            self.x = np
        rng = np.random.default_rng(0)
        side = (shape.width, shape.width)
        self.weights, self.momenta, self.gradients = [], [], []
        # Uniform, of the variance that keeps a signal's size from layer to layer (He et al., 2015).
        scale = np.float32(2 * np.sqrt(6 / shape.width))
        pattern = (rng.random((2 * shape.width, shape.width), np.float32) - np.float32(0.5)) * scale
        for layer in range(shape.layers):
            weight, momentum = memory.empty(side), memory.empty(side)
            with memory.launch("init", [], [weight, momentum]):
                weight[:] = self._array(pattern[layer : layer + shape.width])
                momentum[:] = 0
            self.weights.append(weight)
            self.momenta.append(momentum)
            self.gradients.append(memory.empty(side))
        self.input = self._array(rng.random((shape.batch, shape.width), np.float32))
        self.target = self._array(rng.random((shape.batch, shape.width), np.float32))
        self.rate, self.keep = 0.02, 0.9

    def _array(self, data: Any) -> Any:
        return data if self.x is np else self.x.from_numpy(np.ascontiguousarray(data))

    def step(self) -> float:
        """Train once; returns the loss before it."""
        x, memory, launch = self.x, self.memory, self.memory.launch
        rows = (self.shape.batch, self.shape.width)
        outs = [self.input]
        for weight in self.weights:
            out = memory.empty(rows)
            with launch("forward", [outs[-1], weight], [out]):
                x.matmul(outs[-1], weight, out=out)
                x.clip(out, 0, None, out=out)
            outs.append(out)
        grad = memory.empty(rows)
        with launch("loss", [outs[-1]], [grad]):
            x.subtract(outs[-1], self.target, out=grad)
            loss = float((grad * grad).mean())
            x.multiply(grad, 2 / (self.shape.batch * self.shape.width), out=grad)
        for weight, gradient in zip(reversed(self.weights), reversed(self.gradients), strict=True):
            out = outs.pop()
            with launch("mask", [out, grad], [grad]):
                x.multiply(grad, out > 0, out=grad)
            with launch("weight gradient", [outs[-1], grad], [gradient]):
                x.matmul(outs[-1].T, grad, out=gradient)
            before = memory.empty(rows)
            with launch("gradient", [grad, weight], [before]):
                x.matmul(grad, weight.T, out=before)
            grad = before
        for weight, momentum, gradient in zip(
            self.weights, self.momenta, self.gradients, strict=True
        ):
            with launch("optimizer", [momentum, gradient], [weight, momentum, gradient]):
                x.multiply(momentum, self.keep, out=momentum)
                x.add(momentum, gradient, out=momentum)
                x.multiply(momentum, self.rate, out=gradient)
                x.subtract(weight, gradient, out=weight)
        return loss

    def result(self) -> list[Any]:
        """Return copies of the weights in ordinary memory, as numpy arrays."""
        if self.x is np:
            return [weight.copy() for weight in self.weights]
        return [weight.numpy().copy() for weight in self.weights]


@dataclasses.dataclass
class Trained:
    """What a training run did."""

    losses: list[float]
    times_s: list[float]
    """Of each step."""
    counts: list[dict[str, Any]]
    """Differences of the session's statistics over each step; empty in ordinary memory."""
    result: list[Any]
    peak_bytes: int


_COUNTED = ("faults", "late", "prefetched", "fault_evictions", "pre_evictions", "bytes_in",
            "bytes_out", "stall_s", "served_alone")  # fmt: skip


def train(
    shape: Shape,
    steps: int,
    lib: str,
    session: Any = None,
    each: Callable[[int], object] | None = None,
) -> Trained:
    """Train a network in ordinary memory, or in a session's.

    Parameters
    ----------
    shape, steps, lib
        The network's size, how many steps, and the library.
    session
        A `deepum.Session`, or None.
    each
        Called with the number of each step before it begins.
    """
    memory: Any
    if session is not None:
        memory = Managed(session, _maker(lib, session))
    else:
        memory = Ordinary(_maker(lib, None))
    network = Network(memory, shape, lib)
    losses, times, counts = [], [], []
    before = session.stats if session is not None else {}
    for step in range(steps):
        if each is not None:
            each(step)
        began = time.perf_counter()
        losses.append(network.step())
        times.append(time.perf_counter() - began)
        if session is not None:
            now = session.stats
            counts.append({name: now[name] - before[name] for name in _COUNTED})
            before = now
    result = network.result()
    peak = memory.peak_bytes if session is None else session.stats["peak_bytes"]
    return Trained(losses, times, counts, result, peak)


def _maker(lib: str, session: Any) -> Callable[[Sequence[int]], Any]:
    if lib == "torch":
        import torch

        if session is None:
            return lambda shape: torch.empty(tuple(shape), dtype=torch.float32)
        return lambda shape: session.tensor(shape, torch.float32)
    if session is None:
        return lambda shape: np.empty(shape, np.float32)
    return lambda shape: session.empty(shape, np.float32)


def same(one: Trained, other: Trained) -> bool:
    """Tell whether two runs came to the same weights and losses, bit by bit."""
    return np.array(one.losses).tobytes() == np.array(other.losses).tobytes() and all(
        a.tobytes() == b.tobytes() for a, b in zip(one.result, other.result, strict=True)
    )

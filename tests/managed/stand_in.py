# SPDX-License-Identifier: Apache-2.0
"""What stands in for PyTorch and for /dev/nvidia-uvm-tools on the fake driver.

The backend itself, its callbacks, its CUPTI subscription and its fault reader are the real ones.
"""

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.fake_cuda.steer import LISTS, Array, Driver, Lists

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
ON_ALLOC = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
ON_FREE = ctypes.CFUNCTYPE(None, ctypes.c_uint64)

BLOCK = 2 << 20
SEGMENT = 20 << 20
UNIT = 512


class OutOfMemoryError(Exception):
    """No memory, as PyTorch would say."""


class CachingAllocator:
    """PyTorch's caching allocator in small: segments, blocks split and merged, each a stream's."""

    segment = SEGMENT

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.lock = threading.Lock()
        self.allocate: Any = None
        self.release: Any = None
        self.on_alloc: Any = None
        self.on_free: Any = None
        self.free: dict[int, dict[int, int]] = {}  # stream: {address: size}
        self.used: dict[int, tuple[int, int]] = {}  # address: (size, stream)
        self.segments: dict[int, tuple[int, int]] = {}  # address: (size, stream)

    def alloc(self, count: int, stream: ctypes.c_void_p) -> Array:
        """Allocate words for one stream."""
        size = -(-count * 4 // UNIT) * UNIT
        key = stream.value or 0
        with self.lock:
            fits = [(have, at) for at, have in self.free.get(key, {}).items() if have >= size]
            if not fits:
                fits = [self._segment(size, key)]
            have, at = min(fits)
            del self.free[key][at]
            if have > size:
                self.free[key][at + size] = have - size
            self.used[at] = (size, key)
            if self.on_alloc:
                self.on_alloc(at, size)
        return Array(at, count)

    def _segment(self, size: int, key: int) -> tuple[int, int]:
        small = size <= self.segment // 2
        whole = self.segment if small else -(-size // BLOCK) * BLOCK
        if self.allocate is None:
            address: int | None = self.driver.memory(whole // 4).address
        else:
            address = self.allocate(whole, 0, key)
            if not address:
                self._empty()
                address = self.allocate(whole, 0, key)
        if not address:
            raise OutOfMemoryError
        self.segments[address] = (whole, key)
        self.free.setdefault(key, {})[address] = whole
        return whole, address

    def give_back(self, array: Array, graph: bool = False) -> None:
        """Free a tensor: kernels that use it may still be waiting in its stream.

        What a captured `graph` uses is freed too, but only that graph may have it again.
        """
        with self.lock:
            size, key = self.used.pop(array.address)
            if self.on_free:
                self.on_free(array.address)
            if graph:
                return
            free = self.free[key]
            start, end = array.address, array.address + size
            for at, have in list(free.items()):
                if at + have == start and start not in self.segments:
                    start = at
                    del free[at]
                elif at == end and end not in self.segments:
                    end += have
                    del free[at]
            free[start] = end - start

    def empty(self) -> None:
        """Give segments that no tensor uses back to the driver."""
        with self.lock:
            self._empty()

    def _empty(self) -> None:
        for at, (size, key) in list(self.segments.items()):
            if self.free.get(key, {}).get(at) == size:
                del self.free[key][at]
                del self.segments[at]
                self.release(at, size, 0, key)


class Queue:
    """The fault queue's memory, filled from the fake driver's faults as the UVM driver fills it."""

    RECORD = np.dtype({
        "names": ["type", "address", "access"],
        "formats": ["u1", "u8", "u1"],
        "offsets": [0, 8, 37],
        "itemsize": 72,
    })  # fmt: skip
    ENTRIES = 4096
    name = "uvm-tools"

    def flush(self) -> None:
        """There is nothing to do."""

    def __init__(self, feed: Any) -> None:
        from deepum._core.uvm_tools import FaultQueue

        self.records = np.zeros(self.ENTRIES, self.RECORD)
        self.control = np.zeros(132, "u4")  # get_ahead, get_behind, put_ahead, put_behind, dropped
        self.driver = Driver()
        self.reader = FaultQueue(
            feed, -1, self.records.ctypes.data, self.control.ctypes.data, self.ENTRIES
        )
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._pump, daemon=True)
        self.thread.start()

    def _pump(self) -> None:
        put = 0
        while not self.ending.is_set():
            for fault in self.driver.faults():
                after = (put + 1) % self.ENTRIES
                while after == self.control[0] and not self.ending.is_set():
                    time.sleep(0.001)
                self.records[put] = (3, fault.address, fault.access)
                put = after
                self.control[2] = self.control[3] = put
            time.sleep(0.001)

    def close(self) -> None:
        """The reader has stopped."""
        self.ending.set()
        self.thread.join()


class Pool:
    """In the place of `deepum.torch.pool.ManagedPool`."""

    def __init__(self, allocator: CachingAllocator, allocate: int, release: int) -> None:
        self.allocator = allocator
        allocator.allocate, allocator.release = ALLOCATE(allocate), RELEASE(release)

    def release(self) -> None:
        """Give segments that no tensor uses back."""
        self.allocator.empty()

    def close(self) -> None:
        """New segments come from plain device memory."""
        self.allocator.allocate = None


class Machine:
    """A driver, an allocator, one compute stream, and tensors whose right contents are known."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.allocator = CachingAllocator(driver)
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                is_available=lambda: True, current_device=lambda: 0, synchronize=driver.sync
            ),
            zeros=lambda *_args, **_kwargs: None,
            _C=SimpleNamespace(_cuda_emptyCache=lambda: None),
            optim=SimpleNamespace(
                optimizer=SimpleNamespace(register_optimizer_step_post_hook=self._hook)
            ),
        )
        self.stepped: Any = None

    def _hook(self, stepped: Any) -> Any:
        self.stepped = stepped
        return SimpleNamespace(remove=lambda: None)

    def stand_in(self) -> None:
        """Take PyTorch's place where the backend looks for it, until this process ends."""
        import deepum.backends.gpu as backend
        import deepum.cuda.faults
        import deepum.torch.pool
        import deepum.torch.tracker

        allocator = self.allocator

        def track(on_alloc: int, on_free: int) -> Any:
            allocator.on_alloc, allocator.on_free = ON_ALLOC(on_alloc), ON_FREE(on_free)
            return SimpleNamespace()

        backend.pytorch = lambda: self.torch
        deepum.cuda.faults.FaultSource = Queue
        deepum.torch.pool.ManagedPool = lambda _ordinal, a, r: Pool(allocator, a, r)
        deepum.torch.tracker.track = track


class Program:
    """Tensors on one stream, with what they must contain."""

    def __init__(
        self, machine: Machine, seed: int = 0, stream: ctypes.c_void_p | None = None
    ) -> None:
        self.driver = machine.driver
        self.allocator = machine.allocator
        self.stream = self.driver.stream() if stream is None else stream
        self.random = np.random.default_rng(seed)
        self.tensors: dict[int, tuple[Array, np.ndarray]] = {}
        self.next_id = 0
        self.launches = 0

    def new(self, count: int, value: int) -> int:
        """Make a tensor and fill it."""
        array = self.allocator.alloc(count, self.stream)
        self.launch("fill", array.address, count, value)
        self.tensors[self.next_id] = (array, np.full(count, value, "u4"))
        self.next_id += 1
        return self.next_id - 1

    def drop(self, tensor: int) -> None:
        """Free a tensor without waiting for the kernels that use it."""
        array, _ = self.tensors.pop(tensor)
        self.allocator.give_back(array)

    def launch(self, name: str, *args: object, form: str = "params") -> None:
        """Launch a kernel in the program's stream."""
        self.driver.launch(name, *args, stream=self.stream, form=form)
        self.launches += 1

    def axpy(self, y: int, x: int, a: int, form: str = "params") -> None:
        """y += a x, over what both have."""
        (to, right), (source, other) = self.tensors[y], self.tensors[x]
        count = min(to.count, source.count)
        self.launch("axpy", to.address, source.address, count, a, form=form)
        right[:count] += np.uint32(a) * other[:count]

    def add_lists(self, lists: Lists, pairs: list[tuple[int, int]]) -> None:
        """y += x for pairs as long as each other, in one launch; `lists` keeps what it had."""
        blocks = 0
        for k, pair in enumerate(pairs):
            (to, right), (source, other) = (self.tensors[tensor] for tensor in pair)
            lists.addresses[0][k], lists.addresses[1][k] = to.address, source.address
            lists.numel[k] = to.count
            for chunk in range(-(-to.count // 65536)):
                lists.block_to_tensor[blocks], lists.block_to_chunk[blocks] = k, chunk
                blocks += 1
            right += other
        self.driver.launch(LISTS, lists, stream=self.stream, grid=(blocks, 1, 1))
        self.launches += 1

    def reduce(self, source: int) -> None:
        """Sum a tensor up; what comes out is not kept."""
        origin, _ = self.tensors[source]
        result = self.allocator.alloc(2, self.stream)
        self.launch("reduce", result.address, origin.address, origin.count)
        self.allocator.give_back(result)

    def copy(self, to: int, source: int, form: str = "params") -> None:
        """Copy what both have."""
        (target, right), (origin, other) = self.tensors[to], self.tensors[source]
        count = min(target.count, origin.count)
        self.launch("copy", target.address, origin.address, count, form=form)
        right[:count] = other[:count]

    def check(self, tensor: int) -> None:
        """Compare a tensor with what it must contain."""
        array, right = self.tensors[tensor]
        got = np.empty(array.count, "u4")
        self.driver.call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(got.ctypes.data),
            array.address,
            ctypes.c_size_t(array.bytes),
            self.stream,
        )
        self.driver.sync(self.stream)
        wrong = np.flatnonzero(got != right)
        assert not wrong.size, (
            f"tensor {tensor} ({array.count} words at {array.address:#x}): {wrong.size} words "
            f"wrong from {wrong[0]} on: {got[wrong[0]]:#x} and not {right[wrong[0]]:#x}"
        )

    def check_all(self) -> None:
        """Compare all."""
        for tensor in self.tensors:
            self.check(tensor)

    def upload(self, tensor: int, values: np.ndarray) -> None:
        """Write a tensor from the host."""
        array, right = self.tensors[tensor]
        right[: len(values)] = values
        data = np.ascontiguousarray(values, "u4")
        self.driver.call(
            "cuMemcpyHtoDAsync_v2",
            array.address,
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
            self.stream,
        )


def training(program: Program, layers: int, words: int, steps: int, form: str = "params") -> None:
    """Do what a training loop does: weights that stay, a stack of activations, early frees."""
    weights = [program.new(words, layer + 1) for layer in range(layers)]
    for step in range(steps):
        activations = [program.new(words, step)]
        for weight in weights:  # forward: each layer keeps its input
            activations.append(program.new(words, 1))
            program.axpy(activations[-1], activations[-2], 3, form)
            program.axpy(activations[-1], weight, 2, form)
        gradient = program.new(words, 1)
        for weight in reversed(weights):  # backward: each is freed as soon as it was used
            program.axpy(gradient, activations[-1], 5, form)
            program.drop(activations.pop())
            program.axpy(weight, gradient, 7, form)
        program.drop(activations.pop())
        program.drop(gradient)
    for weight in weights:
        program.check(weight)

# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch's segments come from, on a model of the rules of its pools.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp`: a pool is made with one user, each
`beginAllocateToPool` is another; the last pool that was begun gets what is allocated; segments go
back only from pools without a user, and from the default pool only while none is begun.
"""

import gc
import sys
import types
from typing import Any

import pytest


class Allocator:
    """PyTorch's: which pool has how many users and segments."""

    def __init__(self) -> None:
        self.users: dict[tuple[int, int], int] = {}
        self.segments: dict[tuple[int, int], int] = {(0, 0): 0}
        self.begun: list[tuple[int, int]] = []
        self.aborted = False

    def allocate(self) -> tuple[int, int]:
        """Return the pool that the segment is from."""
        pool = self.begun[-1] if self.begun else (0, 0)
        self.segments[pool] = self.segments.get(pool, 0) + 1
        return pool

    def begin(self, _device: int, pool: tuple[int, int]) -> None:
        assert self.users[pool] > 0, "a pool without users cannot be used again"
        assert pool not in self.begun
        self.users[pool] += 1
        self.begun.append(pool)

    def end(self, _device: int, pool: tuple[int, int]) -> None:
        self.begun.remove(pool)

    def release(self, _device: int, pool: tuple[int, int]) -> None:
        self.users[pool] -= 1
        assert self.users[pool] >= 0, "released once too often: PyTorch ends the process"

    def empty_cache(self) -> None:
        """Give back what may go."""
        for pool, users in self.users.items():
            if not users:
                self.segments[pool] = 0
        if not self.begun:
            self.segments[0, 0] = 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the allocator that `import torch` leads to, and that torch."""
    allocator = Allocator()
    destroyed = []

    class MemPool:
        """As `torch.cuda.MemPool`."""

        def __init__(self, functions: object) -> None:
            self.functions = functions
            self.id = (0, len(allocator.users) + 1)
            self.device = torch.current
            allocator.users[self.id] = 1

        def use_count(self) -> int:
            return allocator.users[self.id]

        def __del__(self) -> None:
            destroyed.append(self.id)
            if allocator.begun:
                allocator.aborted = True  # an assertion fails in a destructor
            allocator.users[self.id] -= 1

    class Functions:
        def __del__(self) -> None:
            destroyed.append("functions")

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def __enter__(self) -> None:
            self.before, torch.current = torch.current, self.ordinal

        def __exit__(self, *_: object) -> None:
            torch.current = self.before

    torch: Any = types.ModuleType("torch")
    torch.current = 1  # the program has turned to another device than the pool's
    torch.capturing = False
    torch.cuda = types.SimpleNamespace(
        MemPool=MemPool,
        device=Device,
        synchronize=lambda: None,
        is_current_stream_capturing=lambda: torch.capturing,
    )
    torch._C = types.SimpleNamespace(
        _cuda_customAllocator=lambda *_: Functions(),
        _cuda_beginAllocateToPool=allocator.begin,
        _cuda_endAllocateToPool=allocator.end,
        _cuda_releasePool=allocator.release,
        _cuda_emptyCache=allocator.empty_cache,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return types.SimpleNamespace(allocator=allocator, torch=torch, destroyed=destroyed)


def open_pool() -> Any:
    from deepum.torch.pool import ManagedPool

    return ManagedPool(0, 1, 2)


def test_allocations_come_from_the_pool_while_it_is_open(world: Any) -> None:
    assert world.allocator.allocate() == (0, 0)
    pool = open_pool()
    assert world.allocator.allocate() == (0, 1)
    pool.close()
    pool.close()
    assert world.allocator.allocate() == (0, 0)
    assert world.allocator.begun == []


def test_memory_goes_back_when_the_session_ends(world: Any) -> None:
    pool = open_pool()
    world.allocator.allocate()
    pool.close()
    assert world.allocator.users[0, 1] == 0
    assert world.allocator.segments[0, 1] == 0


def test_the_cache_is_emptied_while_the_pool_is_open(world: Any) -> None:
    """pytorch/pytorch#145168: empty_cache gave nothing back of a pool that is in use."""
    pool = open_pool()
    for number in (1, 2, 3):
        assert world.allocator.allocate() == (0, number)
        pool.release()
        assert world.allocator.segments[0, number] == 0
    world.torch.capturing = True
    world.allocator.allocate()
    pool.release()  # not in the midst of a graph
    assert world.allocator.segments[0, 4] == 1
    world.torch.capturing = False
    pool.close()
    assert world.allocator.segments[0, 4] == 0
    assert not world.allocator.aborted


def test_a_pool_begun_later_comes_first(world: Any) -> None:
    """pytorch/pytorch#161193: what a user's pool or a CUDA graph allocates stays theirs."""
    pool = open_pool()
    theirs = world.torch.cuda.MemPool(None)
    world.allocator.begin(0, theirs.id)
    assert world.allocator.allocate() == theirs.id
    world.allocator.end(0, theirs.id)
    assert world.allocator.allocate() == (0, 1)
    pool.close()


def test_a_users_pool_that_dies_within_a_session(world: Any) -> None:
    """pytorch/pytorch#167745, whose patterns are temporary pools; #159301 shows the abort."""
    pool = open_pool()
    theirs = world.torch.cuda.MemPool(None)
    world.allocator.begin(0, theirs.id)
    world.allocator.end(0, theirs.id)
    world.allocator.release(0, theirs.id)
    number = theirs.id
    del theirs
    pool.release()
    gc.collect()
    assert world.destroyed == []
    pool.close()
    gc.collect()
    assert world.destroyed == [number]
    assert world.allocator.users[number] == 0
    assert not world.allocator.aborted
    world.torch.cuda.MemPool(None)
    gc.collect()
    assert len(world.destroyed) == 2  # they live as long as they would without a session


def test_a_session_that_ends_within_a_users_pool(world: Any) -> None:
    theirs = world.torch.cuda.MemPool(None)
    world.allocator.begin(0, theirs.id)
    pool = open_pool()
    assert world.allocator.allocate() == (0, 2)
    pool.close()
    assert world.allocator.allocate() == theirs.id
    assert world.allocator.segments[0, 2] == 0


def test_what_segments_call_when_they_are_freed_is_never_gone(world: Any) -> None:
    """pytorch/pytorch#188170, vllm-project/vllm#46050: tensors outlive the session and its pool."""
    open_pool().close()
    gc.collect()
    assert world.destroyed == []


def test_the_pool_is_of_the_sessions_device(world: Any) -> None:
    """pytorch/pytorch#149802: a pool made while another device is current ended the process."""
    pool = open_pool()
    assert pool._pool.device == 0
    pool.release()
    assert pool._pool.device == 0
    assert world.torch.current == 1
    pool.close()

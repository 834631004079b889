# SPDX-License-Identifier: Apache-2.0
"""PyTorch's native caching allocator over managed memory.

The allocator stays what it is: statistics, snapshots, `empty_cache` and memory pools of CUDA
graphs go on working. Only its segments come from elsewhere.
"""

from __future__ import annotations

import ctypes
from typing import Any


def _keep(thing: object) -> None:
    # For good, the interpreter's own end included: memory that is freed then calls its allocator.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class ManagedPool:
    """Where all threads' allocations on a device come from while it is open.

    Parameters
    ----------
    device
        CUDA ordinal.
    allocate, release
        Addresses of ``void *(size_t, int, cudaStream_t)`` and
        ``void (void *, size_t, int, cudaStream_t)``.

    Notes
    -----
    `torch.cuda.use_mem_pool` would cover the calling thread only; the backward pass allocates in
    others. What covers all threads is private in PyTorch 2.11 to 2.15 and called here alone.

    PyTorch gives back segments only of pools that nobody uses, and a `MemPool` is itself a user of
    its pool. One that is destroyed while anything is allocated from a pool ends the process
    (pytorch/pytorch#159301 shows how). So ours are released here and never destroyed, and those
    that the program makes meanwhile live until this closes.
    """

    def __init__(self, device: int, allocate: int, release: int) -> None:
        import torch

        self._device = device
        self._torch: Any = torch
        self._empty_cache = torch._C._cuda_emptyCache  # before anybody replaces it
        self._allocator = torch._C._cuda_customAllocator(allocate, release)
        _keep(self._allocator)
        self._begin()
        self._open = True
        self._theirs: list[Any] = []
        self._make = torch.cuda.MemPool.__init__

        def make(pool: Any, *arguments: Any, **options: Any) -> None:
            self._make(pool, *arguments, **options)
            self._theirs.append(pool)

        torch.cuda.MemPool.__init__ = make

    def _begin(self) -> None:
        torch = self._torch
        with torch.cuda.device(self._device):  # a pool belongs to the device that is current
            self._pool = torch.cuda.MemPool(self._allocator)
        _keep(self._pool)  # it would release itself once more
        torch._C._cuda_beginAllocateToPool(self._device, self._pool.id)

    def _end(self) -> None:
        library, pool = self._torch._C, self._pool
        # Freeing waits for launches that wait for their memory; not while this thread has the GIL.
        self._torch.cuda.synchronize()
        library._cuda_endAllocateToPool(self._device, pool.id)
        for _ in range(pool.use_count()):  # ours, and the pool's own
            library._cuda_releasePool(self._device, pool.id)

    def release(self) -> None:
        """Give segments that no tensor uses back to the driver.

        A new pool takes over: what is free in segments that are still used serves nobody until
        those are free too, and goes with a later call.
        """
        if not self._open or self._torch.cuda.is_current_stream_capturing():
            return
        self._end()
        try:
            self._empty_cache()
        finally:
            self._begin()

    def close(self) -> None:
        """Let allocations come from where they came before; what lives, lives on.

        What lives no longer, goes back; what dies later, with the next `torch.cuda.empty_cache`.
        """
        if self._open:
            self._open = False
            self._torch.cuda.MemPool.__init__ = self._make
            self._torch.cuda.synchronize()
            if clear := getattr(self._torch._C, "_cuda_clearCublasWorkspaces", None):
                clear()  # cuBLAS's are PyTorch's for good otherwise, 32 MiB for each handle
            self._end()
            self._theirs.clear()
            self._empty_cache()

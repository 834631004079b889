# SPDX-License-Identifier: Apache-2.0
"""Programs that run on a GPU, each in a process of its own that may hang or crash by itself."""

import os
import subprocess
import sys
import textwrap

import pytest

from .fake_cuda.build import ROOT

PRELUDE = '''
import copy, gc, os, sys, threading, time, warnings
import torch
from torch import nn
from torch.nn import functional
import deepum

MIB = 1 << 20
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True


def session(policy="chained", limit="384MiB", backend="managed", **more):
    return deepum.Session(policy, memory_limit=limit, backend=backend, **more)


def network(layers=12, width=2048):
    """16 MiB a layer; with gradients and AdamW's states four times that."""
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*parts).cuda()


def data(batch=64, width=2048):
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(1)).cuda()


def step(model, optimizer, x, clip=None):
    loss = model(x).square().mean()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach().cpu()


def bits(model):
    return [value.detach().cpu().clone() for value in model.state_dict().values()]


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))


def same_as_native(train, limit="384MiB", **more):
    """Train twice from the same seed, natively and in a session; all results must be equal."""
    torch.manual_seed(0)
    native = train()
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    with session(limit=limit, **more) as s:
        limited = train()
        stats = s.stats
    assert equal(native, limited), "results differ from native"
    assert stats["failure"] == stats["set_aside"] == "", stats
    return stats


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def comes_back(before):
    """Whether as much is free as before; other tests may use the card for a while."""
    for _ in range(300):
        if before - free_bytes() <= 64 * MIB:
            return True
        time.sleep(0.1)
    return False
'''


def run(program: str, timeout: float = 180, devices: int = 1) -> str:
    """Run a program after `PRELUDE`; it must end with status 0. Return its output.

    Skipped where PyTorch sees fewer than so many devices.
    """
    torch = pytest.importorskip("torch", reason="PyTorch with CUDA is not installed")
    if torch.cuda.device_count() < devices:
        pytest.skip(f"PyTorch sees {torch.cuda.device_count()} CUDA devices and not {devices}")
    environment = {
        **os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": str(ROOT),
        "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    source = PRELUDE + textwrap.dedent(program)
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True, text=True, timeout=timeout, check=False, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        tail = (error.stderr or b"")[-3000:].decode(errors="replace")
        pytest.fail(f"no end in {timeout} s\n{tail}", pytrace=False)
    if done.returncode:
        pytest.fail(f"ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout

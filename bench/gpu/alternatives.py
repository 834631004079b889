# SPDX-License-Identifier: Apache-2.0
"""What people use when a model does not fit: each a change of the program, to be measured beside.

Each is set up as its documentation shows it, with its own choice of what to keep where.
"""

from __future__ import annotations

import functools
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from models import DEVICE, Change
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

SGD_MODELS = ("resnet50", "resnet152", "dlrm")
ON_CPU = "the optimizer computes on the CPU, which rounds otherwise"


class Alternative(Change):
    """A change of the program that makes it need less GPU memory."""

    needs = ""
    """The package that it comes in, beside PyTorch."""
    adam_only = False

    @classmethod
    def why_not(cls, model: str) -> str:
        """Return why it cannot be measured here with a model of `MODELS`; empty if it can."""
        if cls.adam_only and model in SGD_MODELS:
            return "it has a replacement for Adam only, and this model trains with SGD"
        if cls.needs and find_spec(cls.needs) is None:
            return f"not installed: {cls.needs}"
        return ""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the parts that a model is a row of: layers of a transformer, blocks of a ResNet."""
    return [
        part
        for row in model.modules()
        if isinstance(row, nn.ModuleList)
        or (isinstance(row, nn.Sequential) and all(any(p.children()) for p in row))
        for part in row
    ]


class Checkpointing(Alternative):
    """Activations are computed again in the backward pass: torch.utils.checkpoint."""

    lines_changed = 2

    def model(self, model: nn.Module) -> nn.Module:
        from torch.utils.checkpoint import checkpoint

        for block in blocks_of(model):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return model


class SaveOnCpu(Alternative):
    """What the backward pass needs waits in host memory: torch.autograd.graph.save_on_cpu."""

    lines_changed = 1
    pinned = True

    def forward(self) -> AbstractContextManager:
        return torch.autograd.graph.save_on_cpu(pin_memory=self.pinned)


class Fsdp2(Alternative):
    """Parameters, gradients and optimizer live in host memory: fully_shard, on one rank."""

    lines_changed = 6
    numerics = ON_CPU
    pinned = True

    def model(self, model: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        join_alone()
        policy = CPUOffloadPolicy(pin_memory=self.pinned)
        for block in blocks_of(model):
            fully_shard(block, offload_policy=policy)
        return fully_shard(model, offload_policy=policy)

    def optimizer(self, model: nn.Module, usual: Callable[[Any], Any]) -> Any:
        return on_cpu(usual)(model.parameters())


class DeepSpeed(Alternative):
    """ZeRO-Offload: gradients and optimizer in host memory."""

    lines_changed = 16
    needs = "deepspeed"
    adam_only = True
    numerics = ON_CPU

    def optimizer(self, model: nn.Module, usual: Callable[[Any], Any]) -> Any:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        join_alone()
        settings = {
            "train_micro_batch_size_per_gpu": 1,  # of no effect: data are not loaded by it
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
            },
        }
        adam = DeepSpeedCPUAdam(model.parameters(), **like(usual), adamw_mode=True)
        self.engine = deepspeed.initialize(model=model, optimizer=adam, config=settings)[0]
        return adam

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def update(self, optimizer: Any) -> None:
        self.engine.step()


class TorchAo(Alternative):
    """Optimizer state and its step on the CPU: torchao's CPUOffloadOptimizer."""

    lines_changed = 1
    needs = "torchao"
    numerics = ON_CPU

    def optimizer(self, model: nn.Module, usual: Callable[[Any], Any]) -> Any:
        from torchao.optim import CPUOffloadOptimizer

        fast = on_cpu(usual)
        return CPUOffloadOptimizer(
            model.parameters(), fast.func, offload_gradients=True, **fast.keywords
        )


class PagedAdamW(Alternative):
    """Optimizer state in managed memory that the driver pages: bitsandbytes."""

    lines_changed = 1
    needs = "bitsandbytes"
    adam_only = True
    numerics = "its own AdamW kernel rounds otherwise"

    def optimizer(self, model: nn.Module, usual: Callable[[Any], Any]) -> Any:
        from bitsandbytes.optim import PagedAdamW as Paged

        return Paged(model.parameters(), **like(usual))


def on_cpu(usual: functools.partial) -> functools.partial:
    """Return a program's optimizer in the form that is fast on a CPU."""
    if usual.func is torch.optim.AdamW:
        return functools.partial(usual, foreach=False, fused=True)
    return usual


def like(usual: Callable[[Any], Any]) -> dict:
    """Return the settings of a program's optimizer that another implementation shares."""
    return {"weight_decay": 0.01} | {k: v for k, v in usual.keywords.items() if k != "foreach"}


def join_alone() -> None:
    """Begin a process group of this process alone."""
    from torch import distributed

    if distributed.is_initialized():
        return
    backends = "cpu:gloo" + (",cuda:nccl" if DEVICE == "cuda" else "")
    file = Path(tempfile.mkdtemp()) / "store"
    distributed.init_process_group(
        backends, store=distributed.FileStore(str(file), 1), rank=0, world_size=1
    )


ALTERNATIVES: dict[str, type[Alternative]] = {
    "checkpointing": Checkpointing,
    "save-on-cpu": SaveOnCpu,
    "fsdp2-offload": Fsdp2,
    "deepspeed-offload": DeepSpeed,
    "torchao-offload": TorchAo,
    "paged-adamw": PagedAdamW,
}

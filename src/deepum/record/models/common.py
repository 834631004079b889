# SPDX-License-Identifier: Apache-2.0
"""What the models share: batches that come from the host, and optimizers as they were in 2021."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """A batch of token ids, made on the host and copied to the device."""
    made = torch.randint(0, vocabulary, shape, device="cpu")
    return made.to(torch.get_default_device())


def floats(*shape: int) -> torch.Tensor:
    """A batch of numbers, made on the host and copied to the device."""
    return torch.rand(shape, device="cpu").to(torch.get_default_device())


def adamw(parameters: Iterable[Any], rate: float = 5e-5) -> torch.optim.Optimizer:
    """AdamW with a kernel for each tensor and operation, as before the foreach optimizers."""
    return torch.optim.AdamW(parameters, lr=rate, foreach=False, fused=False)


def sgd(parameters: Iterable[Any], rate: float = 0.1, momentum: float = 0.0) -> Any:
    """SGD with a kernel for each tensor and operation."""
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, foreach=False, fused=False)


def training_step(
    forward: Callable[[], tuple[torch.Tensor, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """Forward, backward, optimizer, and the gradients cleared in place, as PyTorch 1.8 did.

    `forward` returns the loss and the model's output, which the program holds until the step ends.
    """

    def step() -> None:
        loss, _output = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step

# SPDX-License-Identifier: Apache-2.0
"""Record the training step of a model of your own, and see what swapping would cost it.

    deepum record --script examples/record_my_model.py:make_step --batch 64 -o mine.trace
    deepum simulate mine.trace --memory 1GiB --policy noop,chained,oracle

or, from Python, run this file. No GPU is needed: PyTorch's CPU build is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


def make_step(batch: int = 64) -> Callable[[], None]:
    """Build the model and the optimizer once; return what runs one training step.

    Everything goes to the default device. While recording that is a device without memory and
    without results, so the step must not read values back: no ``loss.item()``, no ``print(loss)``.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 100),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    device = torch.get_default_device()

    def step() -> None:
        # Batches that come from the host are made there and copied, as a data loader's are.
        images = torch.rand(batch, 3, 224, 224, device="cpu").to(device)
        labels = torch.randint(100, (batch,), device="cpu").to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    """Record the step, save the trace, and say what is in it."""
    from deepum.record.recorder import record_script

    trace = record_script(f"{__file__}:make_step", batch=64, machine="v100-pcie3-32g")
    trace.save("mine.trace")
    print(
        f"mine.trace: {trace.kernels_per_step} kernels a step, "
        f"peak {trace.peak_bytes / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()

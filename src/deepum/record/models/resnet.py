# SPDX-License-Identifier: Apache-2.0
"""ResNets with bottleneck blocks, as torchvision writes them.

The stride is in the 3x3 convolution and the rectifiers work in place. ResNet-200 has (3, 24, 36, 3)
blocks. On ImageNet the images are 224x224.

For the 32x32 images of CIFAR-10 the stem keeps the image's size. 6400 samples, the most that the
paper runs on a 16 GB card with 128 GB of host memory, then take 125 GiB, nearly all of both; with
the stem's usual stride they would take 32 GiB, and nothing would stop a larger batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from deepum.record.models.common import floats, sgd, tokens, training_step

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


class Unit(nn.Sequential):
    """Convolution and batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
        )


class Bottleneck(nn.Module):
    """Narrow, 3x3, widen, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = Unit(inputs, width, 1)
        self.square = Unit(width, width, 3, stride)
        self.widen = Unit(width, 4 * width, 1)
        changes = stride != 1 or inputs != 4 * width
        self.shortcut = Unit(inputs, 4 * width, 1, stride) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = functional.relu(self.narrow(x), inplace=True)
        y = functional.relu(self.square(y), inplace=True)
        y = self.widen(y)
        y += x if self.shortcut is None else self.shortcut(x)
        return functional.relu(y, inplace=True)


class ResNet(nn.Module):
    """Stem, four stages, classifier."""

    def __init__(self, depth: int, classes: int, stem_stride: int) -> None:
        super().__init__()
        self.stem = Unit(3, 64, 7, stem_stride)
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(BLOCKS[depth]):
            width = 64 << stage
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not i else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        x = functional.relu(self.stem(x), inplace=True)
        x = self.blocks(functional.max_pool2d(x, 3, 2, 1))
        return self.classify(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def make_step(
    batch: int,
    depth: int = 152,
    image: int = 224,
    classes: int = 1000,
    stem_stride: int = 2,
) -> Callable[[], None]:
    """The training step: forward, backward, SGD with momentum."""
    model = ResNet(depth, classes, stem_stride).train()

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        scores = model(floats(batch, 3, image, image))
        return functional.cross_entropy(scores, tokens(classes, batch)), scores

    return training_step(forward, sgd(model.parameters(), momentum=0.9))

# SPDX-License-Identifier: Apache-2.0
"""MobileNet v2 (Sandler et al., 2018) for the 32x32 images of CIFAR-100.

The stem and the second stage keep the image's size, as the usual CIFAR variants of the net do. With
the strides for large images, 5100 samples, the most that the paper runs on a 16 GB card, would take
8 GiB and need no swapping at all; so they take 91 GiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from deepum.record.models.common import floats, sgd, tokens, training_step

if TYPE_CHECKING:
    from collections.abc import Callable

# Expansion, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Convolution, batch norm and the rectifier that ends at 6."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    ]


class Inverted(nn.Module):
    """Widen, filter each channel, narrow; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers = unit(inputs, width, 1) if expansion > 1 else []
        layers += unit(width, width, 3, stride, width)
        layers += unit(width, outputs, 1)[:2]
        self.layers = nn.Sequential(*layers)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = self.layers(x)
        return x + y if self.shortcut else y


class MobileNet(nn.Module):
    """Stem, inverted residuals, classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = unit(3, 32, 3)
        inputs = 32
        for expansion, channels, count, stride in STAGES:
            for i in range(count):
                layers.append(Inverted(inputs, channels, 1 if i else stride, expansion))
                inputs = channels
        self.features = nn.Sequential(*layers, *unit(inputs, 1280, 1))
        self.drop = nn.Dropout(0.2)
        self.classify = nn.Linear(1280, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        x = functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        return self.classify(self.drop(x))


def make_step(batch: int, image: int = 32, classes: int = 100) -> Callable[[], None]:
    """The training step: forward, backward, SGD with momentum."""
    model = MobileNet(classes).train()

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        scores = model(floats(batch, 3, image, image))
        return functional.cross_entropy(scores, tokens(classes, batch)), scores

    return training_step(forward, sgd(model.parameters(), momentum=0.9))

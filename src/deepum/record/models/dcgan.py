# SPDX-License-Identifier: Apache-2.0
"""DCGAN (Radford et al., 2016): a generator and a discriminator that train against each other.

The nets have as many layers as halve or double the image between 4x4 and its size. The paper does
not give the size. At the customary 64x64, 3500 samples, the most that the paper runs on a 16 GB
card with 128 GB of host memory, take 6 GiB and need no swapping; at 128x128 they take 25 GiB. At
256x256, close to celebA's 178x218, they would take 101 GiB, but one batch norm alone would then
touch more than the card holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from deepum.record.models.common import floats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NOISE = 100
WIDTH = 64


def discriminator(image: int) -> nn.Sequential:
    """Halve the image until 4x4 is left, then one number; no norm in the first layer."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    width = WIDTH
    for _ in range(_doublings(image) - 1):
        layers += [
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2, True),
        ]
        width *= 2
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 4, 1, 0, bias=False), nn.Sigmoid())


def generator(image: int) -> nn.Sequential:
    """From noise to 4x4, then double it until the image is there."""
    width = WIDTH << (_doublings(image) - 1)
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(NOISE, width, 4, 1, 0, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(True),
    ]
    for _ in range(_doublings(image) - 1):
        layers += [
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.ReLU(True),
        ]
        width //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def _doublings(image: int) -> int:
    return (image // 4).bit_length() - 1


def _adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-4, betas=(0.5, 0.999), foreach=False, fused=False)


def make_step(batch: int, image: int = 64) -> Callable[[], None]:
    """The training step: the discriminator on real and made images, then the generator."""
    judge, maker = discriminator(image).train(), generator(image).train()
    adam_judge, adam_maker = _adam(judge.parameters()), _adam(maker.parameters())

    def verdict(images: torch.Tensor, truth: float) -> torch.Tensor:
        labels = torch.full((batch,), truth)
        return functional.binary_cross_entropy(judge(images).view(-1), labels)

    def step() -> None:
        judge.zero_grad(set_to_none=False)
        real = floats(batch, 3, image, image)
        verdict(real, 1.0).backward()
        made = maker(torch.randn(batch, NOISE, 1, 1))
        verdict(made.detach(), 0.0).backward()
        adam_judge.step()
        maker.zero_grad(set_to_none=False)
        verdict(made, 1.0).backward()
        adam_maker.step()

    return step

# SPDX-License-Identifier: Apache-2.0
"""Train ResNet-152 on images of random noise: float32, SGD with momentum, cudnn.benchmark.

    python examples/resnet.py --device cpu --depth 50 --batch 2 --image 32
    python examples/resnet.py --batch 192 --memory-limit 24GiB

The layers are torchvision's; it is not needed, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional

import deepum

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CLASSES = 1000


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Narrow, convolve 3x3, widen, and a shortcut around all of it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = unit(inputs, width, 1)
        self.convolve = unit(width, width, 3, stride)
        self.widen = unit(width, 4 * width, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else unit(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = functional.relu(self.narrow(x), inplace=True)
        y = functional.relu(self.convolve(y), inplace=True)
        return functional.relu(self.widen(y) + self.shortcut(x), inplace=True)


def resnet(depth: int) -> nn.Sequential:
    """Return a ResNet of bottleneck blocks."""
    layers: list[nn.Module] = [unit(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(BLOCKS[depth]):
        for k in range(count):
            stride = 2 if stage and k == 0 else 1
            layers.append(Bottleneck(inputs, 64 << stage, stride))
            inputs = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def train(args: argparse.Namespace) -> None:
    """Build the model, train it, print the loss and the time of each step."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    images = torch.randn(args.batch, 3, args.image, args.image)
    labels = torch.randint(CLASSES, (args.batch,))
    with torch.device(args.device):
        model = resnet(args.depth).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step in range(args.steps):
        began = time.perf_counter()
        loss = functional.cross_entropy(model(images.to(args.device)), labels.to(args.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - began:.3f} s")
    if args.device == "cuda":
        print(f"peak of the tensors: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--depth", type=int, default=152, choices=BLOCKS)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--image", type=int, default=224, help="width and height, pixels")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--memory-limit", help="GPU memory to use, such as 24GiB")
    args = parser.parse_args()

    if args.memory_limit is None:
        train(args)
        return
    with deepum.Session(memory_limit=args.memory_limit, backend="managed"):
        train(args)


if __name__ == "__main__":
    main()

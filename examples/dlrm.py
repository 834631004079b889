# SPDX-License-Identifier: Apache-2.0
"""Train DLRM, a recommendation model, on random clicks: float32, SGD.

    python examples/dlrm.py --device cpu --rows 1000 --batch 64
    python examples/dlrm.py --rows 4000000 --batch 65536 --memory-limit 24GiB

26 embedding tables as for the Criteo data. Each step looks up other rows: the part of training
that nobody can predict from the step before.
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from torch import nn
from torch.nn import functional

import deepum

TABLES, DENSE = 26, 13


def network(*widths: int) -> nn.Sequential:
    """Return linear layers with rectifiers between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """Embeddings, their pairwise products, a network before and one after."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(TABLES))
        for table in self.tables:
            nn.init.uniform_(table.weight, -(rows**-0.5), rows**-0.5)
        self.bottom = network(DENSE, 512, 256, width)
        self.top = network(width + TABLES * (TABLES + 1) // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.triu_indices(TABLES + 1, TABLES + 1, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return a score for each sample; `sparse` is tables x batch."""
        bottom = self.bottom(dense)
        looked_up = [table(row[:, None]) for table, row in zip(self.tables, sparse, strict=True)]
        vectors = torch.stack([bottom, *looked_up], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        products = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def train(args: argparse.Namespace) -> None:
    """Build the model, train it, print the loss and the time of each step."""
    torch.manual_seed(0)
    with torch.device(args.device):
        model = DLRM(args.rows, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        began = time.perf_counter()
        dense = torch.rand(args.batch, DENSE).to(args.device)
        sparse = torch.randint(args.rows, (TABLES, args.batch)).to(args.device)
        clicks = (dense[:, 0] > 0.7).float()  # one number tells it, so there is a thing to learn
        loss = functional.binary_cross_entropy_with_logits(model(dense, sparse), clicks)
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
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each of the 26 tables")
    parser.add_argument("--width", type=int, default=64, help="of an embedding")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--memory-limit", help="GPU memory to use, such as 8GiB")
    args = parser.parse_args()

    if args.memory_limit is None:
        train(args)
        return
    with deepum.Session(memory_limit=args.memory_limit, backend="managed"):
        train(args)


if __name__ == "__main__":
    main()

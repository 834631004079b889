# SPDX-License-Identifier: Apache-2.0
"""DLRM (Naumov et al., 2019) for the Criteo Kaggle data: 26 tables with 33.76 million rows in all.

The paper does not give the width of a row, nor whether the tables' gradients are sparse.

Sparse gradients and plain SGD, as in the reference program: dense gradients double the tables and
every step would read and write all of both, tens of GiB, where the paper counts 1.26 million
faults of 4 KiB pages an iteration at batch 96K and 4.28 million at 224K. PyTorch's sparse update
first sums the rows that occur twice, in a workspace as large as the gradient's values.

192 numbers a row: a step at batch 96K then holds 33.7 GiB, a little more than the card. As
simulated when the width was chosen, naive unified memory takes 10.6, 18.3, 22.6, 26.9 and 31.1 s;
in the paper it takes 12.0, 16.6, 21.2, 28.9 and 33.2 s. (The reference program's 16 numbers would
need 4 to 6 GiB and no swapping at all.)

The host: if everything fits, an iteration takes 85.7 us a sample at every batch (1203 s / 1.43 /
100 iterations / 98304 samples, and within 1 % of that for the other four batches), seventy times
what the GPU needs. The reference program collates each batch on the host; that is recorded as a
time at the beginning of each step in which the GPU gets nothing, 84.7 us a sample.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from deepum.record.models.common import floats, sgd, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

# Categories of the 26 features of the Criteo Kaggle data, 33.76 million in all.
# fmt: off
ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on
NUMBERS = 13


class MLP(nn.Sequential):
    """Affine layers with rectifiers between and after them."""

    def __init__(self, *widths: int, last: nn.Module) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1], last)


class DLRM(nn.Module):
    """Two MLPs with the dot products of all pairs of features between them."""

    def __init__(self, rows: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(count, width, mode="sum", sparse=True) for count in rows
        )
        features = len(rows) + 1
        self.bottom = MLP(NUMBERS, 512, 256, width, last=nn.ReLU())
        pairs = features * (features - 1) // 2
        self.top = MLP(width + pairs, 512, 256, 1, last=nn.Sigmoid())
        chosen = [(i, j) for i in range(features) for j in range(i)]
        self.rows = torch.tensor([i for i, _ in chosen])
        self.columns = torch.tensor([j for _, j in chosen])

    def forward(
        self, numbers: torch.Tensor, offsets: torch.Tensor, ids: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the probability of a click."""
        x = self.bottom(numbers)
        found = [table(i, o) for table, i, o in zip(self.tables, ids, offsets, strict=True)]
        features = torch.cat([x, *found], dim=1).view(len(x), -1, x.shape[1])
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        return self.top(torch.cat([x, pairs], dim=1))


def make_step(batch: int, width: int = 192, rows: tuple[int, ...] = ROWS) -> Callable[[], None]:
    """The training step: forward, backward, SGD."""
    model = DLRM(rows, width).train()
    optimizer = sgd(model.parameters())

    def step() -> None:
        numbers = floats(batch, NUMBERS)
        offsets = tokens(batch, len(rows), batch)
        ids = [tokens(count, batch) for count in rows]
        clicked = floats(batch, 1)
        loss = functional.binary_cross_entropy(model(numbers, offsets, ids), clicked)
        loss.backward()
        optimizer.step()
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = None
        optimizer.zero_grad(set_to_none=False)

    return step

# SPDX-License-Identifier: Apache-2.0
"""GPT-2 as the Transformers library of 2021 wrote it.

Attention as separate operators (scores, scaling, causal mask, padding mask, softmax, dropout,
product) and ``gelu_new`` written out, so that autograd keeps four tensors of the hidden width for
it. Loss over the whole vocabulary with the logits shifted by one.

The paper does not give the sequence length; its figures speak for 1024 tokens, GPT-2's full
context:

- GPT-2 Large with everything in memory takes 2.33, 3.88 and 5.43 s at batch 3, 5 and 7 (UM / ideal
  speedup). The estimates for 1024 tokens are 2.2, 3.5 and 4.8 s; for 512 tokens, 1.1 s at batch 3.
- Three samples of 512 tokens take 25 GiB and fit the card, where the paper counts 2.9 million
  faults an iteration; of 1024 tokens they take 48 GiB.
- A sample adds 2.7 s (Large) and 4.3 s (XL) to DeepUM's iteration. With 1024 tokens it adds 12.1
  and 19.7 GiB, which have to leave the card and come back; with 512 it would add 4.4 and 7.1 GiB,
  for which PCIe 3.0 needs less than half that time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from deepum.record.models.common import adamw, tokens, training_step

if TYPE_CHECKING:
    from collections.abc import Callable


class Config(NamedTuple):
    """Sizes of a GPT-2."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024


CONFIGS = {
    "xl": Config(48, 1600, 25),
    "l": Config(36, 1280, 20),
    "small": Config(12, 768, 12),
    "tiny": Config(2, 64, 4, 512, 128),
}


class Projection(nn.Module):
    """An affine layer whose weight is stored inputs by outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of GELU, operator by operator."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Attention(nn.Module):
    """Causal self-attention over split heads."""

    causal: torch.Tensor
    masked: torch.Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.inputs = Projection(config.width, 3 * config.width)
        self.output = Projection(config.width, config.width)
        self.drop_scores = nn.Dropout(0.1)
        self.drop_output = nn.Dropout(0.1)
        square = torch.ones(config.positions, config.positions, dtype=torch.uint8)
        self.register_buffer("causal", torch.tril(square)[None, None])
        self.register_buffer("masked", torch.tensor(-1e4))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Attend to earlier positions."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(split) for part in self.inputs(x).split(width, dim=2))
        scores = torch.matmul(query.permute(0, 2, 1, 3), key.permute(0, 2, 3, 1))
        scores = scores / math.sqrt(width // self.heads)
        visible = self.causal[:, :, :length, :length].bool()
        scores = torch.where(visible, scores, self.masked.to(scores.dtype))
        scores = scores + padding
        weights = self.drop_scores(functional.softmax(scores, dim=-1))
        mixed = torch.matmul(weights, value.permute(0, 2, 1, 3))
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(batch, length, width)
        return self.drop_output(self.output(mixed))


class Block(nn.Module):
    """One layer, normalised before each half."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.widen = Projection(config.width, 4 * config.width)
        self.narrow = Projection(4 * config.width, config.width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        x = x + self.attention(self.norm_attention(x), padding)
        hidden = gelu_new(self.widen(self.norm_mlp(x)))
        return x + self.drop(self.narrow(hidden))


class GPT2(nn.Module):
    """The language model, its head tied to the word embedding; returns the loss and the logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(
        self, ids: torch.Tensor, attend: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the logits."""
        padding = (1.0 - attend.view(len(attend), 1, 1, -1).float()) * -10000.0
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.drop(self.words(ids) + self.positions(places))
        for block in self.blocks:
            x = block(x, padding)
        logits = functional.linear(self.norm(x), self.words.weight)
        shifted = logits[..., :-1, :].contiguous()
        wanted = labels[..., 1:].contiguous()
        loss = functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), wanted.view(-1))
        return loss, logits


def make_step(batch: int, size: str = "xl", length: int = 1024) -> Callable[[], None]:
    """The training step: forward, backward, AdamW."""
    config = CONFIGS[size]
    model = GPT2(config).train()

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokens(config.vocabulary, batch, length)
        attend = tokens(2, batch, length)
        return model(ids, attend, tokens(config.vocabulary, batch, length))

    return training_step(forward, adamw(model.parameters()))

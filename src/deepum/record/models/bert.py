# SPDX-License-Identifier: Apache-2.0
"""BERT as the Transformers library of 2021 wrote it, for masked words or for CoLA.

Attention as separate operators. For masked words the loss goes over the vocabulary at every
position, as the library's example program for Wikitext computes it.

GELU is written out with ``erf``, as the first PyTorch versions of BERT wrote it, and the program
holds the logits until the step ends. The paper does not say either; its fault counts do. BERT Base
begins to swap at batch 29 there, a little, and faults twelve times as often at 31. So written,
PyTorch holds 30.9, 32.0 and 33.1 GiB at batch 29, 30 and 31, around what the card has; with GELU
as one operator and the logits dropped it holds 25 to 27 GiB, and BERT Large at batch 14 fits as
well.

Sequences have 512 tokens. For CoLA too: the paper's largest batch on the 16 GB card with 128 GB of
host memory is 64, which takes 135 GiB, nearly all of both. With 128 tokens it would take 27 GiB,
and batch 25, where others already swap, would fit the card.
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
    """Sizes of a BERT."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 30522
    positions: int = 512


CONFIGS = {
    "large": Config(24, 1024, 16),
    "base": Config(12, 768, 12),
    "tiny": Config(2, 64, 4, 512, 128),
}


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU, operator by operator."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Embeddings(nn.Module):
    """Words, positions and sentence types, summed and normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width, padding_idx=0)
        self.positions = nn.Embedding(config.positions, config.width)
        self.types = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.drop = nn.Dropout(0.1)

    def forward(self, ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Embed a batch of ids."""
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.words(ids) + self.types(types)
        x = x + self.positions(places)
        return self.drop(self.norm(x))


class Attention(nn.Module):
    """Self-attention, and the output layer with its residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.drop_weights = nn.Dropout(0.1)
        self.output = Output(config.width, config.width)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Attend, then project and normalise."""
        query = self.query(x)
        key, value = self._split(self.key(x)), self._split(self.value(x))
        scores = torch.matmul(self._split(query), key.transpose(-1, -2))
        scores = scores / math.sqrt(x.shape[-1] // self.heads)
        scores = scores + padding
        weights = self.drop_weights(functional.softmax(scores, dim=-1))
        mixed = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous()
        return self.output(mixed.view(x.shape), x)


class Output(nn.Module):
    """A layer that ends a half of a block: affine, dropout, residual, norm."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Finish the half block that began at `residual`."""
        return self.norm(self.drop(self.dense(x)) + residual)


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.widen = nn.Linear(config.width, 4 * config.width)
        self.output = Output(4 * config.width, config.width)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        x = self.attention(x, padding)
        return self.output(gelu(self.widen(x)), x)


class Encoder(nn.Module):
    """The layers without a task."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, ids: torch.Tensor, attend: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Encode a batch of ids."""
        padding = (1.0 - attend[:, None, None, :].float()) * -10000.0
        x = self.embeddings(ids, types)
        for block in self.blocks:
            x = block(x, padding)
        return x


class MaskedWords(nn.Module):
    """Predicts words at every position; the decoder is tied to the word embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(
        self, ids: torch.Tensor, attend: torch.Tensor, types: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the logits."""
        x = self.encoder(ids, attend, types)
        x = self.norm(gelu(self.dense(x)))
        logits = functional.linear(x, self.encoder.embeddings.words.weight, self.bias)
        loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return loss, logits


class Sentence(nn.Module):
    """Classifies a sentence from its first token, as GLUE's tasks do."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.pool = nn.Linear(config.width, config.width)
        self.drop = nn.Dropout(0.1)
        self.classify = nn.Linear(config.width, 2)

    def forward(
        self, ids: torch.Tensor, attend: torch.Tensor, types: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the logits."""
        first = self.encoder(ids, attend, types)[:, 0]
        logits = self.classify(self.drop(torch.tanh(self.pool(first))))
        return functional.cross_entropy(logits, labels), logits


def make_step(
    batch: int, size: str = "large", task: str = "words", length: int = 512
) -> Callable[[], None]:
    """The training step: forward, backward, AdamW."""
    config = CONFIGS[size]
    model: nn.Module = (MaskedWords if task == "words" else Sentence)(config).train()

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokens(config.vocabulary, batch, length)
        attend, types = tokens(2, batch, length), tokens(2, batch, length)
        labels = tokens(config.vocabulary, batch, length) if task == "words" else tokens(2, batch)
        return model(ids, attend, types, labels)

    return training_step(forward, adamw(model.parameters()))

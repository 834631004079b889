# SPDX-License-Identifier: Apache-2.0
"""Training steps to measure: ordinary PyTorch, none of it written for deepum.

Each builder returns a model and a function that trains one step and returns the loss. What is
given to that function is called between the backward pass and the optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda"


def gpt2(layers: int, width: int, heads: int, batch: int, tokens: int = 1024) -> tuple:
    """GPT-2 of the transformers library: bf16 autocast, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=tokens)
    with torch.device(DEVICE):
        model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    data = torch.randint(0, config.vocab_size, (batch, tokens), device=DEVICE)

    def step(look: Callable[[], None] | None = None) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=data, labels=data).loss
        loss.backward()
        if look is not None:
            look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step


def bert(layers: int, width: int, heads: int, batch: int, tokens: int = 512) -> tuple:
    """BERT of the transformers library, masked-language-model loss, fp32."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    with torch.device(DEVICE):
        model = BertForMaskedLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    data = torch.randint(0, config.vocab_size, (batch, tokens), device=DEVICE)

    def step(look: Callable[[], None] | None = None) -> torch.Tensor:
        loss = model(input_ids=data, labels=data).loss
        loss.backward()
        if look is not None:
            look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step


def resnet(depth: int, batch: int) -> tuple:
    """ResNet of torchvision, fp32, SGD with momentum."""
    import torchvision

    with torch.device(DEVICE):
        model = getattr(torchvision.models, f"resnet{depth}")()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images = torch.randn(batch, 3, 224, 224, device=DEVICE)
    labels = torch.randint(0, 1000, (batch,), device=DEVICE)

    def step(look: Callable[[], None] | None = None) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        if look is not None:
            look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step


class Dlrm(nn.Module):
    """A recommendation model: embedding tables, their pairwise products, two small networks."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 1))
        rows_, columns = torch.triu_indices(tables + 1, tables + 1, 1).unbind()
        self.register_buffer("pair_rows", rows_)
        self.register_buffer("pair_columns", columns)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return one score for each sample; `sparse` is tables x batch x bag."""
        bottom = self.bottom(dense)
        parts = [bottom, *(table(s) for table, s in zip(self.tables, sparse, strict=True))]
        stacked = torch.stack(parts, dim=1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = products[:, self.pair_rows, self.pair_columns]
        return self.top(torch.cat([bottom, pairs], dim=1)).squeeze(1)


def dlrm(batch: int, tables: int = 26, rows: int = 2_000_000, width: int = 64) -> tuple:
    """DLRM with dense gradients of its tables, SGD; new look-ups in each step."""
    with torch.device(DEVICE):
        model = Dlrm(tables, rows, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    dense = torch.randn(batch, 13, device=DEVICE)
    labels = torch.rand(batch, device=DEVICE).round()

    def step(look: Callable[[], None] | None = None) -> torch.Tensor:
        sparse = torch.randint(0, rows, (tables, batch, 1), device=DEVICE)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), labels)
        loss.backward()
        if look is not None:
            look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step


MODELS = {
    "gpt2-small": (lambda batch: gpt2(12, 768, 12, batch), 4),
    "gpt2-medium": (lambda batch: gpt2(24, 1024, 16, batch), 4),
    "gpt2-xl": (lambda batch: gpt2(48, 1600, 25, batch), 4),
    "bert-small": (lambda batch: bert(6, 512, 8, batch, 128), 16),
    "bert-large": (lambda batch: bert(24, 1024, 16, batch), 16),
    "resnet50": (lambda batch: resnet(50, batch), 64),
    "resnet152": (lambda batch: resnet(152, batch), 192),
    "dlrm": (dlrm, 8192),
}
"""What builds each model, and its batch size here."""

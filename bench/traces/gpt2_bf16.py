# SPDX-License-Identifier: Apache-2.0
"""GPT-2 XL as it is trained today: fused attention, bf16 autocast, AdamW over many tensors at once.

What `bench/gpu/models.py` runs on a GPU, without the transformers library:

    deepum record --script bench/traces/gpt2_bf16.py:make_step --batch 4 --machine h200-pcie5 \
        -o bench/traces/gpt2-xl-bf16-b4.trace
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS = 48, 1600, 25, 50257, 1024


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of GELU, operator by operator as the library has it."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Layer(nn.Module):
    """One layer, normalised before each half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        batch, length, _ = x.shape
        parts = self.inputs(self.norm_attention(x)).split(WIDTH, dim=2)
        query, key, value = (
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=0.1, is_causal=True
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.drop(self.output(mixed))
        return x + self.drop(self.narrow(gelu_new(self.widen(self.norm_mlp(x)))))


class GPT2(nn.Module):
    """The language model, its head tied to the word embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each token from those before it."""
        places = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.drop(self.words(ids) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.words.weight).float()
        shifted = logits[..., :-1, :].contiguous()
        return functional.cross_entropy(shifted.view(-1, VOCABULARY), ids[..., 1:].reshape(-1))


def make_step(batch: int) -> Callable[[], None]:
    """Build the model; a step is forward, backward and AdamW."""
    device = torch.get_default_device().type
    model = GPT2().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    ids = torch.randint(0, VOCABULARY, (batch, TOKENS))

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step

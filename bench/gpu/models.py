# SPDX-License-Identifier: Apache-2.0
"""Training steps to measure: ordinary PyTorch, none of it written for deepum.

Each builder returns a model and its `Training`, which trains one step when called and returns the
loss. What is given to that call is called between the backward pass and the optimizer. A builder
that is given a `Change` makes the same program as somebody would who has little memory and no
deepum.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda"


class Change:
    """What a program has otherwise than usual; as it stands, nothing."""

    lines_changed = 0
    """Lines of the program that somebody writes for it, the imports left out."""
    numerics = ""
    """Why results differ from the usual ones in their last bits; empty if they are the same."""

    def model(self, model: nn.Module) -> nn.Module:
        """Return the model to train, made of the usual one."""
        return model

    def optimizer(self, model: nn.Module, usual: Callable[[Any], Any]) -> Any:
        """Return the optimizer; `usual` makes the program's own from parameters."""
        return usual(model.parameters())

    def forward(self) -> AbstractContextManager:
        """Return what surrounds the forward pass."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Make the gradients."""
        loss.backward()

    def update(self, optimizer: Any) -> None:
        """Use the gradients and let go of them."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


USUAL = Change()


class Training:
    """A model, its optimizer and its data.

    Parameters
    ----------
    model
        On the device.
    optimizer
        Makes the optimizer from parameters.
    sample
        Makes the data for so many samples.
    loss
        Of a model and data.
    batch
        Samples in a step.
    change
        What the program has otherwise than usual.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Any], Any],
        sample: Callable[[int], Any],
        loss: Callable[[nn.Module, Any], torch.Tensor],
        batch: int,
        change: Change = USUAL,
    ) -> None:
        model.train()
        self.model = change.model(model)
        self.optimizer = change.optimizer(self.model, optimizer)
        self.sample, self._loss, self._change = sample, loss, change
        self._data = sample(batch)

    def loss(self, data: Any) -> torch.Tensor:
        """Return the loss of data."""
        return self._loss(self.model, data)

    def __call__(self, look: Callable[[], None] | None = None) -> torch.Tensor:
        """Train one step."""
        with self._change.forward():
            loss = self.loss(self._data)
        self._change.backward(loss)
        if look is not None:
            look()
        self._change.update(self.optimizer)
        return loss.detach()


ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4, foreach=True)
FUSED = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)
"""PyTorch's own choice on a GPU passes over all that it updates a dozen times, this once."""


def language_model(
    model: nn.Module, words: int, tokens: int, batch: int, change: Change, optimizer: Any = ADAMW
) -> tuple:
    """Train on random tokens: bf16 autocast, AdamW."""

    def sample(count: int) -> torch.Tensor:
        return torch.randint(0, words, (count, tokens), device=DEVICE)

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return model(input_ids=data, labels=data).loss

    training = Training(model, optimizer, sample, loss, batch, change)
    return training.model, training


def gpt2(
    layers: int, width: int, heads: int, batch: int, change: Change = USUAL, tokens: int = 1024,
    optimizer: Any = ADAMW,
) -> tuple:  # fmt: skip
    """GPT-2 of the transformers library: bf16 autocast, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=tokens)
    with torch.device(DEVICE):
        model = GPT2LMHeadModel(config)
    return language_model(model, config.vocab_size, tokens, batch, change, optimizer)


def llama(
    layers: int, width: int, heads: int, batch: int, change: Change = USUAL, tokens: int = 1024
) -> tuple:
    """A Llama-like model of the transformers library: bf16 autocast, AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=heads // 4, intermediate_size=4 * width, vocab_size=128_256,
        max_position_embeddings=tokens, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    return language_model(model, config.vocab_size, tokens, batch, change)


def bert(
    layers: int, width: int, heads: int, batch: int, change: Change = USUAL, tokens: int = 512
) -> tuple:
    """BERT of the transformers library, masked-language-model loss, fp32."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    with torch.device(DEVICE):
        model = BertForMaskedLM(config)

    def sample(count: int) -> torch.Tensor:
        return torch.randint(0, config.vocab_size, (count, tokens), device=DEVICE)

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        return model(input_ids=data, labels=data).loss

    training = Training(model, ADAMW, sample, loss, batch, change)
    return training.model, training


def resnet(depth: int, batch: int, change: Change = USUAL) -> tuple:
    """ResNet of torchvision, fp32, SGD with momentum."""
    import torchvision

    with torch.device(DEVICE):
        model = getattr(torchvision.models, f"resnet{depth}")()
    optimizer = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9, foreach=True)

    def sample(count: int) -> tuple:
        images = torch.randn(count, 3, 224, 224, device=DEVICE)
        return images, torch.randint(0, 1000, (count,), device=DEVICE)

    def loss(model: nn.Module, data: tuple) -> torch.Tensor:
        images, labels = data
        return nn.functional.cross_entropy(model(images), labels)

    training = Training(model, optimizer, sample, loss, batch, change)
    return training.model, training


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


def dlrm(
    batch: int,
    change: Change = USUAL,
    tables: int = 26,
    rows: int = 2_000_000,
    width: int = 64,
) -> tuple:
    """DLRM with dense gradients of its tables, SGD; new look-ups in each step."""
    with torch.device(DEVICE):
        model = Dlrm(tables, rows, width)
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, foreach=True)

    def sample(count: int) -> tuple:
        dense = torch.randn(count, 13, device=DEVICE)
        return dense, torch.rand(count, device=DEVICE).round()

    def loss(model: nn.Module, data: tuple) -> torch.Tensor:
        dense, labels = data
        sparse = torch.randint(0, rows, (tables, len(dense), 1), device=DEVICE)
        return nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), labels)

    training = Training(model, optimizer, sample, loss, batch, change)
    return training.model, training


MODELS = {
    "gpt2-small": (functools.partial(gpt2, 12, 768, 12), 4),
    "gpt2-medium": (functools.partial(gpt2, 24, 1024, 16), 4),
    "gpt2-xl": (functools.partial(gpt2, 48, 1600, 25), 4),
    "gpt2-xl-fused": (functools.partial(gpt2, 48, 1600, 25, optimizer=FUSED), 4),
    "llama-1b": (functools.partial(llama, 16, 2048, 32), 4),
    "bert-small": (functools.partial(bert, 6, 512, 8, tokens=128), 16),
    "bert-large": (functools.partial(bert, 24, 1024, 16), 16),
    "resnet50": (functools.partial(resnet, 50), 64),
    "resnet152": (functools.partial(resnet, 152), 192),
    "dlrm": (dlrm, 8192),
}
"""What builds each model (from a batch size and perhaps a `Change`), and its batch size here."""

# SPDX-License-Identifier: Apache-2.0
"""Train BERT to fill in masked words: float32, AdamW.

    python examples/bert.py --device cpu --size tiny --batch 2 --tokens 64
    python examples/bert.py --size large --batch 16 --memory-limit 8GiB
    python examples/bert.py --model bert-large-uncased --batch 16 --memory-limit 8GiB

Without --model the weights are random, and the words are in any case, so nothing is downloaded.
--model takes a name from the Hugging Face hub and needs `pip install transformers`.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional

import deepum

SIZES = {"tiny": (2, 64, 2), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
VOCABULARY, MASK = 30522, 103


class Bert(nn.Module):
    """BERT's encoder and the head of masked language modelling."""

    def __init__(self, layers: int, width: int, heads: int, positions: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(positions, width)
        self.embedded = nn.Sequential(nn.LayerNorm(width), nn.Dropout(0.1))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return a score of each word of the vocabulary for each place."""
        x = self.embedded(self.words(words) + self.positions.weight[: words.shape[1]])
        return functional.linear(self.head(self.layers(x)), self.words.weight, self.bias)


class Pretrained(nn.Module):
    """A model of the transformers library, with the same result."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from transformers import AutoModelForMaskedLM

        self.model = AutoModelForMaskedLM.from_pretrained(name)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.model(input_ids=words).logits


def train(args: argparse.Namespace) -> None:
    """Build the model, train it, print the loss and the time of each step."""
    torch.manual_seed(0)
    data = torch.randint(1000, VOCABULARY, (args.batch, args.tokens))
    with torch.device(args.device):
        model = Pretrained(args.model) if args.model else Bert(*SIZES[args.size])
    model.to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        began = time.perf_counter()
        words = data.to(args.device)
        masked = torch.rand(words.shape, device=args.device) < 0.15
        scores = model(words.masked_fill(masked, MASK))
        loss = functional.cross_entropy(scores[masked], words[masked])
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
    parser.add_argument("--size", default="large", choices=SIZES)
    parser.add_argument("--model", help="pretrained model from the Hugging Face hub")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--memory-limit", help="GPU memory to use, such as 8GiB")
    args = parser.parse_args()

    if args.memory_limit is None:
        train(args)
        return
    with deepum.Session(memory_limit=args.memory_limit, backend="managed"):
        train(args)


if __name__ == "__main__":
    main()

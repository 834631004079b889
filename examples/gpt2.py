# SPDX-License-Identifier: Apache-2.0
"""Fine-tune GPT-2: bfloat16 autocast, AdamW.

    python examples/gpt2.py --device cpu --size tiny --batch 2 --tokens 64
    python examples/gpt2.py --size xl --batch 4 --memory-limit 24GiB
    python examples/gpt2.py --model gpt2-xl --text my.txt --batch 4 --memory-limit 24GiB

Without --model the weights are random and the tokens too, so nothing is downloaded. --model takes a
name from the Hugging Face hub and needs `pip install transformers`.
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import deepum

SIZES = {  # layers, width, heads
    "tiny": (2, 64, 2),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}
VOCABULARY = 50257


class GPT2(nn.Module):
    """GPT-2's architecture; the output layer shares the weights of the embedding."""

    def __init__(self, layers: int, width: int, heads: int, positions: int = 1024) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(positions, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True,
            activation=functools.partial(functional.gelu, approximate="tanh"),
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each token from those before it."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        x = self.tokens(tokens) + self.positions.weight[:length]
        x = self.layers(x, mask=mask, is_causal=True)
        logits = functional.linear(x[:, :-1], self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Pretrained(nn.Module):
    """A model of the transformers library, with the same loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(name)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.model(input_ids=tokens, labels=tokens).loss


def batches(args: argparse.Namespace) -> torch.Tensor:
    """Return token ids, batches x batch x tokens: of a text, or one batch of random ones."""
    if not args.text:
        return torch.randint(VOCABULARY, (1, args.batch, args.tokens))
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(args.model)(args.text.read_text()).input_ids
    count = len(ids) // (args.batch * args.tokens)
    if not count:
        raise SystemExit(f"{args.text} is shorter than one batch: {len(ids)} tokens")
    return torch.tensor(ids[: count * args.batch * args.tokens]).view(count, args.batch, -1)


def train(args: argparse.Namespace) -> None:
    """Build the model, train it, print the loss and the time of each step."""
    torch.manual_seed(0)
    data = batches(args)
    with torch.device(args.device):
        model = Pretrained(args.model) if args.model else GPT2(*SIZES[args.size])
    model.to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        began = time.perf_counter()
        tokens = data[step % len(data)].to(args.device)
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - began:.3f} s")
    if args.device == "cuda":
        print(f"peak of the tensors: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--model", help="pretrained model from the Hugging Face hub")
    parser.add_argument("--text", type=Path, help="text to train on; needs --model")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--memory-limit", help="GPU memory to use, such as 24GiB")
    args = parser.parse_args()
    if args.text and not args.model:
        parser.error("--text needs --model, whose tokenizer reads it")

    if args.memory_limit is None:
        train(args)
        return
    with deepum.Session(memory_limit=args.memory_limit, backend="managed"):
        train(args)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Training that stops repeating: the programs behind ``tests/data/perturb-*.trace``.

Each function makes a step of the same small GPT-2. Four plain steps come first, then what breaks
the repetition; `ragged`, `seqlen` and `eval_pass` do it once, `clip` and `accumulate` from then on.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from deepum.record.models.common import adamw, tokens
from deepum.record.models.gpt2 import GPT2, Config

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = Config(layers=16, width=256, heads=4, vocabulary=4096, positions=256)
BATCH = 16
LENGTH = 128
PLAIN_STEPS = 4


class Training:
    """A model, its optimizer, and the pieces of a step."""

    def __init__(self) -> None:
        self.model = GPT2(CONFIG).train()
        self.optimizer = adamw(self.model.parameters())
        self.count = itertools.count()

    def loss(self, batch: int = BATCH, length: int = LENGTH) -> torch.Tensor:
        """Forward over a new batch."""
        ids, attend = tokens(CONFIG.vocabulary, batch, length), tokens(2, batch, length)
        loss, _ = self.model(ids, attend, ids)
        return loss

    def update(self) -> None:
        """The optimizer's step; the gradients keep their memory."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


def ragged() -> Callable[[], None]:
    """The last batch of an epoch has 5 samples instead of 16."""
    training = Training()

    def step() -> None:
        last = next(training.count) == PLAIN_STEPS
        training.loss(batch=5 if last else BATCH).backward()
        training.update()

    return step


def seqlen() -> Callable[[], None]:
    """One batch has sequences of 96 tokens instead of 128."""
    training = Training()

    def step() -> None:
        shorter = next(training.count) == PLAIN_STEPS
        training.loss(length=96 if shorter else LENGTH).backward()
        training.update()

    return step


def clip() -> Callable[[], None]:
    """The gradients are clipped from the fifth step on."""
    training = Training()

    def step() -> None:
        training.loss().backward()
        if next(training.count) >= PLAIN_STEPS:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.update()

    return step


def accumulate() -> Callable[[], None]:
    """From the fifth step on, gradients are summed over two batches."""
    training = Training()

    def step() -> None:
        training.loss().backward()
        if next(training.count) >= PLAIN_STEPS:
            training.loss().backward()
        training.update()

    return step


def eval_pass() -> Callable[[], None]:
    """After the fifth step the model is evaluated on two batches."""
    training = Training()

    def step() -> None:
        training.loss().backward()
        training.update()
        if next(training.count) == PLAIN_STEPS:
            training.model.eval()
            with torch.no_grad():
                for _ in range(2):
                    training.loss()
            training.model.train()

    return step

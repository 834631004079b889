# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu/vmm.py is set beside: each alternative trains as the program does.

Run by test_alternatives.py, in a process of its own.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest

from .scripts import load

torch = pytest.importorskip("torch", reason="the programs of the benchmark are PyTorch")
from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch


class Row(nn.Module):
    """Blocks in a row, with a residual, as transformers have them."""

    def __init__(self, width: int = 16, blocks: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    models, alternatives = load("models"), load("alternatives")
    for script in (models, alternatives):
        monkeypatch.setattr(script, "DEVICE", "cpu")
    for kind in alternatives.ALTERNATIVES.values():
        monkeypatch.setattr(kind, "pinned", False, raising=False)
    return models, alternatives


def train(models: ModuleType, change: Any, steps: int = 4) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    training = models.Training(
        Row(),
        functools.partial(torch.optim.AdamW, lr=1e-2, foreach=True),
        lambda count: torch.randn(count, 16),
        lambda model, data: model(data).square().mean(),
        8,
        change,
    )
    looks: list[int] = []
    losses = [training(lambda: looks.append(1)).item() for _ in range(steps)]
    assert len(looks) == steps
    return losses, training.model


@pytest.mark.parametrize("name", ["checkpointing", "save-on-cpu", "fsdp2-offload"])
def test_an_alternative_trains_as_the_program_does(
    scripts: tuple[ModuleType, ModuleType], name: str
) -> None:
    models, alternatives = scripts
    usual, model = train(models, models.USUAL)
    assert usual[-1] != usual[0]
    change = alternatives.ALTERNATIVES[name]()
    losses, changed = train(models, change)
    if change.numerics:
        assert losses == pytest.approx(usual, rel=1e-5)
        return
    assert losses == usual
    for left, right in zip(model.parameters(), changed.parameters(), strict=True):
        assert torch.equal(left, right)


def test_checkpointing_computes_blocks_again(scripts: tuple[ModuleType, ModuleType]) -> None:
    models, alternatives = scripts
    runs: list[int] = []

    class Counting(alternatives.Checkpointing):
        def model(self, model: Any) -> Any:
            made = super().model(model)
            for block in made.layers:
                block[0].register_forward_hook(lambda *_: runs.append(1))
            return made

    train(models, Counting(), steps=2)
    assert len(runs) == 2 * 2 * 3


def test_save_on_cpu_surrounds_the_forward_pass(
    scripts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, alternatives = scripts
    asked: list[bool] = []
    usual = torch.autograd.graph.save_on_cpu

    def watched(pin_memory: bool) -> Any:
        asked.append(pin_memory)
        return usual(pin_memory=False)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", watched)
    monkeypatch.setattr(alternatives.SaveOnCpu, "pinned", True)
    train(models, alternatives.SaveOnCpu(), steps=3)
    assert asked == [True] * 3


def test_fsdp_keeps_parameters_and_state_on_the_host(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    models, alternatives = scripts
    _, model = train(models, alternatives.Fsdp2(), steps=1)
    kinds = {type(parameter).__name__ for parameter in model.parameters()}
    assert kinds == {"DTensor"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_blocks_are_the_layers_and_not_what_they_are_made_of(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    _, alternatives = scripts
    row = Row()
    assert alternatives.blocks_of(row) == list(row.layers)
    bottleneck = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), Row(blocks=0))
    assert alternatives.blocks_of(bottleneck) == list(bottleneck)
    assert alternatives.blocks_of(nn.Sequential(nn.Linear(1, 1))) == []


def test_what_cannot_be_measured_says_why(
    scripts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, alternatives = scripts
    assert tuple(alternatives.ALTERNATIVES) == load("plan").ALTERNATIVES
    monkeypatch.setattr(alternatives, "find_spec", lambda name: None)
    for name, kind in alternatives.ALTERNATIVES.items():
        reason = kind.why_not("gpt2-xl")
        assert reason == (f"not installed: {kind.needs}" if kind.needs else ""), name
        assert kind.lines_changed > 0
    monkeypatch.setattr(alternatives, "find_spec", lambda name: object())
    for name in ("deepspeed-offload", "paged-adamw"):
        assert "Adam only" in alternatives.ALTERNATIVES[name].why_not("resnet50")
        assert not alternatives.ALTERNATIVES[name].why_not("llama-1b")
    settings = alternatives.like(functools.partial(torch.optim.AdamW, lr=0.5, foreach=True))
    assert settings == {"lr": 0.5, "weight_decay": 0.01}


def test_a_training_of_recommendations_draws_new_look_ups(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    models, _ = scripts
    torch.manual_seed(0)
    model, training = models.dlrm(8, tables=2, rows=50, width=4)
    first, second = (training().item() for _ in range(2))
    assert first != second
    assert model.training

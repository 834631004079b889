# SPDX-License-Identifier: Apache-2.0
"""The models of the DeepUM paper (ASPLOS 2023), as PyTorch code of its time ran them.

Single precision, attention as separate operators, optimizers that launch a kernel for each tensor.
Where the paper leaves something open (a sequence length, an image size), the module of the model
says what was chosen and which of the paper's figures speak for it.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deepum.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Model:
    """A model that can be recorded by name.

    The code that needs PyTorch is in another module, so that listing the models needs none.
    """

    name: str
    title: str
    module: str
    """A module of this package, with a function ``make_step(batch, **options)``."""
    options: dict[str, Any] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    """The batches of the shipped traces."""
    machine: str = "v100-pcie3-32g"
    """The machine of the shipped traces."""
    host_ns_a_sample: float = 0.0
    """Time a sample costs the host at the beginning of a step, while the GPU has nothing to do."""

    def make_step(self, batch: int) -> Callable[[], Any]:
        """Build the model on the default device; the result runs one training step."""
        module = importlib.import_module(f"{__name__}.{self.module}")
        return module.make_step(batch, **self.options)


_SMALL = "v100-pcie3-16g"
_K = 1024

_ALL = (
    Model("gpt2-xl", "GPT-2 XL, 1024 tokens", "gpt2", {"size": "xl"}, (3, 5, 7)),
    Model("gpt2-l", "GPT-2 Large, 1024 tokens", "gpt2", {"size": "l"}, (3, 5, 7)),
    Model(
        "bert-large",
        "BERT Large, masked words, 512 tokens",
        "bert",
        {"size": "large"},
        (14, 16, 18),
    ),
    Model(
        "bert-base",
        "BERT Base, masked words, 512 tokens",
        "bert",
        {"size": "base"},
        (29, 30, 31),
    ),
    Model(
        "dlrm",
        "DLRM, Criteo Kaggle",
        "dlrm",
        batches=(96 * _K, 128 * _K, 160 * _K, 192 * _K, 224 * _K),
        host_ns_a_sample=84.7e3,
    ),
    Model("resnet152", "ResNet-152, ImageNet", "resnet", {"depth": 152}, (1280, 1536, 1792)),
    Model("resnet200", "ResNet-200, ImageNet", "resnet", {"depth": 200}, (1024, 1280, 1536)),
    Model(
        "resnet200-cifar",
        "ResNet-200, CIFAR-10",
        "resnet",
        {"depth": 200, "image": 32, "classes": 10, "stem_stride": 1},
        (4200, 5700, 6400),
        _SMALL,
    ),
    Model(
        "bert-large-cola",
        "BERT Large, CoLA",
        "bert",
        {"size": "large", "task": "cola"},
        (25, 28, 64),
        _SMALL,
    ),
    Model("dcgan", "DCGAN, celebA", "dcgan", {"image": 128}, (1400, 2500, 3500), _SMALL),
    Model("mobilenet", "MobileNet v2, CIFAR-100", "mobilenet", {}, (1200, 3200, 5100), _SMALL),
)

MODELS: dict[str, Model] = {x.name: x for x in _ALL}
"""Every model, by name."""


def find(name: str) -> Model:
    """The model of a name, or a :class:`RecordError` that suggests one."""
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name, list(MODELS), 1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(MODELS)}"
    raise RecordError(f"there is no model {name!r}; {hint}")

# SPDX-License-Identifier: Apache-2.0
"""The built-in models, small enough to be recorded in a moment, and the registry."""

import importlib

import pytest

torch = pytest.importorskip("torch")

from deepum.machine import Machine  # noqa: E402
from deepum.record.models import MODELS, find  # noqa: E402
from deepum.record.recorder import record  # noqa: E402
from deepum.trace.columns import KINDS  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = {
    "gpt2": {"size": "tiny", "length": 32},
    "bert": {"size": "tiny", "length": 32},
    "bert-cola": {"size": "tiny", "task": "cola", "length": 32},
    "resnet": {"depth": 50, "image": 32, "classes": 10},
    "dlrm": {"width": 8, "rows": (100, 3, 5000)},
    "dcgan": {"image": 32},
    "mobilenet": {"classes": 10},
}


@pytest.mark.parametrize("name", SMALL)
def test_small_models_repeat(name):
    module = importlib.import_module(f"deepum.record.models.{name.partition('-')[0]}")
    trace = record(lambda: module.make_step(4, **SMALL[name]), name=name)
    assert trace.loop_from >= 0
    assert "iterations_note" not in trace.meta
    kinds = {KINDS[k] for k in trace.tensor_kind}
    assert {"parameter", "gradient", "activation", "input"} <= kinds
    assert ("optimizer" in kinds) == (name != "dlrm")  # SGD without momentum has no state
    assert ("workspace" in kinds) == (name == "dlrm")


@pytest.mark.parametrize("name", MODELS)
def test_registry(name):
    model = find(name)
    assert model.name == name
    assert model.title
    assert model.machine in Machine.names()
    assert len(model.batches) >= 3
    assert hasattr(importlib.import_module(f"deepum.record.models.{model.module}"), "make_step")


def parameters(module, *args):
    with torch.device("meta"):
        return sum(p.numel() for p in getattr(module, args[0])(*args[1:]).parameters())


def test_sizes():
    """The published numbers of parameters."""
    from deepum.record.models import bert, dlrm, gpt2, mobilenet, resnet

    assert parameters(gpt2, "GPT2", gpt2.CONFIGS["xl"]) == 1_557_611_200
    assert parameters(gpt2, "GPT2", gpt2.CONFIGS["l"]) == 774_030_080
    assert parameters(gpt2, "GPT2", gpt2.CONFIGS["small"]) == 124_439_808
    assert parameters(bert, "MaskedWords", bert.CONFIGS["base"]) == 109_514_298
    assert parameters(bert, "MaskedWords", bert.CONFIGS["large"]) == 335_174_458
    assert parameters(resnet, "ResNet", 50, 1000, 2) == 25_557_032
    assert parameters(resnet, "ResNet", 152, 1000, 2) == 60_192_808
    assert parameters(mobilenet, "MobileNet", 1000) == 3_504_872
    assert sum(dlrm.ROWS) == 33_762_577


def test_resnet200_has_200_layers():
    from deepum.record.models import resnet

    with torch.device("meta"):
        model = resnet.ResNet(200, 1000, 2)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) - 4 + 1 == 200  # without the shortcuts, with the classifier


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-xl-b3", "dlrm-b128k"])
def test_shipped_traces_are_what_the_models_give(name):
    from deepum.record.recorder import record_model
    from deepum.trace import Trace

    shipped = Trace.load(name)
    if shipped.meta["recorded_with"] != f"torch {torch.__version__.split('+')[0]}":
        pytest.skip("recorded with another PyTorch")
    meta = shipped.meta
    assert record_model(meta["model"], meta["batch"], meta["machine"]) == shipped

# SPDX-License-Identifier: Apache-2.0
"""Recording a user's script."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from deepum.errors import RecordError  # noqa: E402
from deepum.record import script  # noqa: E402
from deepum.record.recorder import record_script  # noqa: E402

pytestmark = pytest.mark.torch

PLAIN = """
import torch
from torch import nn

def make_step(batch=4):
    device = "cuda" if torch.cuda.is_available() else torch.get_default_device()
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(batch, 64, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_plain_script(write):
    trace = record_script(f"{write(PLAIN)}:make_step")
    assert trace.name == "train"
    assert trace.meta["batch"] is None
    assert trace.schedule.tolist()[-2:] == [1, 1]


def test_batch_is_passed_on(write):
    path = write(PLAIN)
    small, large = (record_script(f"{path}:make_step", batch=b) for b in (4, 4096))
    assert small.meta["batch"] == 4
    assert large.peak_bytes > small.peak_bytes


def test_name_and_steps(write):
    trace = record_script(f"{write(PLAIN)}:make_step", steps=5, name="mine")
    assert (trace.name, trace.iterations) == ("mine", 5)


def test_neighbouring_modules_can_be_imported(write):
    write("WIDTH = 32\n", "sizes_of_train.py")
    path = write(
        "import torch\nfrom sizes_of_train import WIDTH\n"
        "def make_step():\n    return lambda: torch.zeros(WIDTH)\n"
    )
    record_script(f"{path}:make_step")
    assert str(path.parent) not in sys.path


def test_arguments_of_the_command_line_are_hidden(write, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["deepum", "record", "--script", "x"])
    path = write(
        "import argparse, torch\nargparse.ArgumentParser().parse_args()\n"
        "def make_step():\n    return lambda: torch.zeros(8)\n"
    )
    record_script(f"{path}:make_step")
    assert sys.argv[0] == "deepum"


@pytest.mark.parametrize("loss", ["", ", lambda out: out.square().mean()"])
def test_model_factory(write, loss):
    model = "torch.nn.Linear(8, 1)" if loss else "Mean()"
    path = write(f"""
import torch

class Mean(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 1)

    def forward(self, x):
        return super().forward(x).mean()

def factory():
    model = {model}
    return model, torch.optim.SGD(model.parameters()), torch.zeros(4, 8){loss}
""")
    trace = record_script(f"{path}:factory")
    assert trace.name == "train-factory"
    assert "aten::addmm" in trace.names


def test_amp_and_data_loaders_names_are_there(write):
    """What training scripts commonly ask of torch.cuda is answered."""
    path = write("""
import torch

def make_step():
    torch.cuda.set_device(0)
    torch.cuda.manual_seed_all(1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    model = torch.nn.Linear(8, 8).cuda()
    return lambda: (model(torch.zeros(4, 8).cuda()), torch.cuda.max_memory_allocated())
""")
    assert record_script(f"{path}:make_step").kernels_per_step >= 2


BAD = {
    "no colon": ("", "train.py", "does not name a function"),
    "no function": ("", "train.py:", "does not name a function"),
    "not a name": ("", "train.py:a b", "does not name a function"),
    "no file": ("", "nothing.py:make_step", "there is no file"),
    "missing function": ("def make_stap(): pass", "train.py:make_step", "did you mean make_stap"),
    "missing without a hint": ("", "train.py:make_step", "has no function make_step$"),
    "not callable": ("make_step = 3", "train.py:make_step", "has no function"),
    "syntax": ("def", "train.py:make_step", "SyntaxError"),
    "import": ("import no_such_module", "train.py:make_step", "train.py:1: .* 'no_such_module'"),
    "exit": ("raise SystemExit(3)", "train.py:make_step", "SystemExit: 3"),
    "no step": ("def make_step(): return 3", "train.py:make_step", "returned int; it must"),
    "needs a batch": ("def make_step(batch): ...", "train.py:make_step", "needs a batch"),
    "raises": (
        "def make_step():\n    def step():\n        raise KeyError('x')\n    return step",
        "train.py:make_step",
        "train.py:3: step 1 failed: KeyError: 'x'",
    ),
    "item": (
        "import torch\ndef make_step():\n    return lambda: torch.ones(3).sum().item()",
        "train.py:make_step",
        r"train.py:3: step 1 needs the value of a tensor .* leave out \.item\(\)",
    ),
    "wrong file": ("", "train.txt:make_step", "not a Python file"),
}


@pytest.mark.parametrize(("text", "name", "message"), BAD.values(), ids=BAD)
def test_wrong_scripts(write, text, name, message):
    folder = write(text).parent
    write(text, "train.txt")
    with pytest.raises(RecordError, match=message) as error:
        record_script(f"{folder}/{name}")
    assert "\n" not in str(error.value)


def test_batch_for_a_function_without_arguments(write):
    path = write("def make_step(): ...")
    with pytest.raises(RecordError, match="takes no batch"):
        record_script(f"{path}:make_step", batch=3)


def test_names():
    assert script.Script(Path("/x/train.py"), "make_step").name == "train"
    assert script.Script(Path("/x/train.py"), "other").name == "train-other"


def test_example(repo):
    trace = record_script(f"{repo}/examples/record_my_model.py:make_step", batch=8)
    assert trace.name == "record_my_model"
    assert trace.schedule.tolist()[-2:] == [1, 1] or trace.schedule[-1] == trace.schedule[-2]


PERTURBED = {
    # What happens in the fifth step, as in tools/perturbed.py, on a net that is quick to record.
    "ragged": "x = x[:5] if n == 4 else x",
    "seqlen": "x = x[:, :7] if n == 4 else x",
    "clip": "pass",
    "accumulate": "pass",
    "eval": "pass",
}


@pytest.mark.parametrize("what", PERTURBED)
def test_what_breaks_repetition_can_be_recorded(write, what):
    path = write(f"""
import itertools, torch

def make_step():
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    count = itertools.count()
    what = {what!r}

    def step():
        n = next(count)
        x = torch.randn(8, 12, 16)
        {PERTURBED[what]}
        model(x).sum().backward()
        if what == "accumulate" and n >= 4:
            model(x).sum().backward()
        if what == "clip" and n >= 4:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if what == "eval" and n == 4:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()

    return step
""")
    trace = record_script(f"{path}:make_step", steps=8)
    schedule = trace.schedule.tolist()
    assert schedule[2] == schedule[3] != schedule[4]
    if what in ("clip", "accumulate"):
        assert schedule[4] == schedule[5] == schedule[7]
    else:
        assert schedule[7] == schedule[3]

# SPDX-License-Identifier: Apache-2.0
"""``deepum record``: what it refuses, and, with PyTorch, what it makes."""

import json

import pytest

from deepum.commands import record
from deepum.trace import Trace

SCRIPT = """
import torch


def make_step():
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 512)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def make_batch(batch):
    return lambda: torch.zeros(batch, 1024).add_(1)


def make_nothing():
    return 3
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py:make_step"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a MODEL or a --script, one of them. Models: gpt2-xl,"),
        (["gpt2-xl", "--script", "train.py:make_step", "-b", "3"], "one of them"),
        (["gpt2-xl"], "a MODEL needs --batch"),
        (["gpt2-xl", "--batch", "many"], "'many' is not a batch size"),
        (["gpt2-xl", "--batch", "3", "--steps", "2"], "--steps is for scripts"),
    ],
)
def test_wrong_use(run, arguments, text):
    assert text in " ".join(run("record", *arguments, status=2).stderr.split())


@pytest.mark.parametrize("output", [("-o", "mine.trace"), ()])
def test_nothing_is_overwritten(run, tmp_path, output):
    name = output[1] if output else "gpt2-xl-b3.trace"
    (tmp_path / name).write_text("precious")
    text = run("record", "gpt2-xl", "--batch", "3", *output, status=2).stderr
    assert text == f"error: {name} exists; --force overwrites it\n"
    assert (tmp_path / name).read_text() == "precious"


def test_script_that_is_not_there(run):
    assert "no file train.py" in run("record", "--script", "train.py:f", status=2).stderr


def test_names(tmp_path, monkeypatch, script):
    monkeypatch.chdir(tmp_path)
    assert record._name("dlrm", None, 98304) == "dlrm-b96k"
    assert record._name(None, script, None) == "train"
    assert record._name(None, "train.py:make_batch", 3) == "train-make_batch"


def test_progress(monkeypatch, capsys):
    with record._progress() as tell:
        assert tell is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    with record._progress() as tell:
        tell("step 1")
    assert capsys.readouterr().err


@pytest.mark.torch
def test_script(run, script, tmp_path):
    result = run("record", "--script", script, "-o", "mine.trace")
    assert result.stdout.startswith("train: ")
    assert result.stderr == "wrote mine.trace\n"
    trace = Trace.load(tmp_path / "mine.trace")
    assert trace.loop_from >= 0
    assert trace.meta["machine"] == "v100-pcie3-32g"
    again = run("record", "--script", script, "-o", "mine.trace", status=2)
    assert "--force" in again.stderr
    arguments = ("-o", "mine.trace", "--force", "--machine", "h200-pcie5", "--json", "-")
    data = json.loads(run("record", "--script", script, *arguments).stdout)
    assert data["file"] == "mine.trace"
    assert data["machine"] == "h200-pcie5"
    assert data["kernels_per_step"] == trace.kernels_per_step


@pytest.mark.torch
def test_script_with_a_batch(run, script, tmp_path):
    run("record", "--script", "train.py:make_batch", "--batch", "2k", "--steps", "4")
    trace = Trace.load(tmp_path / "train-make_batch.trace")
    assert trace.iterations == 4
    assert trace.meta["batch"] == 2048


@pytest.mark.torch
def test_a_recorded_script_simulates(run, script, tmp_path):
    run("record", "--script", script, "-o", "mine.trace")
    text = run("simulate", "mine.trace", "--memory", "24MiB", "--jobs", "1").stdout
    assert "chained" in text


@pytest.mark.torch
def test_errors_are_one_line(run, script):
    text = run("record", "--script", "train.py:make_nothing", status=2).stderr
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    text = run("record", "no-such-model", "--batch", "3", status=2).stderr
    assert text.startswith("error: there is no model 'no-such-model'")


@pytest.mark.torch
@pytest.mark.slow
def test_model(run, tmp_path):
    data = json.loads(run("record", "gpt2-l", "--batch", "1", "--json").stdout)
    assert data["name"] == "gpt2-l-b1"
    assert data["model"] == "GPT-2 Large"
    assert (tmp_path / "gpt2-l-b1.trace").exists()

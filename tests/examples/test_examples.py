# SPDX-License-Identifier: Apache-2.0
"""The example scripts, each at a tiny size on the processor."""

import re
import types
from pathlib import Path
from typing import Any

import pytest

TINY = {
    "gpt2": "--size tiny --batch 2 --tokens 16 --lr 1e-3",
    "bert": "--size tiny --batch 2 --tokens 32 --lr 1e-3",
    "resnet": "--depth 50 --batch 2 --image 32",
    "dlrm": "--rows 50 --batch 64",
}
NO_TRAINING = {"record_my_model"}


def scripts(repo: Path) -> set[str]:
    return {path.stem for path in (repo / "examples").glob("*.py")} - NO_TRAINING


def test_each_script_is_tried_and_described(repo: Path) -> None:
    assert scripts(repo) == set(TINY)
    page = (repo / "examples" / "README.md").read_text("utf-8")
    for name in scripts(repo) | NO_TRAINING:
        assert f"[{name}.py]({name}.py)" in page
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert (repo / "examples" / target).exists(), target


def test_training_code_knows_nothing_of_deepum(repo: Path) -> None:
    for name in scripts(repo):
        lines = (repo / "examples" / f"{name}.py").read_text("utf-8").splitlines()
        assert [line.strip() for line in lines if "deepum" in line] == [
            "import deepum",
            'with deepum.Session(memory_limit=args.memory_limit, backend="managed"):',
        ]


@pytest.fixture
def deepum_run(repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Run a script as `deepum run` does once its session is open; return its status and output."""
    torch = pytest.importorskip("torch")
    from deepum.commands.run import _run

    def go(name: str, options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["deepum"])
        monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        script = str(repo / "examples" / f"{name}.py")
        status = _run(script, False, tuple(options.split()), types.SimpleNamespace(refused=""))
        torch.set_num_threads(threads)
        return status, *capsys.readouterr()

    return go


@pytest.mark.torch
@pytest.mark.parametrize("name", TINY)
def test_it_trains(deepum_run: Any, name: str) -> None:
    status, out, err = deepum_run(name, f"--device cpu --steps 4 {TINY[name]}")
    assert status == 0, err
    lines = re.findall(r"^step (\d): loss ([\d.]+), [\d.]+ s$", out, re.MULTILINE)
    assert [int(step) for step, _ in lines] == [0, 1, 2, 3]
    assert float(lines[-1][1]) < float(lines[0][1])


@pytest.mark.torch
def test_a_limit_without_a_gpu_is_refused_in_one_line(deepum_run: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status, out, err = deepum_run("dlrm", f"--device cpu --memory-limit 1GiB {TINY['dlrm']}")
    assert status == 1
    assert out == ""
    assert "BackendError: backend 'managed' does not work here" in err.splitlines()[-1]

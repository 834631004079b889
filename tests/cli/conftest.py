# SPDX-License-Identifier: Apache-2.0
"""A small trace, a machine on which it does not fit, and a way to run the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deepum.commands import cli
from deepum.trace import Trace

MIB = 1 << 20


def build_trace(name: str = "tiny") -> Trace:
    """Eight layers of 16 MiB, forward and backward, an activation kept for each."""
    builder = Trace.builder(
        name, model="layers", batch=4, machine="v100-pcie3-32g", times="measured"
    )
    weights = [builder.alloc(16 * MIB, "parameter") for _ in range(8)]
    for _ in range(3):
        builder.step()
        kept = []
        for layer, weight in enumerate(weights):
            activation = builder.alloc(8 * MIB, "activation")
            builder.launch(f"forward{layer}", [(weight, "r"), (activation, "w")], time_ns=400_000)
            kept.append(activation)
        for layer, weight in reversed(list(enumerate(weights))):
            builder.launch(
                f"backward{layer}", [(kept[layer], "r"), (weight, "rw")], time_ns=800_000
            )
            builder.free(kept.pop())
    return builder.build()


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a small trace."""
    path = tmp_path_factory.mktemp("traces") / "tiny.trace"
    build_trace().save(path)
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs ``deepum`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEPUM_TRACEBACK", raising=False)

    def call(*arguments: object, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="deepum")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return call

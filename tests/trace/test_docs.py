# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/trace-format.md work as they stand."""

import re

from deepum.trace import Trace
from deepum.trace.columns import DTYPE_OF


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_examples(repo, tmp_path, monkeypatch):
    text = (repo / "docs" / "trace-format.md").read_text()
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for code in blocks(text, "python"):
        exec(code.replace("from deepum import Trace", "from deepum.trace import Trace"), scope)
    built = scope["trace"]
    assert isinstance(built, Trace)

    (example,) = blocks(text, "json")
    (tmp_path / "example.json").write_text(example)
    trace = Trace.load("example.json")
    assert (trace.name, trace.meta["model"]) == ("two-layers", "example")
    assert trace.kernels_per_step == 2
    assert trace.peak_bytes == built.peak_bytes == (64 + 64 + 8) << 20
    assert trace.tensor_address.tolist() == built.tensor_address.tolist()
    assert (trace.schedule.tolist(), trace.loop_from) == ([0, 0], 1)


def test_every_column_is_documented(repo):
    text = (repo / "docs" / "trace-format.md").read_text()
    assert [name for name in DTYPE_OF if f"`{name}`" not in text] == []

# SPDX-License-Identifier: Apache-2.0
"""The line about a running session."""

import io
from typing import Any

import pytest
from rich.console import Console

from deepum.report.progress import ProgressLine, line

GIB = 1 << 30


def counts(steps: int, **more: Any) -> dict[str, Any]:
    return {
        "steps": steps, "last_step_s": 1.5 if steps else None, "faults": 10 * steps,
        "bytes_in": 2 * GIB * steps, "bytes_out": GIB * steps, "resident_bytes": 3 * GIB,
        "limit_bytes": 4 * GIB, "prefetch_accuracy": None, **more,
    }  # fmt: skip


def test_what_it_says() -> None:
    assert line(counts(0)) == (
        "deepum: step 0 · 0 faults · in 0.00, out 0.00 GiB · resident 3.00 of 4.00 GiB"
    )
    assert line(counts(7, prefetch_accuracy=0.875), counts(5)) == (
        "deepum: step 7 · 1.50 s a step · 10 faults · in 2.00, out 1.00 GiB a step · "
        "resident 3.00 of 4.00 GiB · prefetches used 87.5 %"
    )


def test_elsewhere_than_on_a_terminal_it_writes_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rare = ProgressLine(1000)
    for step in range(5):
        rare.show(counts(step))
    assert capsys.readouterr().err == ""
    rare.close()
    assert capsys.readouterr().err.startswith("deepum: step 4 ")
    often = ProgressLine(0)
    for step in range(3):
        often.show(counts(step))
    assert capsys.readouterr().err.count("\n") == 3


def test_on_a_terminal_it_is_one_live_line() -> None:
    out = io.StringIO()
    shown = ProgressLine(out=Console(file=out, force_terminal=True, width=150))
    for step in range(4):
        shown.show(counts(step))
    shown.close()
    text = out.getvalue()
    assert text.count("\n") <= 1
    for step in range(4):
        assert f"step {step} " in text
    assert "\x1b[" in text

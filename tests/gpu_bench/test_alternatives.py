# SPDX-License-Identifier: Apache-2.0
"""Runs alternatives_alone.py in a process of its own.

Tests of the recorder let PyTorch believe in a GPU, which FSDP then looks for; and who has trained
in a process cannot record in it any more: the threads of PyTorch have begun without a GPU then.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("alternatives_alone.py")


@pytest.mark.torch
def test_each_alternative_trains_as_the_program_does() -> None:
    pytest.importorskip("torch", reason="the programs of the benchmark are PyTorch")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    done = subprocess.run(
        [*command, str(CASES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=CASES.parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]

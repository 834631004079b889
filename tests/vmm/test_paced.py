# SPDX-License-Identifier: Apache-2.0
"""bench/paced: the parts of memory mode vmm over a driver that only keeps time."""

import re
import subprocess
import sys
from pathlib import Path

from deepum.trace import Trace

SCRIPT = Path(__file__).parents[2] / "bench" / "paced" / "run.py"
MIB = 1 << 20


def test_it_moves_what_does_not_fit(tmp_path):
    b = Trace.builder("rounds", times="measured")
    tensors = [b.alloc(16 * MIB, "parameter") for _ in range(40)]
    for _ in range(2):
        b.step()
        for k, tensor in enumerate(tensors):
            b.launch(f"k{k}", [(tensor, "rw")], time_ns=100_000)
    trace = tmp_path / "rounds.trace"
    b.build().save(trace)
    arguments = ["--trace", str(trace), "--steps", "6", "--scale", "4"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    # 20 places for 40: each step moves at least the other 20, 0.34 GB; all there is are 0.67.
    last = done.stdout.splitlines()[-2]
    found = re.match(r"step 5: [\d.]+ s, ([\d.]+) GB in \([\d.]+ s\), ([\d.]+) out", last)
    assert found, done.stdout
    for moved in found.groups():
        assert 0.3 <= float(moved) <= 0.7

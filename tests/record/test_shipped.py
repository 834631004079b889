# SPDX-License-Identifier: Apache-2.0
"""The traces that come with the package, and those that the tests use. Needs no PyTorch."""

from itertools import pairwise

import pytest

from deepum.machine import Machine
from deepum.record.models import MODELS
from deepum.record.recorder import batch_label
from deepum.trace import Trace

POINTS = {
    f"{model.name}-b{batch_label(batch)}": (model, batch)
    for model in MODELS.values()
    for batch in model.batches
}


def test_all_of_the_papers_points_are_shipped():
    large = [x for x, (model, _) in POINTS.items() if model.machine == "v100-pcie3-32g"]
    assert (len(large), len(POINTS) - len(large)) == (23, 12)
    assert POINTS.keys() <= Trace.shipped().keys()


def test_sizes_of_files():
    sizes = [Trace.shipped()[name].stat().st_size for name in POINTS]
    assert max(sizes) < 200 * 1024
    assert sum(sizes) < 6 * 2**20


@pytest.mark.parametrize("name", POINTS)
def test_point(name):
    model, batch = POINTS[name]
    trace = Trace.load(name)
    assert trace.name == name
    assert (trace.meta["model"], trace.meta["batch"]) == (model.name, batch)
    assert trace.meta["machine"] == model.machine
    assert trace.meta["device"] == "fake cuda"
    assert trace.loop_from >= 0
    assert "iterations_note" not in trace.meta
    # BERT Base at batch 29 is the one point at the edge of the card.
    budget = Machine.load(model.machine).memory_bytes
    assert trace.segment_bytes.sum() > 0.98 * budget


@pytest.mark.parametrize("name", MODELS)
def test_larger_batches_take_more(name):
    traces = [Trace.load(f"{name}-b{batch_label(b)}") for b in MODELS[name].batches]
    for smaller, larger in pairwise(traces):
        assert smaller.peak_bytes < larger.peak_bytes
        assert smaller.kernels_per_step == larger.kernels_per_step


@pytest.mark.parametrize(
    ("what", "once"),
    [("ragged", True), ("seqlen", True), ("eval", True), ("clip", False), ("accumulate", False)],
)
def test_perturbed(repo, what, once):
    path = repo / "tests" / "data" / f"perturb-{what}.trace"
    assert path.stat().st_size < 60 * 1024
    trace = Trace.load(path)
    first, plain, *rest = trace.schedule.tolist()
    assert rest[:2] == [plain, plain]
    assert rest[2] not in (first, plain)
    assert rest[3:] == ([plain] * 5 if once else [rest[2]] * 5)
    assert 300 < trace.peak_bytes >> 21 < 1000

# SPDX-License-Identifier: Apache-2.0
"""What ``deepum info`` computes from a trace, against slow and plain ways to the same numbers."""

import numpy as np
import pytest

from deepum.report.summary import (
    batch_text,
    detail,
    memory_over_time,
    model_title,
    summarize,
)
from deepum.trace import Operand, Trace

MIB = 1 << 20
BLOCK = 2 * MIB


@pytest.fixture
def trace() -> Trace:
    """Two weights, an activation, and a step of three kernels."""
    builder = Trace.builder("tiny", model="gpt2-xl", batch=3, machine="v100-pcie3-32g")
    weight = builder.alloc(64 * MIB, "parameter")
    table = builder.alloc(256 * MIB, "parameter")
    for _ in range(3):
        builder.step()
        builder.host(1000)
        activation = builder.alloc(32 * MIB, "activation")
        builder.launch("mm", [(weight, "r"), (activation, "w")], time_ns=3_000_000)
        builder.launch(
            "gather",
            [Operand(table, "r", pattern="gather", touches=5), (activation, "rw")],
            time_ns=1_000_000,
            bytes=7,
        )
        builder.launch("mm", [(weight, "rw"), (activation, "r")], time_ns=2_000_000)
        builder.free(activation)
    return builder.build()


def test_summary(trace):
    row = summarize(trace, 123)
    assert (row.name, row.model, row.batch) == ("tiny", "GPT-2 XL", "3")
    assert (row.iterations, row.steps, row.kernels_per_step) == (3, 1, 3)
    assert row.peak_bytes == trace.peak_bytes == 352 * MIB
    assert row.compute_s == pytest.approx(0.006)
    assert row.file_bytes == 123
    assert row.estimated == (trace.meta["times"] == "estimated")


def test_details(trace):
    details = detail(trace, top=1)
    assert details.host_s == pytest.approx(1e-6)
    assert details.initial_bytes == 320 * MIB
    assert details.kernel_names == 2
    assert details.working_set_bytes == (256 + 32) * MIB
    assert details.working_set_kernel == "gather"
    assert [(row.kind, row.tensors, row.bytes) for row in details.at_peak] == [
        ("parameter", 2, 320 * MIB),
        ("activation", 1, 32 * MIB),
    ]
    (first,) = details.top_by_time
    assert (first.name, first.launches, first.bytes) == ("mm", 2, 2 * 96 * MIB)
    assert first.time_s == pytest.approx(0.005)
    data = details.to_json()
    assert data["name"] == "tiny"
    assert data["at_peak"][0]["kind"] == "parameter"


def test_memory_over_time(trace):
    memory = memory_over_time(trace)
    assert list(memory.by_kind) == ["parameter", "activation"]
    assert memory.time_s[0] == 0
    assert memory.time_s[-1] == pytest.approx(0.006001)
    assert set(memory.by_kind["parameter"].tolist()) == {320 * MIB}
    assert memory.by_kind["activation"].tolist() == [0, 32 * MIB, 0, 0]


def test_memory_keeps_its_peak_when_thinned():
    builder = Trace.builder("many")
    for _ in range(2):
        builder.step()
        first = builder.alloc(BLOCK)
        builder.launch("k", [(first, "w")], time_ns=1000)
        handles = []
        for size in range(1, 400):
            handles.append(builder.alloc(size * 4096))
            if size == 301:
                big = builder.alloc(512 * MIB)
                builder.free(big)
        for handle in handles:
            builder.free(handle)
        builder.free(first)
    trace = builder.build()
    memory = memory_over_time(trace, points=50)
    assert len(memory.time_s) <= 52
    total = sum(memory.by_kind.values())
    assert int(total.max()) == trace.peak_bytes
    assert (np.diff(memory.time_s) >= 0).all()


@pytest.mark.parametrize(
    ("meta", "text"),
    [({}, ""), ({"batch": 3}, "3"), ({"batch": 98304}, "96K"), ({"batch": "x"}, "x")],
)
def test_batch_text(meta, text):
    assert batch_text(meta) == text


def test_model_title():
    assert model_title({"model": "bert-large"}) == "BERT Large"
    assert model_title({"model": "my own"}) == "my own"
    assert model_title({}) == ""

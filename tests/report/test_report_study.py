# SPDX-License-Identifier: Apache-2.0
"""Steady state, the JSON contract, and the sentences made from results."""

import dataclasses
import json
import math

import pytest

from deepum.backends.results import Run
from deepum.report.findings import findings, geometric_mean_speedup
from deepum.report.study import steady, steady_iterations

CONTRACT = (
    "time_s",
    "compute_s",
    "stall_s",
    "faults",
    "page_faults",
    "bytes_in",
    "bytes_out",
    "bytes_dropped",
    "prefetched",
    "prefetch_used",
    "late",
)


@pytest.mark.parametrize(
    ("steps", "kept"), [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (9, 3), (10, 3)]
)
def test_steady_state_is_the_last_third(steps, kept):
    assert list(steady_iterations(list(range(steps)))) == list(range(steps - kept, steps))


def test_steady_means(make):
    steps = [
        *[make.iteration(fault_s=9.0, faults=900)] * 4,
        make.iteration(fault_s=2.0, faults=3, prefetched=10, prefetch_used=4),
        make.iteration(fault_s=4.0, faults=4, prefetched=30, prefetch_used=26),
    ]
    row = steady(Run("mine", 5, steps, None))
    assert (row.policy, row.table_bytes) == ("mine", 5)
    assert row.time_s == pytest.approx(13.0)
    assert row.stall_fault_s == pytest.approx(3.0)
    assert row.faults == 3.5
    assert row.accuracy == pytest.approx(30 / 40)


def test_accuracy_of_nothing(make):
    assert steady(make.noop()).accuracy is None


def test_best_is_neither_baseline_nor_oracle(make):
    assert make.result().best().policy == "chained"
    assert make.result(make.noop(), make.oracle()).best() is None


def test_title(make):
    assert make.result().title == "GPT-2 XL, batch 3"
    assert make.result(batch="").title == "GPT-2 XL"
    assert make.result(model="", batch="").title == "gpt2-xl-b3"


def test_json_is_the_contract(make, golden):
    data = make.study().to_json()
    assert list(data) == ["machine", "memory_bytes", "traces"]
    assert list(data["traces"][0]) == ["trace", "peak_bytes", "ideal_s", "bound_s", "runs"]
    assert list(data["traces"][0]["runs"][0]) == ["policy", "table_bytes", "iterations"]
    # What iterations tell beyond the contract may grow.
    for run in data["traces"][0]["runs"]:
        run["iterations"] = [{key: step[key] for key in CONTRACT} for step in run["iterations"]]
    golden("simulate.json", json.dumps(data, indent=1, allow_nan=False))


def test_findings(make, golden):
    result = make.result()
    golden("findings.txt", "\n".join(findings(result, 33_564_917_760)))


def test_findings_without_the_baseline(make):
    text = " ".join(findings(make.result(make.chained()), 33_564_917_760))
    assert "demand paging" not in text
    assert "times as fast" not in text
    assert "chained, takes 14.5 s a step. Of the" in text


def test_findings_of_the_baseline_alone(make):
    text = " ".join(findings(make.result(make.noop()), 33_564_917_760))
    assert "best of" not in text
    assert text.endswith("at least 140 GB must come in and 97.0 GB go out.")


def test_findings_when_it_fits(make):
    text = findings(make.result(), 80_000_000_000)[0]
    assert text.endswith("it fits, so little has to move.")


def test_findings_say_when_a_policy_is_slower(make):
    slow = Run("mine", 0, [make.iteration(fault_s=90.0, faults=300_000)] * 6, None)
    text = " ".join(findings(make.result(make.noop(), slow), 33_564_917_760))
    assert "mine, takes 100 s a step, slower than noop by 119.8 %." in text
    assert "fewer" not in text
    assert "learns from what it sees" not in text


def test_findings_say_when_nothing_is_gained(make):
    same = Run("mine", 0, make.noop().iterations, None)
    text = " ".join(findings(make.result(make.noop(), same), 33_564_917_760))
    assert "the same as noop" in text


def test_findings_when_a_policy_waits_for_nothing(make):
    free = Run("mine", 0, [make.iteration()] * 6, None)
    text = " ".join(findings(make.result(make.noop(), free), 33_564_917_760))
    assert "largest part of the rest" not in text


def test_findings_of_a_short_run(make):
    text = " ".join(findings(make.result(make.noop(2), make.chained(2)), 33_564_917_760))
    assert "learns from what it sees" not in text


def test_findings_of_a_policy_that_never_settles(make):
    steps = [make.iteration(fault_s=float(n)) for n in (30, 50, 10, 30, 10, 30)]
    text = " ".join(findings(make.result(Run("mine", 0, steps)), 33_564_917_760))
    assert "learns from what it sees" not in text


def test_findings_of_a_baseline_that_fits(make):
    still = Run("noop", 0, [make.iteration()] * 6)
    text = " ".join(findings(make.result(still), 80_000_000_000))
    assert "takes 10.0 s a step." in text


def test_findings_name_a_rest_without_a_cause(make):
    step = dataclasses.replace(make.iteration(), time_s=12.0)
    text = " ".join(findings(make.result(Run("mine", 0, [step] * 6, None)), 33_564_917_760))
    assert "Compute is 83.3 % of a step under mine." in text


def test_geometric_mean(make):
    one = make.result()
    mean = geometric_mean_speedup(make.study(one, one), "chained")
    assert mean == pytest.approx(45.5 / 14.5)
    two = make.result(make.noop(), make.oracle())
    assert geometric_mean_speedup(make.study(one, two), "chained") is None
    assert geometric_mean_speedup(make.study(one, two), "oracle") == pytest.approx(45.5 / 11.6)
    assert math.isclose(geometric_mean_speedup(make.study(one), "noop"), 1.0)

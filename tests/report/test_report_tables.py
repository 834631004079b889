# SPDX-License-Identifier: Apache-2.0
"""The text tables, against golden files."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from deepum.backends.results import Run
from deepum.report import tables
from deepum.report.summary import TraceSummary


def shown(*things: object, width: int = tables.PIPE_WIDTH) -> str:
    out = io.StringIO()
    plain = Console(file=out, width=width, markup=False, emoji=False, highlight=False)
    for thing in things:
        plain.print(thing)
    return out.getvalue()


def test_results(make, golden):
    golden("results.txt", shown(tables.results_table(make.result(), 33_564_917_760)))


def test_results_without_the_baseline(make):
    text = shown(tables.results_table(make.result(make.chained()), 33_564_917_760))
    row = next(line for line in text.splitlines() if line.strip().startswith("chained"))
    assert row.split()[:4] == ["chained", "14.5", "s", "–"]


def test_no_table_is_cut_at_its_width(make):
    text = shown(tables.results_table(make.result(), 33_564_917_760))
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_narrow_terminals_get_fewer_columns(make, width):
    text = shown(tables.results_table(make.result(), 33_564_917_760), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "3.14×" in text
    assert ("pages" in text) == (width > 100)


def test_hopelessly_narrow_terminals_still_get_a_table(make):
    text = shown(tables.results_table(make.result(), 33_564_917_760), width=20)
    assert max(map(len, text.splitlines())) <= 20
    assert len(text.splitlines()) > 8


def test_names_are_not_markup(make):
    odd = Run("[bold]mine[/bold]", 0, make.noop().iterations, None)
    text = shown(tables.results_table(make.result(odd), 33_564_917_760))
    assert "[bold]mine[/bold]" in text


def summary(name: str, **changes: object) -> TraceSummary:
    values: dict[str, object] = {
        "model": "GPT-2 XL",
        "batch": "3",
        "machine": "v100-pcie3-32g",
        "estimated": True,
        "iterations": 3,
        "steps": 2,
        "kernels_per_step": 7445,
        "peak_bytes": 71_200_000_000,
        "compute_s": 9.8,
        "file_bytes": 153_211,
    }
    return TraceSummary(name=name, **{**values, **changes})


def test_traces(golden):
    rows = [
        summary("gpt2-xl-b3"),
        summary("dlrm-b96k", model="DLRM", batch="96K", compute_s=0.0123, kernels_per_step=712),
    ]
    golden("traces.txt", shown(tables.traces_table(rows)))


def test_pairs_and_columns(golden):
    pairs = tables.pairs_table("x", [("model", "GPT-2 XL"), ("a long name", "value")])
    columns = tables.columns_table(
        "Kernels", ("kernel", "time"), [("aten::add<float [4]>", "3 s"), ("mm", "14 s")]
    )
    golden("plain.txt", shown(pairs, columns))


def test_policies(golden):
    policies = {
        "chained": SimpleNamespace(
            name="chained", summary="Chains.", source="built in", options={"depth": 32, "x": 0.5}
        ),
        "mine": SimpleNamespace(name="mine", summary="", source="my-package 1.0", options={}),
    }
    golden("policies.txt", shown(tables.policies_table(policies)))


def test_checks(golden):
    checks = [
        {"name": "numpy", "state": "ok", "found": "2.0", "todo": ""},
        {"name": "GPU", "state": "missing", "found": "none", "todo": "pip install 'x[y]'"},
        {"name": "core", "state": "broken", "found": "no", "todo": "build it"},
    ]
    golden("checks.txt", shown(tables.checks_table(checks)))


def test_bench(golden):
    golden(
        "bench.txt",
        shown(tables.bench_table({"exec_update_ns": 81.234, "sim_noop_accesses_per_s": 12.3e6})),
    )


@pytest.mark.parametrize("stderr", [False, True])
def test_console_is_wide_and_plain_when_piped(stderr):
    made = tables.console(stderr=stderr)
    assert made.width == tables.PIPE_WIDTH
    assert made.stderr is stderr
    with made.capture() as capture:
        made.print("pip install 'deepum[plot]' :smile:")
    assert capture.get() == "pip install 'deepum[plot]' :smile:\n"

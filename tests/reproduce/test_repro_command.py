# SPDX-License-Identifier: Apache-2.0
"""``deepum reproduce``, on three short traces and on bad input."""

import json
import sys
from types import SimpleNamespace

import pytest

from deepum.reproduce import plan, runner


@pytest.mark.slow
def test_a_real_run(run, small, tmp_path):
    pytest.importorskip("matplotlib")
    shown = run("--quick", "-j", 1, "--json", "r.json", "--markdown", "r.md")
    assert "wrote r.json" in shown.stderr
    assert "Targets" in shown.stdout
    data = json.loads((tmp_path / "r.json").read_text("utf-8"))
    bert, dlrm, mobile = data["rows"]
    assert (bert["model"], bert["batch"], bert["memory"]) == ("BERT Base", 29, "32 GB")
    assert dlrm["batch"] == 96 * 1024
    assert mobile["paper"] == {}
    for row in data["rows"]:
        ours = row["ours"]
        assert 0 < ours["ideal_s"] <= ours["bound_s"] <= ours["chained_s"] * 1.001
        assert ours["chained_s"] <= ours["um_s"] * 1.02
        # Without options past the paper they differ in how long they learn.
        assert ours["past_paper_s"] == pytest.approx(ours["chained_s"], rel=0.03)
    assert data["gmean"]["chained"] >= 1
    assert set(data["depth"]) == {"32"}
    assert (tmp_path / "r-speedups.svg").exists()
    # The second time everything is known, in the user's cache folder.
    assert any((tmp_path / "user-cache" / "deepum").rglob("*.json"))
    again = run("--quick", "-j", 1, "--json", "again.json")
    assert f"{len(small.jobs)} " in shown.stderr
    assert "found in the cache" in again.stderr
    assert (tmp_path / "again.json").read_text() == (tmp_path / "r.json").read_text()


@pytest.fixture
def pretended(monkeypatch, make):
    """Do no simulation: outcomes are made up."""
    outcomes = make.outcomes_of(plan.quick())
    outcomes |= make.outcomes_of(plan.full())
    calls = []

    def perform(job):
        calls.append(job)
        return outcomes[job]

    monkeypatch.setattr(runner, "perform", perform)
    return calls


def test_json_goes_to_standard_output_alone(run, pretended):
    shown = run("--quick", "-j", 1, "--no-cache", "--json", "-")
    data = json.loads(shown.stdout)
    assert data["made"]["quick"] is True
    assert len(data["rows"]) == 11
    assert "not available: no policy named 'hints'" in shown.stderr


def test_full_run_prints_rows_and_targets(run, pretended):
    shown = run("-j", 1, "--no-cache").stdout
    assert "GPT-2 XL 7" in shown
    assert "Best prefetch distance" in shown
    assert len(pretended) == len(plan.full().jobs)


def test_no_cache_leaves_nothing(run, pretended, tmp_path):
    run("--quick", "-j", 1, "--no-cache", "--json", "-")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_says_that_work_is_kept(run, pretended, monkeypatch):
    perform = runner.perform

    def interrupted(job):
        if len(pretended) == 5:
            raise KeyboardInterrupt
        return perform(job)

    monkeypatch.setattr(runner, "perform", interrupted)
    shown = run("--quick", "-j", 1, "--cache", "kept", status=130)
    assert "goes on from here" in shown.stderr
    monkeypatch.setattr(runner, "perform", perform)
    shown = run("--quick", "-j", 1, "--cache", "kept", "--json", "-")
    assert "5 found in the cache" in shown.stderr


def test_an_unwritable_cache_is_a_warning(run, pretended, tmp_path):
    (tmp_path / "file").write_text("")
    shown = run("--quick", "-j", 1, "--cache", "file/below", "--json", "-")
    assert shown.stderr.count("results are not kept") == 1


def test_g10_is_asked(run, pretended, make, monkeypatch):
    asked = []
    g10 = SimpleNamespace(results=lambda runner: asked.append(runner) or make.g10)
    monkeypatch.setitem(sys.modules, "deepum.reproduce.g10", g10)
    data = json.loads(run("--quick", "-j", 1, "--no-cache", "--json", "-").stdout)
    assert [entry["trace"] for entry in data["g10"]] == ["BERT-256", "VIT-1280"]
    assert len(asked) == 1


def test_without_g10(run, pretended, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepum.reproduce.g10", None)
    shown = run("--quick", "-j", 1, "--no-cache", "--json", "-")
    assert json.loads(shown.stdout)["g10"] == []
    assert "G10 is not in this build" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--html", "page.txt"), "must end in .html"),
        (("--markdown", "page.html"), "must end in .md"),
        (("--html", "none/page.html"), "no folder"),
        (("--json", "none/r.json"), "no folder"),
        (("--jobs", "0"), "0 is not in the range"),
        (("--cache", "here", "--no-cache"), "exclude each other"),
        (("--cache", "file"), "is not a folder"),
        (("extra",), "unexpected extra argument"),
    ],
)
def test_bad_input_is_told_in_one_line(run, pretended, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    shown = run("--quick", *arguments, status=2)
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr
    assert pretended == []

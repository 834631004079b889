# SPDX-License-Identifier: Apache-2.0
"""The result's contract, the targets and the documents, from outcomes that are made up."""

import datetime as dt
import json
import re
import sys

import pytest

from deepum.reproduce import document as documents
from deepum.reproduce import energy, pages, paper, plan, result
from deepum.reproduce.runner import OUT_OF_MEMORY, Outcome

CONTRACT = ["gmean", "rank_correlation", "rows", "ablation", "depth", "geometry", "g10"]
OURS = {
    "um_s",
    "lms_s",
    "chained_s",
    "ideal_s",
    "bound_s",
    "past_paper_s",
    "faults_um",
    "faults_chained",
    "table_mb",
}


@pytest.fixture
def full(make):
    whole = plan.full()
    return result.build(whole, make.outcomes_of(whole), make.g10)


@pytest.fixture
def quick(make):
    small = plan.quick()
    return result.build(small, make.outcomes_of(small), make.g10)


def test_contract(full):
    assert list(full)[: len(CONTRACT)] == CONTRACT
    assert list(full["gmean"]) == ["chained", "lms", "ideal", "chained_past_paper"]
    assert list(full["ablation"]) == ["prefetch", "pre_evict", "invalidate"]
    assert list(full["depth"]) == ["16", "32", "64", "128", "256"]
    assert len(full["geometry"]) == 13
    assert full["geometry"]["2,4,128"] == 1
    assert len(full["rows"]) == 35
    for row in full["rows"]:
        assert list(row)[:3] == ["model", "batch", "memory"]
        assert set(row["ours"]) >= OURS
    json.dumps(full, allow_nan=False)


def test_figures(full):
    assert full["gmean"]["chained"] == pytest.approx(3.0646 / 1.04, rel=1e-3)
    assert full["gmean"]["lms"] == pytest.approx(2.7492 / 1.1, rel=1e-3)
    assert full["gmean"]["chained_past_paper"] == pytest.approx(
        full["gmean"]["chained"] / 0.75, rel=1e-3
    )
    assert full["rank_correlation"] == pytest.approx(1)
    first = full["rows"][0]
    assert first["ours"]["um_s"] == pytest.approx(4597)
    assert first["ours"]["chained_s"] == pytest.approx(1429 * 1.04)
    assert first["paper"]["faults_um"] == 7437122
    assert first["paper"]["ideal_s"] is None
    assert full["depth"]["32"] == pytest.approx(1.194)
    assert full["ablation"]["prefetch"] == pytest.approx(0.544 / 0.333 * 1.04 / 3.0646, rel=1e-3)


def test_swappers_are_compared_where_both_ran(full):
    compared = full["lms_compared"]
    assert compared["lms"]["rows"] == 11
    assert compared["lms"]["paper"] == pytest.approx(paper.GMEAN["lms"], rel=2e-3)
    assert compared["lms"]["ours"] == pytest.approx(compared["lms"]["paper"] / 1.1, rel=1e-4)
    assert compared["lms_mod"]["ours"] == pytest.approx(
        compared["lms_mod"]["paper"] / 1.2, rel=1e-4
    )
    assert compared["lms_mod"]["rows"] == sum(r.lms_mod_s is not None for r in paper.ROWS)


def test_one_that_did_not_run_is_left_out_of_the_comparison(make):
    whole = plan.full()
    outcomes = make.outcomes_of(whole)
    outcomes[plan.runs_of(plan.POINTS_32GB[0])["lms"]] = Outcome(
        failure=OUT_OF_MEMORY, reason="full"
    )
    compared = result.build(whole, outcomes)["lms_compared"]["lms"]
    first = paper.ROWS[0]
    assert compared["rows"] == 10
    assert compared["paper"] ** 10 * first.um_s / first.lms_s == pytest.approx(
        paper.GMEAN["lms"] ** 11, rel=0.03
    )


def test_sweeps_row_by_row(full):
    assert len(full["depth_rows"]) == len(full["geometry_rows"]) == 14
    for row in full["depth_rows"].values():
        assert list(row) == ["8", "16", "32", "64", "128", "256"]
        assert row["8"] == 1
        assert row["32"] == pytest.approx(1.194, rel=1e-4)
    assert next(iter(full["geometry_rows"]["GPT-2 XL 3"])) == "2,4,128"


def test_out_of_memory_is_data(full):
    second = full["rows"][1]
    assert second["ours"]["lms_s"] is None
    assert second["ours"]["failures"]["lms"]["what"] == OUT_OF_MEMORY
    dcgan = next(row for row in full["rows"] if row["model"] == "DCGAN")
    assert dcgan["ours"]["um_s"] is dcgan["ours"]["bound_s"] is None


def test_targets_that_are_met(full, target_of):
    for key in ("speedup", "points", "rank", "lms", "lms-oom", "faults", "faults-xl", "tables"):
        assert target_of(full, key)["met"] is True, key
    for key in ("ablation-prefetch", "depth-best", "depth-gain", "g10-order", "past-gain"):
        assert target_of(full, key)["met"] is True, key
    assert target_of(full, "depth-best")["ours"] == "32"


def test_targets_that_are_missed(make, target_of):
    whole = plan.full()
    outcomes = make.outcomes_of(whole)
    xl, large = plan.POINTS_32GB[0], plan.POINTS_32GB[3]
    outcomes[plan.runs_of(xl)["chained"]] = Outcome(
        make.run_figures(5.0, 1.0, page_faults=90_000, table_bytes=999e6)
    )
    for point in plan.POINTS_32GB[:3]:
        outcomes[plan.runs_of(point)["lms"]] = Outcome(failure=OUT_OF_MEMORY, reason="full")
    for point in plan.POINTS_32GB[4:6]:
        outcomes[plan.runs_of(point)["lms"]] = Outcome(make.run_figures(9.0, 1.0))
    outcomes[plan.runs_of(large)["past_paper"]] = Outcome(make.run_figures(60.0, 1.0))
    data = result.build(whole, outcomes)
    for key in ("points", "faults", "faults-xl", "tables", "lms-oom", "past-slower"):
        assert target_of(data, key)["met"] is False, key
    assert target_of(data, "points")["missing"][0].startswith("GPT-2 XL 3 (")
    assert target_of(data, "lms-oom")["missing"] == [
        "GPT-2 L 5 (the paper alone)",
        "GPT-2 L 7 (the paper alone)",
        "GPT-2 XL 3 (ours alone)",
    ]
    assert [name.partition(" (")[0] for name in target_of(data, "past-slower")["missing"]] == [
        "GPT-2 XL 3",
        "GPT-2 L 3",
    ]
    assert target_of(data, "g10-order")["met"] is None


def test_quick_run_does_not_judge_sweeps(quick, target_of):
    for key in ("depth-best", "depth-gain", "geometry-spread", "ablation-prefetch"):
        assert target_of(quick, key)["met"] is None
        assert target_of(quick, key)["ours"] == "not run"
    # Its speedups are judged by the paper's on the same rows.
    assert target_of(quick, "speedup")["target"] != "3.07 ± 10 %"


def test_no_faults_at_all_are_no_miss(make, target_of):
    small = plan.quick()
    outcomes = make.outcomes_of(small)
    point = next(p for p in small.points if p.model == "BERT Base")
    runs = plan.runs_of(point)
    for name in ("um", "chained"):
        outcomes[runs[name]] = Outcome(make.run_figures(1.3, 1.3))
    assert target_of(result.build(small, outcomes), "faults")["met"] is True
    outcomes[runs["chained"]] = Outcome(make.run_figures(1.3, 1.3, page_faults=1))
    assert target_of(result.build(small, outcomes), "faults")["met"] is False


def test_largest_batch_is_the_smaller_limit(make):
    whole = plan.full()
    outcomes = make.outcomes_of(whole)
    for point in whole.points:
        outcomes[point.job(what=plan.FACTS)] = Outcome(
            {"peak_bytes": (10 + point.batch) * 2**30, "working_set_bytes": point.batch * 2**30}
        )
    data = result.build(whole, outcomes)
    xl = next(e for e in data["largest_batch"] if e["model"] == "GPT-2 XL")
    assert xl["ours"]["host_limit"] == 502
    assert xl["ours"]["chained"] == xl["ours"]["device_limit"] == 31
    assert xl["ours"]["lms"] == 3
    assert xl["paper"] == {"lms": 3, "chained": 16}


def test_energy_follows_time_and_state(make):
    busy = make.run_figures(1.0, 1.0)
    stalled = make.run_figures(1.0, 0.0)
    power = energy.POWER
    assert energy.joules(busy) == power.machine_w + power.compute_w
    assert energy.joules(stalled) == pytest.approx(
        power.machine_w + power.stall_w + 0.6 * power.fault_w
    )
    assert set(energy.SOURCES) == set(vars(power))


def test_markdown(quick, golden):
    golden("quick.md", pages.markdown(quick))


def test_markdown_tables_are_tables(full):
    text = pages.markdown(full)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert "Because of this and that." not in text, "a remark on a target that is met"


def test_misses_carry_their_remark(make):
    whole = plan.full()
    far = [{**make.g10[0], "noop_s": 60.0}]
    text = pages.markdown(result.build(whole, make.outcomes_of(whole), far))
    assert "missed on BERT-256. Because of this and that." in text


def test_without_options_past_the_paper(make, monkeypatch, target_of):
    monkeypatch.setattr(plan, "PAST_PAPER_OPTIONS", {})
    small = plan.quick()
    data = result.build(small, make.outcomes_of(small))
    assert data["rows"][0]["ours"]["past_paper_s"] == data["rows"][0]["ours"]["chained_s"]
    assert target_of(data, "past-gain")["met"] is None
    assert "No option past the paper" in pages.markdown(data)


def test_each_option_past_the_paper_alone(full):
    trials = full["past_paper_trials"]
    assert trials["cleverer"]["gain"] == pytest.approx(1 / 0.75, rel=1e-4)
    assert trials["cleverer"]["slower"] == []
    assert trials["nearer"]["slower"] == ["BERT Base 29", "BERT Base 30", "BERT Base 31"]
    assert trials["nearer"]["gain"] > 1


def test_an_oracle_behind_g10_is_a_miss(make, target_of):
    small = plan.quick()
    outcomes = make.outcomes_of(small)
    ahead = [{**entry, "oracle_s": 10.0} for entry in make.g10]
    assert target_of(result.build(small, outcomes, ahead), "g10-oracle")["met"] is True
    late = target_of(result.build(small, outcomes, make.g10), "g10-oracle")
    assert late["missing"] == ["BERT-256 (1.10)", "VIT-1280 (1.10)"]


def test_without_calibration(quick, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepum.reproduce.calibration", None)
    assert "## Calibration" not in pages.markdown(quick)


def test_documents_from_a_result_file(quick):
    # What was read from a file makes the same document.
    assert documents.document(json.loads(json.dumps(quick))) == documents.document(quick)


def test_page(quick, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "page.html"
    pages.write_page(quick, path, made=dt.date(2023, 3, 25))
    text = path.read_text("utf-8")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)
    bare = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|<script|<link|<img|@import|url\([^#]", bare)
    words = re.sub(r"<[^>]*>", " ", text).replace("\u00a0", " ")
    for piece in ("Where we miss", "GPT-2 XL 3", "4,597", "2023-03-25", "1.2.3", "Calibration"):
        assert piece in words, piece
    assert text.count("<figure") == 8
    assert len(text) < 3_000_000


def test_markdown_with_plots(quick, tmp_path):
    pytest.importorskip("matplotlib")
    written = pages.write_markdown(quick, tmp_path / "out.md")
    assert written[0].name == "out.md"
    assert len(written) == 9
    text = written[0].read_text("utf-8")
    for picture in written[1:]:
        assert f"]({picture.name})" in text
        assert "<svg" in picture.read_text("utf-8")


def test_names_of_policies_in_the_paper_are_known():
    assert set(paper.GMEAN_16GB) == {*paper.SWAPPERS, "Ideal"}

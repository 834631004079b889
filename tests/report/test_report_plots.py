# SPDX-License-Identifier: Apache-2.0
"""Plots: right content, right files, one clear line when matplotlib is missing."""

import re
import sys

import numpy as np
import pytest

from deepum.backends.results import Run
from deepum.errors import DeepUMError
from deepum.report import palette, plots
from deepum.report.summary import MemoryOverTime

pytest.importorskip("matplotlib")


def svg(draw, **changes) -> str:
    values = {"label": "a chart", "prefix": "x-", **changes}
    return plots.inline_svg(draw, 5.6, 3.0, **values)


def test_study_as_png_and_svg(make, tmp_path):
    study = make.study()
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        plots.save_study(study, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(head)
    text = (tmp_path / "a.svg").read_text("utf-8")
    for word in ("Time a step", "Where the time goes", "Memory under chained", "14.5 s · 3.14×"):
        assert word in text


def test_equal_studies_give_equal_files(make, tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.save_study(make.study(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_several_traces_in_one_figure(make, tmp_path):
    study = make.study(make.result(), make.result(trace="other", model="Other"))
    plots.save_study(study, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert "GPT-2 XL, batch 3: time a step" in text
    assert "Other, batch 3: time a step" in text


def test_study_without_timelines(make, tmp_path):
    bare = Run("chained", 0, make.chained().iterations, None)
    plots.save_study(make.study(make.result(make.noop(), bare)), tmp_path / "a.svg")
    assert "Memory under" not in (tmp_path / "a.svg").read_text("utf-8")


def test_baseline_alone(make, tmp_path):
    plots.save_study(make.study(make.result(make.noop())), tmp_path / "a.svg")
    assert "Memory under noop" in (tmp_path / "a.svg").read_text("utf-8")


def test_unknown_suffix(make, tmp_path):
    with pytest.raises(DeepUMError, match=r"plots are written as \.png or \.svg files"):
        plots.save_study(make.study(), tmp_path / "a.gif")


def test_memory_of_a_trace(tmp_path):
    memory = MemoryOverTime(
        np.array([0.0, 1.0, 2.0]),
        {"activation": np.array([0, 5, 0]) * 10**9, "parameter": np.array([7, 7, 7]) * 10**9},
    )
    plots.save_memory(memory, "title", 10 * 10**9, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert "activation" in text
    assert "GPU memory, 10.0 GB" in text
    plots.save_memory(memory, "title", None, tmp_path / "b.svg")
    assert "GPU memory" not in (tmp_path / "b.svg").read_text("utf-8")


def test_inline_svg_follows_the_theme(make):
    text = svg(lambda axes: plots.draw_policies(axes, make.result()))
    assert text.startswith('<svg role="img" aria-label="a chart" ')
    assert "var(--blue)" in text
    assert "http://www.w3.org/1999/xlink" not in text
    assert "DejaVu" not in text
    assert "<style" not in text
    # No colour is left that would not change with the theme.
    assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= {"#000000", "#ffffff"}


def test_inline_svg_has_ids_of_its_own(make):
    text = svg(lambda axes: plots.draw_faults(axes, make.result()))
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert ids
    assert all(name.startswith("x-") for name in ids)
    targets = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert targets
    assert set(targets) <= set(ids)


def test_no_faults_at_all(make):
    text = svg(lambda axes: plots.draw_faults(axes, make.result(make.oracle())))
    assert "oracle" in text


def test_a_step_that_moves_nothing(make):
    still = Run("mine", 0, [make.iteration()] * 2, None)
    result = make.result(still)
    assert "to the GPU" in svg(lambda axes: plots.draw_traffic(axes, result))  # the bound's
    assert "fault service" not in svg(lambda axes: plots.draw_time(axes, result))


def test_empty_timeline(make):
    line = make.timeline(0.0, points=2)
    run = Run("mine", 0, [make.iteration()], line)
    text = svg(lambda panels: plots.draw_memory_and_bus(panels, run, 10**9), panels=2)
    assert "to the GPU" not in text


def test_long_timeline_is_thinned(make):
    run = Run("mine", 0, [make.iteration()], make.timeline(10.0, points=100_000))
    text = svg(lambda panels: plots.draw_memory_and_bus(panels, run, 33 * 10**9), panels=2)
    assert len(text) < 150_000


def test_speedups_need_the_baseline(make):
    study = make.study(make.result(), make.result(make.chained(), trace="other"))
    text = svg(lambda axes: plots.draw_speedups(axes, study))
    assert text.count("3.14×") == 1


def test_missing_matplotlib(make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DeepUMError, match=r"pip install 'deepum\[plot\]'"):
        plots.save_study(make.study(), tmp_path / "a.png")


def test_policies_keep_their_colours():
    colours = palette.of_policies(["mine", "noop", "other", "chained", "mine"])
    assert colours["noop"] == "grey"
    assert colours["chained"] == "blue"
    assert len(set(colours.values())) == 4


def test_light_shades_differ():
    shades = [pair[0] for pair in palette.COLOURS.values()]
    assert len(set(shades)) == len(shades)

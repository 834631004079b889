# SPDX-License-Identifier: Apache-2.0
"""The HTML report: well formed, self-contained, and complete."""

import datetime as dt
import re
from html.parser import HTMLParser

import pytest

from deepum.backends.results import Run
from deepum.machine import Machine
from deepum.report.html import figure_of, page, write_page

pytest.importorskip("matplotlib")

VOID = {"meta", "br", "link", "img", "input", "hr"}
DAY = dt.date(2023, 3, 25)


class Checker(HTMLParser):
    """Collects what is wrong with a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.faults: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        if self.open:
            self.faults.append(f"never closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        values = dict(attrs)
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [values[name] for name in ("href", "src") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"stray </{tag}> at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)


def checked(text: str) -> Checker:
    found = Checker(text)
    assert found.faults == []
    assert len(set(found.ids)) == len(found.ids)
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(found.tags)
    # Names of XML vocabularies are no addresses to load; nothing else may look like one.
    bare = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http:" not in bare
    assert "https:" not in bare
    assert "@import" not in bare
    assert set(re.findall(r"url\((.)", bare)) <= {"#"}
    return found


def test_page_of_one_trace(make, tmp_path):
    path = tmp_path / "report.html"
    write_page(make.study(), path, made=DAY)
    text = path.read_text("utf-8")
    found = checked(text)
    words = " ".join(found.text).replace("\u00a0", " ")
    assert "<title>GPT-2 XL, batch 3 – deepum</title>" in text
    for piece in (
        "3.14×",
        "160,000",
        "Memory and bus under chained",
        "Memory and bus under noop",
        "deepum simulate gpt2-xl-b3 --html report.html",
        "NVIDIA V100 PCIe data sheet",
        f"{Machine.load('v100-pcie3-32g').bus_in_bytes_s / 1e9:.1f} GB/s",
        "What is modelled, and what is not",
        "on 2023-03-25",
    ):
        assert piece in words, piece
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text
    assert len(text) < 1_500_000


def test_page_of_two_traces(make):
    odd = Run("<b>mine</b>", 0, make.chained().iterations, None)
    second = make.result(
        make.noop(),
        odd,
        make.oracle(),
        trace="a&b",
        model="<script>x</script>",
        warnings=["<i>set aside</i>"],
    )
    text = page(make.study(make.result(), second, without=["prefetch"], options={"rows": 4}))
    found = checked(text)
    assert "<title>2 training steps – deepum</title>" in text
    assert "#t1" in found.links
    words = " ".join(found.text).replace("\u00a0", " ")
    for piece in (
        "<script>x</script>, batch 3",
        "<i>set aside</i>",
        "<b>mine</b>",
        "geometric mean",
        "rows=4",
    ):
        assert piece in words, piece


def test_page_of_the_baseline_alone(make):
    bare = Run("noop", 0, make.noop().iterations, None)
    words = " ".join(checked(page(make.study(make.result(bare), command=""))).text)
    assert "Memory and bus" not in words


def test_page_without_the_baseline(make):
    words = " ".join(checked(page(make.study(make.result(make.chained())))).text)
    assert "a step with chained" in words


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("fp32_flops", 14e12, "14.0 TFLOP/s"),
        ("memory_bytes_s", 9e11, "900 GB/s"),
        ("memory_bytes", 33_564_917_760, "33.6 GB"),
        ("max_run_blocks", 16, "16 blocks"),
        ("fault_page_percent", 51.0, "51 %"),
        ("compute_efficiency", 0.75, "75 %"),
        ("launch_s", 6e-6, "6.00 µs"),
        ("title", "a text", "a text"),
        ("something", 1234, "1,234"),
    ],
)
def test_figures_of_a_machine(name, value, text):
    assert figure_of(name, value) == text

# SPDX-License-Identifier: Apache-2.0
"""Values on the command line, and files named there."""

import json

import click
import pytest

from deepum.commands import options
from deepum.errors import DeepUMError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32GiB", 32 << 30),
        ("32 gib", 32 << 30),
        ("1.5GiB", 3 << 29),
        ("24GB", 24 * 10**9),
        ("512M", 512 << 20),
        ("512MB", 512 * 10**6),
        ("8K", 8192),
        ("8kB", 8000),
        ("1TiB", 1 << 40),
        ("1TB", 10**12),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_sizes(text, value):
    assert options.parse_size(None, None, text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1PiBB", "0", "0GiB", "1e9", "nan"])
def test_senseless_sizes(text):
    with pytest.raises(click.BadParameter):
        options.parse_size(None, None, text)


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("96k", 98304), ("2K", 2048)])
def test_batches(text, value):
    assert options.parse_batch(None, None, text) == value


@pytest.mark.parametrize("text", ["0", "0k", "-3", "1.5k", "3m", "x", ""])
def test_senseless_batches(text):
    with pytest.raises(click.BadParameter):
        options.parse_batch(None, None, text)


def test_values_left_out():
    assert options.parse_size(None, None, None) is None
    assert options.parse_batch(None, None, None) is None


def test_names():
    assert options.parse_names(None, None, "a, b,,a") == ("a", "b")
    assert options.parse_features(None, None, "prefetch,invalidate") == ("prefetch", "invalidate")
    with pytest.raises(click.BadParameter, match="'evict' is not one of prefetch, pre-evict"):
        options.parse_features(None, None, "evict")


def test_settings():
    given = ("a=1", "b=0.5", "c=true", "d=None", "e=text", "f=1e3", "x.y=-2", "g=a=b", "h=")
    assert options.parse_settings(None, None, given) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "text",
        "f": 1000.0,
        "x.y": -2,
        "g": "a=b",
        "h": "",
    }
    for wrong in ("a", "=1", " =1"):
        with pytest.raises(click.BadParameter, match="not of the form key=value"):
            options.parse_settings(None, None, (wrong,))


def test_outputs_are_checked_before_the_work(tmp_path, trace_file):
    options.check_output(None)
    options.check_output("-")
    options.check_output(str(tmp_path / "new.json"))
    with pytest.raises(DeepUMError, match="there is no folder"):
        options.check_output(str(tmp_path / "no" / "x.json"))
    with pytest.raises(DeepUMError, match="is a folder"):
        options.check_output(str(tmp_path))
    with pytest.raises(DeepUMError, match="is a trace and would be overwritten"):
        options.check_output(str(trace_file))
    with pytest.raises(DeepUMError, match=r"must end in \.png or \.svg"):
        options.check_output("x.gif", suffixes=(".png", ".svg"))
    with pytest.raises(DeepUMError, match="exists; --force overwrites it"):
        options.check_output(str(trace_file), new=True)
    options.check_output(str(trace_file), trace=True)


def test_json_goes_where_it_is_sent(tmp_path, capsys):
    assert options.write_json([1], None) is False
    assert options.write_json({"a": "µ"}, "-") is True
    assert json.loads(capsys.readouterr().out) == {"a": "µ"}
    path = tmp_path / "a.json"
    assert options.write_json([1], str(path)) is False
    assert json.loads(path.read_text("utf-8")) == [1]
    assert capsys.readouterr().err == f"wrote {path}\n"


def test_json_is_never_invalid():
    with pytest.raises(ValueError):
        options.write_json(float("nan"), "-")


def test_warnings_are_one_line(capsys):
    options.warn("two\n lines")
    assert capsys.readouterr().err == "warning: two lines\n"

# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

import doctest

import pytest

from deepum.report import numbers


def test_examples_in_the_docstrings():
    failed, tried = doctest.testmod(numbers)
    assert tried >= 4
    assert failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (3.2e-10, "0.320 ns"),
        (5e-9, "5.00 ns"),
        (9.994e-4, "999 µs"),
        (9.9951e-4, "1.00 ms"),
        (0.99949, "999 ms"),
        (0.99951, "1.00 s"),
        (12345.6, "12,346 s"),
        (-2.5, "-2.50 s"),
    ],
)
def test_seconds(value, text):
    assert numbers.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2 << 20, "2.10 MB"),
        (999_600_000, "1.00 GB"),
        (33_564_917_760, "33.6 GB"),
        (4.2e12, "4.20 TB"),
    ],
)
def test_size(value, text):
    assert numbers.size(value) == text


def test_plain_columns():
    assert numbers.gigabytes(0) == "0"
    assert numbers.gigabytes(150e9) == "150"
    assert numbers.gigabytes(1_234_567e9) == "1,234,567"
    assert numbers.gigabytes(3e6) == "0.00300"
    assert numbers.megabytes(71_000_000) == "71.0"
    assert numbers.megabytes(0) == "0"
    assert numbers.count(1234567.4) == "1,234,567"


def test_rate():
    assert numbers.rate(14e12, "FLOP/s") == "14.0 TFLOP/s"
    assert numbers.rate(11.5e9, "B/s") == "11.5 GB/s"
    assert numbers.rate(2.5e15, "FLOP/s") == "2.50 PFLOP/s"
    assert numbers.rate(300, "/s") == "300 /s"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.0004, "< 0.1 %"),
        (0.0005, "0.1 %"),
        (0.9995, "> 99.9 %"),
        (0.9994, "99.9 %"),
        (0.123, "12.3 %"),
        (1.5, "150.0 %"),
    ],
)
def test_percent(share, text):
    assert numbers.percent(share) == text


def test_what_is_no_number():
    assert numbers.significant(float("inf")) == "inf"
    assert numbers.significant(float("nan")) == "nan"


def test_times():
    assert numbers.times(3.0649) == "3.06×"
    assert numbers.times(None) == "–"

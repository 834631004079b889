# SPDX-License-Identifier: Apache-2.0
"""Work in several processes; that they end with their parent is tried in tests/cli."""

import operator
import os
import signal

import pytest

from deepum import workers
from deepum.errors import DeepUMError
from deepum.units import parse_bytes


@pytest.mark.parametrize("processes", [1, 2])
def test_each_item_once(processes):
    assert sorted(workers.work_off(operator.neg, [5, 6, 7], processes)) == [
        (0, -5),
        (1, -6),
        (2, -7),
    ]


def test_nothing_to_do():
    assert list(workers.work_off(operator.neg, [], 4)) == []


def test_a_killed_process():
    with pytest.raises(DeepUMError, match="try again with --jobs 1"):
        list(workers.work_off(os._exit, [9, 9], 2))
    with pytest.raises(DeepUMError, match=r"for want of memory; take a rest$"):
        list(workers.work_off(os._exit, [9, 9], 2, "take a rest"))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_is_passed_on(processes):
    with pytest.raises(DeepUMError, match="lots"):
        list(workers.work_off(parse_bytes, ["lots", "lots"], processes))


def test_an_interrupt_ends_a_worker_at_once():
    before = signal.getsignal(signal.SIGINT)
    try:
        workers.start_worker()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_cores(monkeypatch):
    assert workers.cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert workers.cores() == 1

# SPDX-License-Identifier: Apache-2.0
"""Tests of the kernel module through the Python side; they run where it is loaded."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

from deepum.backends import kmod


@pytest.fixture(autouse=True)
def needs_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip without the module; end, and say where, if a thread hangs in a page fault."""
    if request.node.get_closest_marker("kmod") is None:
        yield
        return
    if reason := kmod.unavailable():
        pytest.skip(reason)
    faulthandler.dump_traceback_later(int(os.environ.get("DEEPUM_HANG_S", "280")), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()

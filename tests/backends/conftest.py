# SPDX-License-Identifier: Apache-2.0
"""The host backends that this machine has; a test that hangs in a page fault ends the run."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from importlib import import_module

import pytest

from deepum.backends import live

from .drivers import Host

HOSTS = {
    "uffd": ("uffd", {}),
    "uffd-copy": ("uffd", {"moves": False}),  # as on kernels before 6.8
    "kmod": ("kmod", {"patience_us": 60_000_000}),  # an emulated machine is slow
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what runs a live backend out of traced builds: see UNTRACED in setup.py."""
    for item in items:
        if {"host", "uffd"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Nothing can interrupt a thread that waits for a page: say where, and end."""
    faulthandler.dump_traceback_later(int(os.environ.get("DEEPUM_HANG_S", "180")), exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def slow_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an emulated machine a hook that takes seconds is no sign of a policy that hangs."""
    if "DEEPUM_HANG_S" in os.environ:
        monkeypatch.setattr("deepum.backends.host.PATIENCE_S", 600.0)


@pytest.fixture(params=["uffd", "uffd-copy", pytest.param("kmod", marks=pytest.mark.kmod)])
def host(request: pytest.FixtureRequest) -> Host:
    """Return what runs programs on one of the host backends."""
    name, options = HOSTS[request.param]
    if reason := live.unavailable(name):
        pytest.skip(f"no {name} here: {reason}")
    return Host(name, import_module(f"deepum.backends.{name}").open_mechanism, **options)


@pytest.fixture
def uffd() -> Host:
    """Return what runs programs on userfaultfd."""
    if reason := live.unavailable("uffd"):
        pytest.skip(f"no uffd here: {reason}")
    return Host("uffd", import_module("deepum.backends.uffd").open_mechanism)

# SPDX-License-Identifier: Apache-2.0
"""``deepum kmod``: one clear line where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from deepum.backends import kmod as backend
from deepum.commands import cli
from deepum.commands import kmod as verb


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["kmod", *arguments])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the module, with headers for one kernel."""
    for name in ("DEVICE", "SYS", "MODULES"):
        monkeypatch.setattr(verb, name, tmp_path / name)
    headers = tmp_path / "MODULES" / "1.2-test" / "build"
    headers.mkdir(parents=True)
    (headers / "Makefile").touch()
    monkeypatch.setattr(verb.os, "geteuid", lambda: 0)
    monkeypatch.setattr(verb.platform, "release", lambda: "1.2-test")
    monkeypatch.setattr(backend, "unavailable", lambda: "there is no /dev/deepum")
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []
    monkeypatch.setattr(verb, "call", lambda *words, what: made.append(words))
    return made


def sources(folder: Path) -> Path:
    (folder / "tree" / "kmod").mkdir(parents=True)
    (folder / "tree" / "kmod" / "Kbuild").touch()
    return folder / "tree" / "kmod"


def test_build(machine: Path, calls: list[tuple[str, ...]]) -> None:
    folder = sources(machine)
    out = run("build", "--source", str(folder)).stdout
    assert calls == [("make", "-s", "-C", str(folder), "RELEASE=1.2-test", "module")]
    assert out == f"{machine / 'tree/build/kmod/1.2-test/deepum.ko'}\n"


def test_build_needs_headers_and_sources(machine: Path, calls: list[tuple[str, ...]]) -> None:
    folder = str(sources(machine))
    error = run("build", "--source", folder, "--release", "9.9", status=2).stderr
    assert error == ("error: no headers for kernel 9.9: sudo apt-get install linux-headers-9.9\n")
    assert "not in" in run("build", "--source", str(machine), status=2).stderr
    assert calls == []


def test_load_takes_what_was_built(machine: Path, calls: list[tuple[str, ...]]) -> None:
    folder = sources(machine)
    assert "build it first" in run("load", "--source", str(folder), status=2).stderr
    module = machine / "tree/build/kmod/1.2-test/deepum.ko"
    module.parent.mkdir(parents=True)
    module.touch()
    assert run("load", "--source", str(folder)).stdout == "loaded\n"
    assert calls == [("insmod", str(module))]
    (machine / "SYS").mkdir()
    assert run("load").stdout == "the module is loaded already\n"


@pytest.mark.parametrize("status", [0, 1, None])
def test_load_takes_what_is_installed(
    machine: Path, calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    tools = machine / "tools"  # None: a machine that has no such program
    tools.mkdir()
    if status is not None:
        (tools / "modprobe").write_text(f"#!/bin/sh\nexit {status}\n")
        (tools / "modprobe").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    folder = str(sources(machine))
    if status == 0:
        assert run("load", "--source", folder).stdout == "loaded\n"
        assert calls == [("modprobe", "deepum")]
    else:
        assert "build it first" in run("load", "--source", folder, status=2).stderr
        assert calls == []


def test_unload(machine: Path, calls: list[tuple[str, ...]]) -> None:
    assert run("unload").stdout == "the module is not loaded\n"
    (machine / "SYS").mkdir()
    assert run("unload").stdout == "unloaded\n"
    assert calls == [("rmmod", "deepum")]


def test_loading_needs_root(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.os, "geteuid", lambda: 1000)
    assert run("load", status=2).stderr == "error: load needs root: sudo deepum kmod load\n"
    (machine / "SYS").mkdir()
    assert "unload needs root" in run("unload", status=2).stderr


def test_status(machine: Path) -> None:
    out = run("status").stdout
    assert "module   not loaded\ndevice   there is no /dev/deepum\n" in out
    data = json.loads(run("status", "--json").stdout)
    assert data == {
        "loaded": False, "version": None, "users": None, "device": None, "usable": False,
        "reason": "there is no /dev/deepum", "features": [], "kernel": "1.2-test",
        "headers": True, "nvidia_uvm": data["nvidia_uvm"],
    }  # fmt: skip


def test_status_of_a_module_that_is_loaded(machine: Path) -> None:
    (machine / "SYS").mkdir()
    (machine / "SYS" / "version").write_text("0.1.0\n")
    (machine / "SYS" / "refcnt").write_text("3\n")
    assert "module   loaded, version 0.1.0, 3 in use\n" in run("status").stdout


def test_a_program_that_fails_is_one_line() -> None:
    with pytest.raises(verb.DeepUMError, match=r"^unloading: no such thing$"):
        verb.call("sh", "-c", "echo first >&2; echo no such thing >&2; exit 1", what="unloading")
    with pytest.raises(verb.DeepUMError, match="no-such-program is not installed"):
        verb.call("no-such-program", what="building")
    assert verb.call("echo", "yes", what="saying") == "yes\n"


def test_the_verb_is_a_group() -> None:
    assert isinstance(verb.command, click.Group)
    assert sorted(verb.command.commands) == ["build", "load", "status", "unload"]


def test_unavailable_is_said_in_one_line() -> None:
    reason = backend.unavailable()
    assert "\n" not in reason

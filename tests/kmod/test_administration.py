# SPDX-License-Identifier: Apache-2.0
"""What an administrator does with the module that was built: ``deepum kmod`` and udev, as root."""

from __future__ import annotations

import gc
import grp
import json
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import deepum
from deepum.backends import kmod as backend
from deepum.commands import cli
from deepum.commands import kmod as verb

pytestmark = pytest.mark.kmod

BLOCK = 2 << 20


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["kmod", *arguments])
    assert result.exit_code == status, result.output
    return result


def how_it_stands() -> dict:
    return json.loads(run("status", "--json").stdout)


@pytest.fixture
def idle_module() -> Iterator[None]:
    """Skip where the module cannot be unloaded and loaded again; leave it loaded."""
    if os.geteuid():
        pytest.skip("loading and unloading needs root")
    if not verb.built(verb.find_sources(None), platform.release()).exists():
        pytest.skip("the module for this kernel was not built in this checkout")
    gc.collect()  # sessions of other tests
    yield
    if not verb.SYS.exists():
        run("load")


def test_it_is_unloaded_and_loaded_again(idle_module: None) -> None:
    now = how_it_stands()
    assert (now["loaded"], now["usable"], now["users"]) == (True, True, 0)
    assert now["features"][:2] == ["touch", "drop-inactive"]
    assert run("load").stdout == "the module is loaded already\n"
    assert run("unload").stdout == "unloaded\n"
    now = how_it_stands()
    assert (now["loaded"], now["usable"], now["device"]) == (False, False, None)
    assert now["reason"] == "there is no /dev/deepum: load the module (deepum kmod load)"
    assert "module   not loaded\n" in run("status").stdout
    with pytest.raises(deepum.DeepUMError, match="there is no /dev/deepum"):
        deepum.Session("noop", memory_limit=16 * BLOCK, backend="kmod")
    assert run("load").stdout == "loaded\n"
    assert how_it_stands()["usable"]
    assert "module   loaded, version 0.1.0, 0 in use\n" in run("status").stdout


def test_it_is_loaded_from_where_dkms_installs(idle_module: None) -> None:
    if subprocess.run(["modprobe", "-n", "-q", "deepum"], check=False).returncode:
        pytest.skip("the module is not installed for this kernel (DKMS)")
    run("unload")
    assert run("load", "--source", "/nonexistent").stdout == "loaded\n"
    assert how_it_stands()["usable"]


def test_it_is_not_unloaded_while_in_use(idle_module: None) -> None:
    with deepum.Session("noop", memory_limit=16 * BLOCK, backend="kmod") as session:
        array = session.empty(20 * BLOCK, np.uint8)
        array[:: BLOCK // 2] = 7
        assert how_it_stands()["users"] > 0
        error = run("unload", status=2).stderr
        assert error.startswith("error: unloading: ")
        assert "in use" in error
        assert error.count("\n") == 1
        assert (array[:: BLOCK // 2] == 7).all()
    del array
    assert how_it_stands()["users"] == 0


def test_the_device_is_its_groups(idle_module: None, repo: Path) -> None:
    """The rule for udev is what gives the group access."""
    rules = Path("/run/udev/rules.d")
    if shutil.which("udevadm") is None:
        pytest.skip("there is no udev here")
    try:
        group = grp.getgrnam("render").gr_gid
    except KeyError:
        pytest.skip("there is no group render here")
    if (before := backend.unavailable()) != "":
        pytest.skip(before)
    rules.mkdir(parents=True, exist_ok=True)
    rule = rules / "99-deepum.rules"
    os.chown(verb.DEVICE, 0, 0)
    shutil.copy(repo / "kmod" / rule.name, rule)
    try:
        # Without its daemon: what it does when the device appears.
        done = subprocess.run(
            ["udevadm", "test", "--action=add", "/sys/class/misc/deepum"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        node = verb.DEVICE.stat()
        assert node.st_gid == group, done.stderr
        assert stat.S_IMODE(node.st_mode) == 0o660
    finally:
        rule.unlink()

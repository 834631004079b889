# SPDX-License-Identifier: Apache-2.0
"""``deepum kmod``: build, load and unload the kernel module, and say how it stands."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click

from deepum.commands.options import check_output, json_option, write_json
from deepum.errors import DeepUMError

DEVICE = Path("/dev/deepum")
SYS = Path("/sys/module/deepum")
MODULES = Path("/lib/modules")

release_option = click.option(
    "--release", metavar="RELEASE", help="Kernel to build for; the running one by default."
)
source_option = click.option(
    "--source",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="The kmod folder of deepum's sources; found by itself in a checkout.",
)


@click.group(short_help="Build, load and unload the kernel module.")
def command() -> None:
    """Build, load and unload the kernel module; see docs/kmod.md.

    ``deepum kmod status --json`` is for programs.
    """


def find_sources(source: str | None) -> Path:
    """Return the folder with the module's sources.

    Raises
    ------
    DeepUMError
        There is none: a wheel does not hold them.
    """
    checkout = Path(__file__).parents[3] / "kmod"
    folder = checkout if source is None else Path(source)
    if not (folder / "Kbuild").is_file():
        where = "an installed package does not hold them" if source is None else f"not in {folder}"
        raise DeepUMError(
            f"the module's sources are needed ({where}): give the kmod folder of deepum's "
            "repository with --source"
        )
    return folder.resolve()


def built(folder: Path, release: str) -> Path:
    """Return where the module for a kernel is built."""
    return folder.parent / "build" / "kmod" / release / "deepum.ko"


def call(*words: str, what: str) -> str:
    """Run a program; its last line is the error if it fails."""
    if shutil.which(words[0]) is None:
        raise DeepUMError(f"{what}: {words[0]} is not installed")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise DeepUMError(f"{what}: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout


def installed() -> bool:
    """Return whether the module is installed for the running kernel."""
    if shutil.which("modprobe") is None:  # containers have no need of it
        return False
    return subprocess.run(["modprobe", "-n", "-q", "deepum"], check=False).returncode == 0


def need_root(what: str) -> None:
    """Raise if this user may not load modules."""
    if os.geteuid():
        raise DeepUMError(f"{what} needs root: sudo deepum kmod {what}")


@command.command(short_help="Build deepum.ko for a kernel.")
@release_option
@source_option
def build(release: str | None, source: str | None) -> None:
    """Build deepum.ko for the running kernel, or for another one whose headers are installed."""
    folder = find_sources(source)
    release = release or platform.release()
    if not (MODULES / release / "build" / "Makefile").exists():
        raise DeepUMError(
            f"no headers for kernel {release}: sudo apt-get install linux-headers-{release}"
        )
    call("make", "-s", "-C", str(folder), f"RELEASE={release}", "module", what="building")
    click.echo(built(folder, release))


@command.command(short_help="Load the module.")
@source_option
def load(source: str | None) -> None:
    """Load the module: the one built here, or else the one installed (DKMS)."""
    if SYS.exists():
        click.echo("the module is loaded already")
        return
    need_root("load")
    try:
        file = built(find_sources(source), platform.release())
    except DeepUMError:
        file = None
    if file is not None and file.exists():
        call("insmod", str(file), what="loading")
    elif installed():
        call("modprobe", "deepum", what="loading")
    else:
        raise DeepUMError(
            f"no module for kernel {platform.release()}: build it first (deepum kmod build)"
        )
    click.echo("loaded")


@command.command(short_help="Unload the module.")
def unload() -> None:
    """Unload the module. Refused while a program uses it."""
    if not SYS.exists():
        click.echo("the module is not loaded")
        return
    need_root("unload")
    call("rmmod", "deepum", what="unloading")
    click.echo("unloaded")


def describe() -> dict[str, Any]:
    """Return how things stand."""
    from deepum.backends import kmod

    def text(path: Path) -> str | None:
        try:
            return path.read_text("ascii").strip()
        except OSError:
            return None

    features = 0
    reason = kmod.unavailable()
    if not reason:
        from deepum._core.kmod import probe

        features = probe()
    users = text(SYS / "refcnt")
    return {
        "loaded": SYS.exists(),
        "version": text(SYS / "version"),
        "users": None if users is None else int(users),
        "device": str(DEVICE) if DEVICE.exists() else None,
        "usable": not reason,
        "reason": reason,
        "features": [
            name
            for bit, name in enumerate(("touch", "drop-inactive", "uvm"))
            if features >> bit & 1
        ],
        "kernel": platform.release(),
        "headers": (MODULES / platform.release() / "build" / "Makefile").exists(),
        "nvidia_uvm": Path("/sys/module/nvidia_uvm").exists(),
    }


@command.command(short_help="Whether the module is loaded and can be used.")
@json_option("the status")
def status(json_file: str | None) -> None:
    """Say whether the module is loaded, can be used, and who does."""
    check_output(json_file)
    data = describe()
    if write_json(data, json_file):
        return
    if data["loaded"]:
        click.echo(f"module   loaded, version {data['version']}, {data['users']} in use")
    else:
        click.echo("module   not loaded")
    if data["usable"]:
        click.echo(f"device   {data['device']}, can be opened")
        click.echo(f"features {', '.join(data['features'])}")
    else:
        click.echo(f"device   {data['reason']}")
    headers = "with headers: deepum kmod build" if data["headers"] else "without headers"
    click.echo(f"kernel   {data['kernel']}, {headers}")
    click.echo(f"nvidia   nvidia-uvm is {'' if data['nvidia_uvm'] else 'not '}loaded")

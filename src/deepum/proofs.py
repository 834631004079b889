# SPDX-License-Identifier: Apache-2.0
"""What ``deepum doctor --coverage`` found of programs, kept between runs.

A finding holds for a script as it is, with the files beside it that it imported, the versions of
all packages that it imported, and the GPUs of the machine. Arguments are not part of it: they are
noted. Whatever has changed since makes it void.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.folders import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = 1
_GPUS = Path("/proc/driver/nvidia/gpus")


def keep(script: Path, arguments: Iterable[str], found: Mapping[str, Any]) -> Path:
    """Keep what was found of a script that has just run in this process; return the file."""
    path = _path_of(script)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "script": script.name,
        "arguments": list(arguments),
        "machine": machine(),
        "versions": _imported_versions(),
        "files": _imported_files(script.resolve().parent),
        "found": dict(found),
    }
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    beside.replace(path)
    return path


def find(script: Path) -> dict[str, Any] | None:
    """Return what was found of a script, None if nothing was or it holds no more."""
    try:
        content = json.loads(_path_of(script).read_text("utf-8"))
        if content["format"] != FORMAT or content["machine"] != machine():
            return None
        folder = script.resolve().parent
        same = all(_version(name) == had for name, had in content["versions"].items()) and all(
            _hash(folder / name) == had for name, had in content["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found: dict[str, Any] = content["found"]
    return found if same else None


def proved(script: Path | None = None) -> bool:
    """Tell whether every access of a script is known to be named by its launches.

    Parameters
    ----------
    script
        The file; the program's own, if None.
    """
    if script is None:
        own = getattr(sys.modules.get("__main__"), "__file__", None)
        if own is None:
            return False
        script = Path(own)
    found = find(script)
    return found is not None and found.get("covered") is True


def machine() -> list[str]:
    """Return the GPUs of this machine as the driver names them, and what Python runs on."""
    models = []
    try:
        for information in sorted(_GPUS.glob("*/information")):
            lines = information.read_text("utf-8", "replace").splitlines()
            models += [line.partition(":")[2].strip() for line in lines if line[:5] == "Model"]
    except OSError:
        pass
    return [*models, platform.machine()]


def _path_of(script: Path) -> Path:
    return cache_folder("coverage") / f"{_hash(script)}.json"


def _hash(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=20).hexdigest()


def _version(name: str) -> str:
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _imported_versions() -> dict[str, str]:
    owners = packages_distributions()
    modules = {name.partition(".")[0] for name in list(sys.modules)}
    packages = {owner for module in modules for owner in owners.get(module, ())}
    return {name: _version(name) for name in sorted({"python", "deepum", *packages})}


def _imported_files(folder: Path) -> dict[str, str]:
    # The script's own modules: what lies beside it and is no package of the environment.
    environment = Path(sys.prefix).resolve()
    files = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        path = Path(name).resolve()
        if path.is_relative_to(folder) and not path.is_relative_to(environment) and path.is_file():
            files[str(path.relative_to(folder))] = _hash(path)
    return files

# SPDX-License-Identifier: Apache-2.0
"""Results kept between runs, found again by everything that could change them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.errors import DeepUMError
from deepum.folders import cache_folder
from deepum.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deepum.reproduce.plan import Job

VERSION = 1


def default_folder() -> Path:
    """Return the user's cache folder for simulations."""
    return cache_folder("simulations")


def key_of(job: Job) -> str:
    """Return what names the result of a job: a hash of the trace, the machine, the settings and
    the code that would run.
    """  # noqa: D205
    machine = dataclasses.asdict(Machine.load(job.machine))
    for text in ("name", "title", "sources"):
        del machine[text]
    settings = {
        field.name: getattr(job, field.name)
        for field in dataclasses.fields(job)
        if field.name not in {"trace", "machine"}
    }
    content = {
        "version": VERSION,
        "trace": _file_hash(_path_of(job.trace)),
        "machine": machine,
        "settings": settings,
        "code": code_hash(),
        "policy": _policy_hash(job.policy),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


@cache
def _path_of(trace: str) -> Path:
    from deepum.trace import Trace

    shipped = Trace.shipped()
    path = Path(trace)
    return shipped[trace] if trace in shipped and not path.is_file() else path


def _file_hash(path: Path) -> str:
    try:
        status = path.stat()
        return _contents(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return ""  # the job itself will say what is wrong


@cache
def _contents(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


@cache
def code_hash() -> str:
    """Return a hash of the code that a simulation runs: the compiled core and what drives it."""
    import deepum._core

    package = Path(deepum._core.__file__).parent.parent
    files = [
        *(package / "_core").glob("*.so"),
        *(package / "_core").glob("*.pyd"),
        *(package / "_core").glob("*.py"),
        *(package / "backends").glob("*.py"),
        *(package / "trace").glob("*.py"),
        package / "policy.py",
        package / "machine.py",
        package / "reproduce" / "runner.py",
    ]
    return _hash_files(files)


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _policy_hash(name: str) -> str:
    # The folder of the policy's module: a policy may be made of several files.
    from deepum import policy

    try:
        found = policy.find(name)
    except DeepUMError as error:
        return f"missing: {error}"
    module = sys.modules.get((found if isinstance(found, type) else type(found)).__module__)
    file = name.rpartition(":")[0]
    place = file if file.endswith(".py") else getattr(module, "__file__", None)
    return _hash_files(Path(place).parent.glob("*.py")) if place else ""


class Cache:
    """A folder of small JSON files, one for each result.

    A folder that cannot be written costs a warning, once; work goes on without it.

    Parameters
    ----------
    folder
        Where results are kept; made when the first one is stored.
    warn
        Called with a text if the folder does not work.
    """

    def __init__(self, folder: Path, warn: Callable[[str], object]) -> None:
        if folder.exists() and not folder.is_dir():
            raise DeepUMError(f"{folder} is not a folder: the cache needs one")
        self.folder = folder
        self._warn = warn
        self._broken = False

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> Any:
        """Return what is stored under a key, or None. A damaged entry counts as none."""
        try:
            entry = json.loads(self._file(key).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return entry.get("value") if isinstance(entry, dict) and entry.get("key") == key else None

    def put(self, key: str, value: Any) -> None:
        """Store a value; readers see all of it or nothing."""
        if self._broken:
            return
        path = self._file(key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False
            ) as stream:
                temporary = Path(stream.name)
                json.dump({"key": key, "value": value}, stream)
            temporary.replace(path)
        except OSError as error:
            self._broken = True
            self._warn(f"results are not kept: {self.folder}: {error.strerror or error}")
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()

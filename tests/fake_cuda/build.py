# SPDX-License-Identifier: Apache-2.0
"""Compiles the fake driver, once for each state of its sources, under build/fake_cuda."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Large arrays stay in a heap of huge pages: faults would take most of the tests' time.
MALLOC = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "mmap_threshold=1073741824", "trim_threshold=4294967296")
)
SANITIZERS = {"": "", "thread": "libtsan.so", "address": "libasan.so"}


def missing() -> str | None:
    """Return why the fake cannot be built here, or None."""
    for tool in ("make", os.environ.get("CXX", "g++")):
        if not shutil.which(tool):
            return f"the fake driver needs {tool}: install it"
    return None


def built(sanitize: str = "") -> Path:
    """Return the folder of libcuda.so.1, libcupti.so.13 and `exercise`; skip without a compiler."""
    if reason := missing():
        pytest.skip(reason)
    digest = hashlib.sha256(sanitize.encode())
    for source in sorted([HERE / "Makefile", *(HERE / "src").iterdir()]):
        digest.update(source.read_bytes())
    folder = ROOT / "build" / "fake_cuda" / f"{sanitize or 'plain'}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # several test processes may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            compiler = os.environ.get("CXX", "g++")
            command = ["make", "-s", "-C", str(HERE), "-j2", f"OUT={folder}", f"CXX={compiler}"]
            done = subprocess.run(
                [*command, f"SANITIZE={sanitize}"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.fail(f"the fake driver does not compile:\n{done.stdout}{done.stderr}")
            (folder / "done").touch()
    return folder


def core(sanitize: str) -> Path:
    """Return a folder that holds the package with its core built for a sanitizer."""
    digest = hashlib.sha256(sanitize.encode())
    sources = [*(ROOT / "src/deepum/_core").glob("*.p[xy]*"), *(ROOT / "src").rglob("*.py")]
    for source in sorted({*sources, *(ROOT / "src/deepum/_core").glob("*.h")}):
        digest.update(source.read_bytes())
    folder = ROOT / "build" / "fake_cuda" / f"core-{sanitize}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build_core(folder, sanitize)
            (folder / "done").touch()
    return folder


def _build_core(folder: Path, sanitize: str) -> None:
    skip = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("src", "kmod", "policies"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip, dirs_exist_ok=True)
    (folder / "src" / "deepum_policies").symlink_to(folder / "policies")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder)
    flag = f"-fsanitize={sanitize}"
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, "CFLAGS": f"{flag} -g1 -O1 -w", "LDFLAGS": flag},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"the core does not compile for the {sanitize} sanitizer:\n{done.stderr}")


def runtime(sanitize: str) -> str:
    """Return the sanitizer's library that a program not built with it must load first."""
    compiler = os.environ.get("CXX", "g++")
    name = SANITIZERS[sanitize]
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return str(Path(found.stdout.strip()).resolve())


def environment(sanitize: str = "", *, with_core: bool = False, **extra: str) -> dict[str, str]:
    """Return the environment in which a program finds the fake instead of a driver.

    `with_core` makes it find the package, too, built for the sanitizer.
    """
    folder = built(sanitize)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), **extra}
    env["DEEPUM_CUPTI"] = str(folder / "libcupti.so.13")
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before a fork
    if with_core:
        env["PYTHONPATH"] = str(core(sanitize) / "src")
    env["GLIBC_TUNABLES"] = MALLOC
    env["TSAN_OPTIONS"] = f"die_after_fork=0 exitcode=66 suppressions={HERE / 'tsan.supp'}"
    env["ASAN_OPTIONS"] = "detect_leaks=0 exitcode=66"
    if sanitize:
        env["LD_PRELOAD"] = runtime(sanitize)
    return env

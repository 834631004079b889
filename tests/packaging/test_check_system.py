# SPDX-License-Identifier: Apache-2.0
"""tools/check-system says in one line what a machine lacks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """Return a folder of programs that holds a shell and nothing else."""
    shell = shutil.which("sh")
    assert shell
    (tmp_path / "sh").symlink_to(shell)
    return tmp_path


def _run(
    repo: Path, path: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(repo / "tools" / "check-system"), *arguments],
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def _program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_a_machine_that_built_this_passes(repo: Path) -> None:
    result = _run(repo, os.environ["PATH"], "--python")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("python3")


def test_a_bare_machine_gets_one_line_with_the_command(repo: Path, bare_path: Path) -> None:
    result = _run(repo, str(bare_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(
        "apt-get install -y python3 python3-venv python3-dev gcc g++ make\n"
    )


def test_missing_packages_are_listed_for_scripts(repo: Path, bare_path: Path) -> None:
    for name in ("gcc", "make"):
        _program(bare_path, name, "exit 0")
    result = _run(repo, str(bare_path), "--packages")
    assert result.returncode == 0
    assert result.stdout == "python3 python3-venv python3-dev g++\n"


def test_a_python_that_is_too_old_is_named(repo: Path, bare_path: Path) -> None:
    # Refuses the version check, answers the question for its version.
    _program(bare_path, "python3", 'case "$2" in *sys.exit*) exit 1;; esac\necho 3.10.12')
    result = _run(repo, str(bare_path))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "python3 is 3.10.12" in result.stderr


def test_a_named_python_that_does_not_run_is_named(repo: Path, bare_path: Path) -> None:
    result = _run(repo, str(bare_path), PYTHON="python3.99")
    assert result.returncode == 1
    assert "python3.99 is not one" in result.stderr


def test_debian_python_without_venv_and_headers(repo: Path, bare_path: Path) -> None:
    _program(bare_path, "python3.12", 'case "$2" in *version_info*) exit 0;; esac\nexit 1')
    for name in ("gcc", "g++", "make"):
        _program(bare_path, name, "exit 0")
    result = _run(repo, str(bare_path), "--packages")
    assert result.stdout == "python3.12-venv python3.12-dev\n"

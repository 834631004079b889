# SPDX-License-Identifier: Apache-2.0
"""What an installed deepum promises before anything is computed."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import deepum

HEAVY = ("torch", "cuda", "click", "rich", "matplotlib")


def _modules_after(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(result.stdout)}


@pytest.mark.parametrize(
    "statement",
    [
        "import deepum",
        "from deepum import Session, Policy, Trace, Machine, DeepUMError, simulate, __version__",
    ],
)
def test_import_is_lean(statement: str) -> None:
    assert _modules_after(statement).isdisjoint(HEAVY)


def test_every_export_resolves() -> None:
    for name in deepum.__all__:
        assert getattr(deepum, name) is not None
        assert name in dir(deepum)


def test_unknown_export_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = deepum.sesion  # type: ignore[attr-defined]


def test_version_is_the_distributions() -> None:
    assert deepum.__version__ == importlib.metadata.version("deepum")


def test_version_of_a_tree_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.delitem(vars(deepum), "__version__", raising=False)
    assert deepum.__version__ == "0+unknown"
    monkeypatch.delitem(vars(deepum), "__version__")


def test_policy_entry_points_load() -> None:
    found = {
        point.name: point.load()
        for point in importlib.metadata.entry_points(group="deepum.policies")
        if point.dist is not None and point.dist.name == "deepum"
    }
    assert set(found) == {
        "noop", "single-level", "arguments", "chained", "oracle", "hints", "lms", "lms-mod",
    }  # fmt: skip
    for policy in found.values():
        assert issubclass(policy, deepum.Policy)
        assert policy.__doc__


def test_console_script_is_the_module_entry() -> None:
    (script,) = (
        point
        for point in importlib.metadata.entry_points(group="console_scripts")
        if point.name == "deepum"
    )
    assert script.load() is importlib.import_module("deepum.__main__").main


def test_compiled_modules_have_stubs(repo: Path) -> None:
    core = repo / "src" / "deepum" / "_core"
    sources = sorted(core.glob("*.pyx"))
    assert sources
    assert [path.name for path in sources if not path.with_suffix(".pyi").exists()] == []
    for path in sources:
        importlib.import_module(f"deepum._core.{path.stem}")


def test_the_package_carries_its_data() -> None:
    root = Path(deepum.__file__).parent
    assert (root / "py.typed").exists()
    assert {path.stem for path in (root / "machines").glob("*.toml")} >= {
        "v100-pcie3-32g",
        "v100-pcie3-16g",
        "a100-pcie4-40g",
        "h200-pcie5",
    }
    assert (root / "traces" / "gpt2-xl-b3.trace").exists()


def test_every_source_file_names_its_licence(repo: Path) -> None:
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".h", ".cpp", ".toml"}
    folders = ("src", "policies", "tests", "tools")
    files = [
        path
        for folder in folders
        for path in (repo / folder).rglob("*")
        if path.suffix in suffixes and path.stat().st_size and "egg-info" not in str(path)
        # what Cython has translated is nobody's source
        if not (path.suffix == ".cpp" and path.with_suffix(".pyx").exists())
    ]
    assert files
    wanting = [
        str(path.relative_to(repo))
        for path in files
        if "SPDX-License-Identifier" not in path.read_text(encoding="utf-8")[:400]
    ]
    assert wanting == []

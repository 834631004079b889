# SPDX-License-Identifier: Apache-2.0
"""The documentation does what it says: marked examples run, links lead somewhere.

A fenced block that follows a line ``<!-- runnable -->`` is run. Python blocks of one file share
their names, as they do in a reader's head. In console blocks the lines that begin with ``$ deepum``
are run and must succeed.
"""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepum import Machine, Policy
from deepum.backends.sim import ENGINE_OPTIONS, VMM_OPTIONS
from deepum.policy import HOOKS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(
    r"^<!-- runnable -->\n+```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([\w-]+))?\)")


def _blocks(page: Path) -> list[tuple[int, str, str]]:
    """Return (line, language, text) of each runnable block."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start("text")) + 1, match["language"], match["text"])
        for match in BLOCK.finditer(text)
    ]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _links() -> Iterator[tuple[Path, str, str | None]]:
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for match in LINK.finditer(text):
            yield page, match[1], match[2]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples may write files; not into the source tree."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p)], ids=lambda page: page.name)
def test_runnable_blocks_run(page: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "__example__"}
    for line, language, text in _blocks(page):
        where = f"{page.name}:{line}"
        if language == "python":
            # Blank lines keep the line numbers of tracebacks those of the page.
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
        elif language == "console":
            _run_console(where, text)
        else:
            pytest.fail(f"{where}: do not know how to run {language}")


def _run_console(where: str, text: str) -> None:
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ deepum")]
    assert commands, f"{where}: no command in a runnable block"
    for command in commands:
        result = subprocess.run(
            [sys.executable, "-m", *shlex.split(command, comments=True)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{where}: {command}\n{result.stderr}"


def test_the_policy_page_has_a_complete_example() -> None:
    languages = [language for _, language, _ in _blocks(ROOT / "docs" / "writing-a-policy.md")]
    assert "python" in languages


def test_the_profile_page_has_every_entry() -> None:
    page = (ROOT / "docs" / "machine-profiles.md").read_text(encoding="utf-8")
    fields = [field.name for field in dataclasses.fields(Machine) if field.name != "sources"]
    assert [name for name in fields if f"`{name}`" not in page] == []


def test_the_policy_page_has_every_hook_and_switch() -> None:
    page = (ROOT / "docs" / "writing-a-policy.md").read_text(encoding="utf-8")
    hooks = [f"`{hook}(" for hook in HOOKS]
    internal = {"name", "native", "defaults"}
    switches = [f"`{name}`" for name in Policy.__annotations__ if name not in internal]
    assert [name for name in hooks + switches if name not in page] == []


def test_the_page_on_choosing_has_every_engine_option() -> None:
    page = (ROOT / "docs" / "choosing-a-policy.md").read_text(encoding="utf-8")
    assert [name for name in {**ENGINE_OPTIONS, **VMM_OPTIONS} if f"`{name}`" not in page] == []


def test_links_lead_somewhere() -> None:
    broken = []
    for page, target, anchor in _links():
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            broken.append(f"{page.name}: {target}")
        elif anchor and path.suffix == ".md" and anchor not in _anchors(path):
            broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_every_page_is_reachable_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


@pytest.mark.slow
def test_the_figures_in_the_readme_are_the_simulators() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "readme_results.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_page_on_vmm_shows_what_was_simulated() -> None:
    page = (ROOT / "docs" / "vmm-defaults.md").read_text(encoding="utf-8")
    results = ROOT / "bench" / "results" / "sim-vmm.json"
    if not results.exists():
        pytest.skip("no bench folder beside the tests")
    rows = [row for row in json.loads(results.read_text())["rows"] if row["sweep"] != "timeline"]
    times = [row.get("time_s") or row["bound_s"] for row in rows]
    assert [time for time in times if f"{time:.3f}" not in page] == []

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Change one comparison, connective or constant of the core at a time; see whether a test fails.

    tools/mutate.py --modules exec_table,engine --sample 40 --json mutations.json

Each change is compiled into a copy of the tree, and the tests that are to find it run there until
the first one fails. A change that no test notices is printed with its line. Needs the development
environment (`make test` makes it); takes about half a minute a change.

DESIGN: mutation testers for Python (mutmut, cosmic-ray) change what the interpreter reads; nothing
of theirs reaches code that is translated to C first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("src/deepum/_core")
TESTS = {
    "exec_table": "tests/core tests/policy",
    "block_table": "tests/core tests/policy",
    "correlator": "tests/core tests/policy",
    "residency": "tests/core tests/policy tests/sim/test_reference.py",
    "engine": "tests/core tests/policy tests/sim/test_reference.py tests/sim/test_vmm.py",
    "chained": "tests/core tests/policy tests/sim/test_reference.py",
    "single_level": "tests/core tests/policy tests/sim/test_reference.py",
    "foresight": "tests/core tests/sim/test_next_use.py tests/sim/test_reference.py",
    "deferred": "tests/core tests/sim/test_next_use.py tests/sim/test_reference.py",
    "memory_map": "tests/core",
    "frame_pool": "tests/core",
    "host_pool": "tests/core",
    "chunk_map": "tests/core",
    "steps": "tests/core",
    "simulator": "tests/sim",
    "vmm_simulator": "tests/sim",
    "lowering": "tests/sim",
    "oracle": "tests/sim",
    "bound": "tests/sim",
}
"""The tests that are to find changes of a module."""

SWAPS = {
    "<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "!=": ["=="],
    "and": ["or"], "or": ["and"], "not": [""], "min": ["max"], "max": ["min"], "<<": [">>"],
    ">>": ["<<"], "+": ["-"], "-": ["+"], "True": ["False"], "False": ["True"],
}  # fmt: skip
"""What a token is exchanged for; integers become one more."""

SECONDS = 600
"""How long the tests of one change may take; a change that makes them hang is found."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One token of a module, and what it becomes."""

    module: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the module's text with the change."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line.startswith(self.old, self.column), self
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        return "".join(lines)


def mutations(module: str) -> list[Mutation]:
    """List all changes of a module: what runs, not declarations, comments and strings."""
    path = ROOT / CORE / f"{module}.pyx"
    text = path.read_text()
    found = []
    skipped = ("cimport", "from", "import", "ctypedef", "@", "raise", "assert", "return 0")
    with path.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            line, column = token.start
            code = token.line.strip()
            # A declaration has something to change only behind its "=".
            if token.start[0] != token.end[0] or code.startswith(skipped):
                continue
            if code.startswith("cdef") and not (
                "=" in token.line[:column] and "(" not in code.split("=")[0]
            ):
                continue
            casts = [match.span() for match in re.finditer(r"<\w+ ?\**>", token.line)]
            if any(low <= column < high for low, high in casts):
                continue
            if token.type == tokenize.NUMBER and re.fullmatch(r"\d+", token.string):
                new = [str(int(token.string) + 1)]
            else:
                new = SWAPS.get(token.string, [])
            # "*" and "&" aside: pointers look the same. "-" and "+" only between two operands.
            if token.string in "+-" and not re.search(r"[\w)\]] $", token.line[:column]):
                new = []
            found += [Mutation(module, line, column, token.string, one) for one in new]
    assert all(mutation.apply(text) != text for mutation in found)
    return found


class Workplace:
    """A copy of the tree in which one change at a time is built and tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "policies", "tests", "kmod/include"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        for name in ("docs", "bench", "examples", "tools", "README.md"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("pyproject.toml", "setup.py"):
            shutil.copy2(ROOT / name, folder / name)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "HYPOTHESIS_DATABASE_FILE": str(folder / "examples.db"),
        }

    def build(self) -> bool:
        """Translate and compile what has changed; say whether that worked."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        return self._run(command, SECONDS) == 0

    def judge(self, mutation: Mutation) -> str:
        """Return "killed", "survived", or "stillborn" if it does not compile."""
        path = self.folder / CORE / f"{mutation.module}.pyx"
        original = path.read_text()
        built = next((self.folder / CORE).glob(f"{mutation.module}.*.so"))
        kept = built.read_bytes()
        try:
            path.write_text(mutation.apply(original))
            if not self.build():
                return "stillborn"
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
            command += ["--timeout=120", "-m", "not torch and not gpu and not kmod"]
            command += TESTS[mutation.module].split()
            return "survived" if self._run(command, SECONDS) == 0 else "killed"
        finally:
            path.write_text(original)
            built.unlink()  # somebody may have it mapped
            built.write_bytes(kept)
            os.utime(built)

    def _run(self, command: list[str], seconds: int) -> int:
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return -9


def main() -> int:
    """Judge changes and print those that nothing notices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default="exec_table,block_table,correlator,residency,engine")
    parser.add_argument("--sample", type=int, help="so many changes of each module, at random")
    parser.add_argument("--lines", help="only lines from-to of the one module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen: list[Mutation] = []
    for module in given.modules.split(","):
        some = mutations(module)
        if given.lines:
            low, high = map(int, given.lines.split("-"))
            some = [one for one in some if low <= one.line <= high]
        if given.sample and given.sample < len(some):
            some = random.Random(given.seed).sample(some, given.sample)
        chosen += sorted(some, key=lambda one: one.line)
    results = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        places: SimpleQueue[Workplace] = SimpleQueue()
        for job in range(given.jobs):
            folder = Path(scratch) / str(job)
            folder.mkdir()
            places.put(Workplace(folder))

        def judge(mutation: Mutation) -> tuple[Mutation, str]:
            place = places.get()
            try:
                return mutation, place.judge(mutation)
            finally:
                places.put(place)

        with ThreadPoolExecutor(given.jobs) as pool:
            for number, (mutation, verdict) in enumerate(pool.map(judge, chosen), 1):
                results.append({**dataclasses.asdict(mutation), "verdict": verdict})
                if verdict != "killed":
                    text = (ROOT / CORE / f"{mutation.module}.pyx").read_text().splitlines()
                    print(
                        f"{mutation.module}.pyx:{mutation.line}: {verdict}: {mutation.old} -> "
                        f"{mutation.new or 'nothing'}: {text[mutation.line - 1].strip()}",
                        flush=True,
                    )
                elif sys.stderr.isatty():
                    print(f"{number} of {len(chosen)}", end="\r", file=sys.stderr, flush=True)
                if given.json:
                    given.json.write_text(json.dumps(results, indent=1) + "\n")
    count = Counter(row["verdict"] for row in results)
    alive = len(results) - count["stillborn"]
    print(f"{count['killed']} of {alive} changes were noticed")
    return 1 if count["survived"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

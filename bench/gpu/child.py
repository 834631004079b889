# SPDX-License-Identifier: Apache-2.0
"""Points that each run in a process of their own, and the file that keeps each as it comes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

MARK = "POINT "
STEP = re.compile(r"^step (\d+\.\d+)", re.MULTILINE)
"""What a point writes on standard error after each step."""


def run(script: str, task: dict, timeout: float) -> dict:
    """Run one point: ``script --point TASK`` in a new process.

    Returns what it printed after `MARK`, or ``{"error": …, "stderr": …}``. A process that does not
    end in time is killed; what it wrote on standard error until then is kept, and how long the
    steps took that it ended.
    """
    command = [sys.executable, "-u", script, "--point", json.dumps(task)]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # for determinism
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        written = (error.stderr or b"").decode(errors="replace")
        steps = [float(seconds) for seconds in STEP.findall(written)]
        ended = {"step_s_all": steps} if steps else {}
        return {"error": f"no end in {timeout:g} s", "stderr": written[-3000:], **ended}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :])
    return {"error": f"exit status {done.returncode}", "stderr": done.stderr[-3000:]}


def is_child() -> bool:
    """Return whether this process is to run one point and nothing else."""
    return sys.argv[1:2] == ["--point"]


def answer(point: dict) -> None:
    """Hand a point to the parent and end at once: nothing that hangs at exit may cost it."""
    print(MARK + json.dumps(point), flush=True)
    os._exit(0)


def task() -> dict:
    """Return what this process is to do."""
    return json.loads(sys.argv[2])


class Results:
    """A JSON file of points, written anew after each: an interrupted run keeps what it has.

    Parameters
    ----------
    path
        The file; None keeps nothing.
    head
        What the file begins with.
    resume
        Whether points that are in the file already are kept and not measured again.
    key
        The fields that tell points apart.
    """

    def __init__(
        self, path: Path | None, head: dict, *, resume: bool = False, key: tuple[str, ...]
    ) -> None:
        self._path, self._head, self._key = path, head, key
        self.points: list[dict] = []
        if resume and path is not None and path.exists():
            old = json.loads(path.read_text("utf-8"))
            self.points = [point for point in old["points"] if "error" not in point]
            if self.points:  # the whole file says when it began, and how it was made
                self._head = {name: value for name, value in old.items() if name != "points"}
                if "command" in head:
                    self._head["command"] = f"{old['command']} && {head['command']}"

    def find(self, **fields: object) -> dict | None:
        """Return the point with these fields, if it is there."""
        for point in self.points:
            if all(point.get(name) == fields.get(name) for name in self._key):
                return point
        return None

    def add(self, point: dict) -> dict:
        """Keep a point, in the file too."""
        self.points.append(point)
        if self._path is not None:
            text = json.dumps({**self._head, "points": self.points}, indent=1) + "\n"
            beside = self._path.with_suffix(".part")
            beside.write_text(text, "utf-8")
            beside.replace(self._path)
        return point

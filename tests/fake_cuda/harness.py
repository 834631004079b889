# SPDX-License-Identifier: Apache-2.0
"""Runs tests where the fake driver takes the place of a real one.

A test marked with :func:`on_fake` runs in a process of its own, forked from one that was started
with the fake first in the library path. The driver is named when a process starts, and what a test
does to it (a lost context, a hang) must not reach the next one.
"""

import atexit
import functools
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .build import ROOT, environment

Test = Callable[..., None]


class Nursery:
    """A process that forks one child for each test."""

    def __init__(self, sanitize: str = "", with_core: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_cuda.child"],
            cwd=ROOT,
            env=environment(sanitize, with_core=with_core),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, function: str, settings: dict, kwargs: dict, timeout: float) -> None:
        """Run one test; its failure is raised here, with all that it wrote."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "output"
            order = [module, function, settings, kwargs, str(output), timeout]
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
            if not answer:
                pytest.fail(f"the process that runs the tests ended: {self.process.wait()}")
            status = json.loads(answer)
            text = output.read_text(errors="replace") if output.exists() else ""
        sys.stdout.write(text)
        if status["skipped"]:
            pytest.skip(text.strip().splitlines()[-1])
        if status["error"]:
            pytest.fail(f"{status['error']}\n{text}", pytrace=False)

    def close(self) -> None:
        """End the process; children have ended before."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@functools.cache
def nursery(sanitize: str = "", with_core: bool = False) -> Nursery:
    """Return the one nursery of this test process; it ends with it."""
    made = Nursery(sanitize, with_core)
    atexit.register(made.close)
    return made


def on_fake(
    *, sanitize: str = "", with_core: bool = False, timeout: float = 120, **settings: int
) -> Callable[[Test], Test]:
    """Run a test on the fake driver.

    The test's first parameter, `driver`, is a started :class:`~tests.fake_cuda.steer.Driver`; its
    others are pytest's and must be plain data. `settings` are applied before the driver starts.
    With `sanitize`, the fake is built for a sanitizer, and the core too if `with_core`.
    """

    def decorate(test: Test) -> Test:
        parameters = list(inspect.signature(test).parameters.values())[1:]

        @functools.wraps(test)
        def wrapper(**kwargs: Any) -> None:
            module = "tests." + ".".join(
                Path(inspect.getfile(test)).relative_to(ROOT / "tests").with_suffix("").parts
            )
            nursery(sanitize, with_core).run(module, test.__name__, settings, kwargs, timeout)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.on_fake = test  # type: ignore[attr-defined]
        return wrapper

    return decorate

# SPDX-License-Identifier: Apache-2.0
"""The process that `harness.Nursery` starts: forks, runs a test, says how it went."""

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path


def main() -> None:
    """Read one order a line, answer with one line each."""
    sys.path.insert(0, str(Path.cwd()))
    for line in sys.stdin:
        module, function, settings, kwargs, output, timeout = json.loads(line)
        try:
            importlib.import_module(module)  # here, so that each file is imported once
        except ImportError:
            answer(f"cannot import {module}: {traceback.format_exc()}")
            continue
        sys.stdout.flush()
        gc.freeze()  # or the child's collections copy all of this process's pages
        pid = os.fork()
        if pid == 0:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for standard in (1, 2):
                os.dup2(descriptor, standard)
            sys.stdin.close()
            run(module, function, settings, kwargs)
            return
        watch(pid, timeout)


def run(module: str, function: str, settings: dict, kwargs: dict) -> None:
    """Run a test in the child, which then ends as any program does."""
    from .steer import Driver

    faulthandler.enable()
    wrapper = getattr(sys.modules[module], function)
    driver = Driver(**settings)
    try:
        driver.start()
        wrapper.on_fake(driver, **kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        if type(error).__name__ == "Skipped":
            print(error)
            sys.exit(77)
        traceback.print_exc()
        sys.exit(1)


def watch(pid: int, timeout: float) -> None:
    """Wait for a child, but not for ever."""
    handle = os.pidfd_open(pid)
    late = not select.select([handle], [], [], timeout)[0]
    if late:
        os.kill(pid, signal.SIGABRT)  # faulthandler shows where it hangs
        if not select.select([handle], [], [], 10)[0]:
            os.kill(pid, signal.SIGKILL)
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if late:
        answer(f"no end after {timeout} s")
    elif status == 77:
        answer("", skipped=True)
    elif status == 66:
        answer("the sanitizer has something to say")
    else:
        answer(f"ended with {status}" if status else "")


def answer(error: str, skipped: bool = False) -> None:
    """Say how a test went."""
    print(json.dumps({"error": error, "skipped": skipped}), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: help, version, errors, exit statuses, and how fast it starts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import deepum
from deepum.commands import VERBS, cli, one_line
from deepum.errors import DeepUMError, TraceError


def python(code: str, **values) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, **values
    )


def test_help_lists_every_verb(run):
    text = run("--help").stdout
    for verb in VERBS:
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(run, verb):
    arguments = (verb, *{"bench": ("core",), "kmod": ("status",)}.get(verb, ()))
    text = run(*arguments, "-h").stdout
    assert "--json" in text


def test_version(run):
    assert run("--version").stdout == f"deepum {deepum.__version__}\n"


def test_unknown_verb(run):
    assert "no verb 'simulat'; did you mean simulate?" in run("simulat", status=2).stderr
    assert "no verb 'xyzzy'; verbs: demo," in run("xyzzy", status=2).stderr


def test_group_without_such_a_verb():
    assert cli.get_command(click.Context(cli), "xyzzy") is None


def test_unknown_option(run):
    assert "No such option" in run("info", "--nope", status=2).stderr


def test_error_is_one_line(run):
    result = run("info", "no-such-trace", status=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("how", ["option", "environment"])
def test_traceback_on_request(how, monkeypatch):
    arguments = ["info", "no-such-trace"]
    if how == "option":
        arguments.insert(0, "--traceback")
    else:
        monkeypatch.setenv("DEEPUM_TRACEBACK", "1")
    with pytest.raises(TraceError):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)


@pytest.fixture
def failing(monkeypatch):
    """Replace `policies` by a verb that raises what it is given."""

    def replace(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr("deepum.commands.policies.command", command)

    return replace


def test_interrupt(run, failing):
    failing(KeyboardInterrupt())
    assert run("policies", status=130).stderr.strip() == "interrupted"


def test_interrupt_with_traceback(failing):
    failing(KeyboardInterrupt())
    result = CliRunner().invoke(cli, ["--traceback", "policies"])
    assert result.exit_code == 1  # click's own way


def test_operating_system_errors(run, failing):
    failing(PermissionError(13, "Permission denied", "some/file"))
    assert run("policies", status=2).stderr == "error: some/file: Permission denied\n"


def test_closed_pipe_is_quiet(failing):
    failing(BrokenPipeError(32, "Broken pipe"))
    result = CliRunner().invoke(cli, ["policies"])
    assert result.exit_code == 1
    assert result.output == ""


def test_other_exceptions_are_not_hidden(run, failing):
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        run("policies")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DeepUMError("two\n  lines"), "two lines"),
        (DeepUMError(), "DeepUMError"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_one_line(error, text):
    assert one_line(error) == text


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from deepum.__main__ import main\n"
        "sys.argv = ['deepum', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'rich', 'matplotlib', 'torch', 'cuda'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "Usage: deepum" in done.stdout


def test_importing_the_package_loads_no_command_line():
    done = python("import sys, deepum; assert not {'click', 'rich'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_module_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "deepum", "info", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no trace")


def children_of(process):
    """Return the processes that a process has started and not yet seen the end of."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()


@pytest.fixture
def simulating(trace_file, tmp_path):
    """A run that would take hours, in two processes that are at work."""
    command = [sys.executable, "-m", "deepum", "simulate", trace_file]
    command += ["--iterations", "1000000", "--jobs", "2"]
    # Where the tests run in the background Ctrl-C is ignored, and whoever they start inherits that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        try:
            # Two workers and the process that looks after what they share.
            wait_for(lambda: len(children_of(child)) >= 3, "no workers")
            time.sleep(1)
            yield child
        finally:
            child.kill()
            signal.signal(signal.SIGINT, before)


def wait_for(condition, otherwise):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_stops_the_simulations(simulating):
    workers = children_of(simulating)
    simulating.send_signal(signal.SIGINT)
    assert simulating.wait(60) == 130
    assert simulating.stderr.read().strip() == "interrupted"
    wait_for(lambda: not any(Path("/proc", pid).exists() for pid in workers), "workers go on")


@pytest.mark.slow
def test_who_is_killed_leaves_no_simulations_behind(simulating):
    workers = children_of(simulating)
    simulating.kill()
    wait_for(lambda: not any(Path("/proc", pid).exists() for pid in workers), "workers go on")

# SPDX-License-Identifier: Apache-2.0
"""``deepum run``: what happens without a GPU, and how a script is run with one."""

import signal
import types

import pytest

from deepum.commands.run import _run, summary


def test_a_script_that_is_not_there(run, tmp_path):
    assert "nowhere.py: no such script" in run("run", "nowhere.py", status=2).stderr


@pytest.mark.parametrize("reason", ["no PyTorch", "no GPU"])
def test_a_machine_that_cannot_is_told_in_one_line(run, tmp_path, monkeypatch, reason):
    from deepum.backends import gpu
    from deepum.errors import BackendError

    def refuse():
        raise BackendError(reason)

    monkeypatch.setattr(gpu, "pytorch", refuse)
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    result = run("run", str(script), status=2)
    assert result.stderr.strip() == f"error: {reason}"
    assert "ran" not in result.stdout


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a text as `deepum run` does, with a session that has nothing to say."""

    def go(text, *arguments, refused=""):
        path = tmp_path / "train.py"
        path.write_text(text)
        monkeypatch.setattr("sys.argv", ["deepum"])
        monkeypatch.setattr("sys.path", ["first", *__import__("sys").path])
        return _run(str(path), False, arguments, types.SimpleNamespace(refused=refused))

    return go


def test_a_script_sees_its_own_arguments_and_folder(script, capsys):
    assert script("import sys; print(__name__, sys.argv[1:], sys.path[0])", "--lr", "1") == 0
    name, rest = capsys.readouterr().out.split(" ", 1)
    assert name == "__main__"
    assert rest.startswith("['--lr', '1']")


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('enough')", 1, "enough"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_script_ends_as_it_would_alone(script, capsys, text, status, says):
    assert script(text) == status
    assert says in capsys.readouterr().err


def test_a_traceback_is_the_scripts_own(script, capsys):
    assert script("def f():\n    1 / 0\nf()", refused="there was no room") == 1
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert text.count("File ") == 2
    assert "ZeroDivisionError" in text
    assert text.rstrip().endswith("deepum: there was no room")


def test_the_summary_is_one_line():
    stats = {
        "managed_bytes": 3 << 30, "bytes_in": 1 << 20, "bytes_out": 0, "bytes_dropped": 5 << 40,
        "launches": 12345, "fault_records": 0, "failure": "",
    }  # fmt: skip
    text = summary(stats)
    assert text == (
        "deepum: 12,345 launches, 3.0 GiB managed, 0 faults, 1.0 MiB in, 0 B out, 5.0 TiB dropped"
    )
    assert summary({**stats, "failure": "ValueError: x"}).endswith(
        "the engine stopped early: ValueError: x"
    )

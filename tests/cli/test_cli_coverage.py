# SPDX-License-Identifier: Apache-2.0
"""``deepum doctor --coverage`` without a GPU: verdicts, what is kept of them, and usage."""

import sys
import types

import pytest

from deepum import proofs
from deepum.doctor.coverage import Parking, judge
from deepum.errors import BackendError

STATS = {
    "failure": "", "set_aside": "", "fault_source": "uvm-tools", "unseen_launches": 0,
    "lost_events": 0, "lost_faults": 0, "gates_overdue": 0, "waits_given_up": 0,
    "gates_squeezed": 0, "move_errors": 0,
}  # fmt: skip


def parking(**values):
    made = Parking()
    made.launches, made.parkings, made.parked_blocks = 100, 14, 5
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("status", "seen", "stats", "values", "reason"),
    [
        (0, True, {}, {}, ""),
        (0, True, {}, {"outside": 3, "blocks": {7}}, "3 faults in 1 blocks fell outside"),
        (5, True, {}, {"outside": 3, "blocks": {7}}, "3 faults in 1 blocks fell outside"),
        (5, True, {}, {}, "status 5"),
        (-2, True, {}, {}, "status -2"),
        (0, True, {"failure": "ValueError: x"}, {}, "ended early: ValueError: x"),
        (0, True, {"set_aside": "slow"}, {}, "ended early: slow"),
        (0, True, {"fault_source": "none"}, {}, "faults are not seen"),
        (0, False, {}, {}, "not all launches"),
        (0, True, {"unseen_launches": 1}, {}, "not all launches"),
        (0, True, {"lost_events": 1}, {}, "not all launches"),
        (0, True, {"lost_faults": 1}, {}, "not all launches"),
        (0, True, {"gates_overdue": 2}, {}, "2 launches ran before"),
        (0, True, {"waits_given_up": 2}, {}, "2 launches ran before"),
        (0, True, {"gates_squeezed": 2}, {}, "2 launches ran before"),
        (0, True, {"move_errors": 2}, {}, "2 moves failed"),
        (0, True, {}, {"inside": 4}, "4 faults fell on memory that was named"),
        (0, True, {}, {"parked_blocks": 0}, "nothing was parked"),
    ],
)
def test_only_what_was_seen_whole_and_had_no_fault_is_covered(status, seen, stats, values, reason):
    found = judge(status, seen, STATS | stats, parking(**values))
    assert found.covered is not bool(reason)
    assert reason in found.reason
    assert reason in found.line()
    assert found.as_dict()["covered"] is found.covered


class View:
    """Of an engine in which some blocks are resident."""

    def __init__(self, *blocks):
        self.resident_blocks = list(blocks)

    def evict(self, block):
        self.resident_blocks.remove(block)
        return 1


def test_parking_leaves_what_the_launch_names():
    policy = Parking(every=2)
    view = View(1, 2, 3, 4)
    launch = types.SimpleNamespace(ranges=((2 << 21, 2 << 21),), exec_id=9, seq=1)
    policy.on_launch(view, launch)
    assert view.resident_blocks == [1, 2, 3, 4]
    policy.on_launch(view, launch)
    assert view.resident_blocks == [2, 3]
    assert (policy.parkings, policy.parked_blocks) == (1, 2)
    for block in (3, 4, 4):
        policy.on_fault(view, types.SimpleNamespace(block=block, exec_id=9, seq=1))
    assert (policy.inside, policy.outside, policy.blocks) == (1, 2, {4})
    assert policy.kernels == {9: 2}


# What is kept


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "program"
    folder.mkdir()
    path = folder / "train.py"
    path.write_text("import helper")
    (folder / "helper.py").write_text("x = 1")
    helper = types.ModuleType("helper")
    helper.__file__ = str(folder / "helper.py")
    monkeypatch.setitem(sys.modules, "helper", helper)
    return path


def test_a_finding_holds_while_nothing_has_changed(script, monkeypatch):
    assert proofs.find(script) is None
    kept = proofs.keep(script, ["--lr", "1"], {"covered": True, "launches": 3})
    assert proofs.find(script) == {"covered": True, "launches": 3}
    assert proofs.proved(script)
    assert list(kept.parent.iterdir()) == [kept]
    text = kept.read_text()
    assert '"helper.py"' in text
    assert '"numpy"' in text
    assert str(script.parent) not in text  # no folder of anybody's

    helper = script.with_name("helper.py")
    helper.write_text("x = 2")
    assert not proofs.proved(script)
    helper.unlink()
    assert not proofs.proved(script)
    helper.write_text("x = 1")
    assert proofs.proved(script)

    with monkeypatch.context() as patched:
        patched.setattr(proofs, "version", lambda name: "0")
        assert not proofs.proved(script)
    with monkeypatch.context() as patched:
        patched.setattr(proofs, "machine", lambda: ["another GPU"])
        assert not proofs.proved(script)
    copy = script.with_name("copy.py")
    copy.write_text(script.read_text())
    assert proofs.proved(copy)  # the same program beside the same files
    script.write_text("import helper  # changed")
    assert not proofs.proved(script)


def test_what_was_not_covered_is_not_proved(script):
    proofs.keep(script, [], {"covered": False})
    assert proofs.find(script) == {"covered": False}
    assert not proofs.proved(script)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', "\0"])
def test_a_file_that_makes_no_sense_proves_nothing(script, text):
    proofs.keep(script, [], {"covered": True}).write_text(text)
    assert proofs.find(script) is None
    assert not proofs.proved(script.with_name("gone.py"))


def test_the_programs_own_script_is_meant_where_none_is_named(script, monkeypatch):
    proofs.keep(script, [], {"covered": True})
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert proofs.proved()
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert not proofs.proved()


# The command


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--coverage",), "--coverage needs a SCRIPT"),
        (("train.py",), "a SCRIPT is for --coverage"),
        (("--coverage", "nowhere.py"), "nowhere.py: no such script"),
        (("--coverage", "-m", "no.such.module"), "no.such.module: no such module"),
    ],
)
def test_usage(run, arguments, says):
    assert says in run("doctor", *arguments, status=2).stderr


def test_a_machine_without_a_gpu_is_told_in_one_line(run, script, monkeypatch):
    from deepum.backends import gpu

    def refuse():
        raise BackendError("no GPU")

    monkeypatch.setattr(gpu, "pytorch", refuse)
    result = run("doctor", "--coverage", str(script), status=2)
    assert result.stderr.strip() == "error: no GPU"
    assert not proofs.proved(script)


@pytest.mark.parametrize("covered", [True, False])
@pytest.mark.parametrize("outside", [0, 2])
def test_what_was_seen_is_kept_and_said(run, script, monkeypatch, covered, outside):
    from deepum.doctor import coverage

    if covered and outside:
        return
    proofs.keep(script, [], {"covered": True})
    asked = {}

    def measure(run, **options):
        asked.update(options)
        return judge(0 if covered else 1, True, STATS, parking(outside=outside))

    monkeypatch.setattr(coverage, "measure", measure)
    result = run(
        "doctor", "--coverage", "--every", "3", str(script), "--lr", "1",
        status=0 if covered else 1,
    )  # fmt: skip
    assert asked == {"every": 3}
    assert result.stderr.startswith("deepum: covered" if covered else "deepum: not proved")
    # A run that only failed does not take back what another has found.
    assert proofs.proved(script) is not bool(outside)


def test_a_module_is_found_where_the_program_would(run, script, monkeypatch):
    from deepum.doctor import coverage

    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(coverage, "measure", lambda run, **_: judge(0, True, STATS, parking()))
    run("doctor", "--coverage", "-m", "train")
    assert proofs.proved(script)

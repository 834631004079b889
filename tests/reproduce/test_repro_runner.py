# SPDX-License-Identifier: Apache-2.0
"""The runner: cached, resumable, parallel, and clear about what goes wrong."""

import dataclasses
import json
import shutil

import pytest

from deepum import errors
from deepum.errors import DeepUMError, TraceError
from deepum.machine import Machine
from deepum.reproduce import cache as caches
from deepum.reproduce import runner as runners
from deepum.reproduce.cache import Cache, default_folder, key_of
from deepum.reproduce.plan import BOUND, FACTS, Job, options_of
from deepum.reproduce.runner import OUT_OF_MEMORY, SET_ASIDE, UNAVAILABLE, Outcome, Runner
from deepum.trace import Trace

MIB = 1 << 20


@pytest.fixture(scope="session")
def trace(tmp_path_factory) -> str:
    builder = Trace.builder("tiny", model="layers", batch=4, times="measured")
    weights = [builder.alloc(16 * MIB, "parameter") for _ in range(8)]
    for _ in range(3):
        builder.step()
        for layer, weight in enumerate(weights):
            builder.launch(f"layer{layer}", [(weight, "rw")], time_ns=400_000)
    path = tmp_path_factory.mktemp("traces") / "tiny.trace"
    builder.build().save(path)
    return str(path)


@pytest.fixture
def job(trace) -> Job:
    return Job(trace, policy="chained", memory=96 * MIB, iterations=4)


def no_warning(text: str) -> None:
    pytest.fail(f"warned: {text}")


def test_figures_of_a_run(job):
    outcome = Runner().run([job])[job]
    assert outcome.failure == ""
    assert outcome.figures["compute_s"] == pytest.approx(8 * 400e-6)
    assert outcome.figures["table_bytes"] > 0
    json.dumps(outcome.figures, allow_nan=False)


def test_bound_and_facts(trace):
    bound, facts = (
        Job(trace, memory=96 * MIB, what=BOUND),
        Job(trace, memory=96 * MIB, what=FACTS),
    )
    found = Runner().run([bound, facts])
    assert found[bound].figures["ideal_s"] == pytest.approx(8 * 400e-6)
    assert found[facts].figures["peak_bytes"] == 128 * MIB
    assert found[facts].figures["working_set_bytes"] == 16 * MIB


def test_running_out_of_memory_is_an_outcome(trace):
    job = Job(trace, memory=8 * MIB)
    outcome = Runner().run([job])[job]
    assert outcome.failure == OUT_OF_MEMORY
    assert "layer0" in outcome.reason
    assert outcome.figures == {}


@pytest.mark.skipif(not hasattr(errors, "OutOfMemoryError"), reason="no policy raises it yet")
def test_a_policy_that_runs_out_of_memory(job, monkeypatch):
    def simulate(*arguments, **settings):
        raise errors.OutOfMemoryError("no room for 4.00 GB")

    monkeypatch.setattr("deepum.backends.sim.simulate", simulate)
    outcome = Runner().run([job])[job]
    assert (outcome.failure, outcome.reason) == (OUT_OF_MEMORY, "no room for 4.00 GB")


def test_a_policy_that_is_missing_is_an_outcome_and_not_kept(trace, tmp_path):
    jobs = [Job(trace, policy="nobody"), Job(trace, policy="noop", options=(("nothing", 1),))]
    for _ in range(2):
        runner = Runner(cache=Cache(tmp_path / "cache", no_warning))
        assert {o.failure for o in runner.run(jobs).values()} == {UNAVAILABLE}
        assert runner.done == 2


def test_a_policy_that_breaks_is_not_taken_for_a_result(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(
        "import deepum\n\n\nclass Broken(deepum.Policy):\n"
        "    def on_launch(self, view, launch):\n        raise ZeroDivisionError('oh no')\n"
    )
    job = Job(trace, policy="broken.py:Broken", memory=96 * MIB)
    outcome = Runner().run([job])[job]
    assert outcome.failure == SET_ASIDE
    assert "oh no" in outcome.reason
    # It may be the machine's fault, so it is tried again the next time.
    for _ in range(2):
        runner = Runner(cache=Cache(tmp_path / "cache", no_warning))
        assert runner.run([job])[job].failure == SET_ASIDE
        assert runner.done == 1


def test_a_missing_trace_is_an_error():
    with pytest.raises(TraceError, match="no file"):
        Runner().run([Job("nowhere/none.trace")])


# Cache


def test_cached_results_are_the_same(job, tmp_path):
    first = Runner(cache=Cache(tmp_path / "cache", no_warning))
    second = Runner(cache=Cache(tmp_path / "cache", no_warning))
    assert first.run([job]) == second.run([job])
    assert (first.done, first.reused, second.done, second.reused) == (1, 0, 0, 1)
    # Asking once more needs neither.
    second.run([job])
    assert (second.done, second.reused) == (0, 1)


def test_everything_that_matters_is_in_the_key(job, trace, tmp_path):
    machine = Machine.load("v100-pcie3-32g")
    changes = [
        {"policy": "noop"},
        {"options": options_of({"rows": 512})},
        {"depth": 8},
        {"without": ("prefetch",)},
        {"iterations": 5},
        {"memory": None},
        {"what": BOUND},
        {"machine": dataclasses.replace(machine, fault_batch_s=1e-6)},
        {"trace": "bert-base-b29"},
    ]
    keys = [key_of(job), *(key_of(dataclasses.replace(job, **change)) for change in changes)]
    assert len(set(keys)) == len(keys)
    # The name of a file or a machine is nothing that a result depends on.
    copy = shutil.copy(trace, tmp_path / "copy.trace")
    same = dataclasses.replace(machine, name="mine", title="Mine", sources={})
    assert key_of(dataclasses.replace(job, trace=str(copy), machine=same)) == keys[0]


def test_a_changed_trace_file_is_another_trace(job, trace, tmp_path):
    copy = tmp_path / "copy.trace"
    shutil.copy(trace, copy)
    changed = dataclasses.replace(job, trace=str(copy))
    before = key_of(changed)
    Trace.load(copy).replace(meta={"note": "changed"}).save(copy)
    assert key_of(changed) != before


def test_changed_code_is_another_key(job, monkeypatch):
    before = key_of(job)
    monkeypatch.setattr(caches, "code_hash", lambda: "newer")
    assert key_of(job) != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "key": "another"}),
        lambda text: json.dumps({**json.loads(text), "value": {"figures": {}, "warnings": 3}}),
        lambda text: json.dumps({**json.loads(text), "value": {"strange": 1, "warnings": []}}),
        lambda text: json.dumps({**json.loads(text), "value": [1]}),
    ],
    ids=["truncated", "empty", "list", "other", "wrong", "strange", "no-object"],
)
def test_a_damaged_entry_is_made_anew(job, tmp_path, damage):
    folder = tmp_path / "cache"
    whole = Runner(cache=Cache(folder, no_warning)).run([job])
    (entry,) = folder.rglob("*.json")
    entry.write_text(damage(entry.read_text()))
    runner = Runner(cache=Cache(folder, no_warning))
    assert runner.run([job]) == whole
    assert (runner.done, runner.reused) == (1, 0)
    again = Runner(cache=Cache(folder, no_warning))
    again.run([job])
    assert again.reused == 1


def test_a_cache_that_cannot_be_written_costs_one_warning(trace, tmp_path):
    (tmp_path / "file").write_text("")
    warned = []
    runner = Runner(cache=Cache(tmp_path / "file" / "cache", warned.append))
    jobs = [Job(trace, memory=96 * MIB), Job(trace, memory=64 * MIB)]
    assert all(outcome.figures for outcome in runner.run(jobs).values())
    assert len(warned) == 1
    assert "results are not kept" in warned[0]


def test_a_full_disk_leaves_no_half_entry(job, tmp_path, monkeypatch):
    warned = []

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches.json, "dump", full)
    Runner(cache=Cache(tmp_path / "cache", warned.append)).run([job])
    assert "No space left" in warned[0]
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_file_is_no_cache(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DeepUMError, match="is not a folder"):
        Cache(tmp_path / "file", no_warning)


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "deepum" / "simulations"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(caches.sys, "platform", "linux")
    assert default_folder() == tmp_path / "home" / ".cache" / "deepum" / "simulations"


# Going on where it stopped


def test_an_interrupted_run_goes_on(trace, tmp_path, monkeypatch):
    jobs = [Job(trace, memory=96 * MIB, depth=depth) for depth in range(6)]
    real, calls = runners.perform, []

    def interrupted(job):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(job)
        return real(job)

    monkeypatch.setattr(runners, "perform", interrupted)
    first = Runner(cache=Cache(tmp_path / "cache", no_warning))
    with pytest.raises(KeyboardInterrupt):
        first.run(jobs)
    assert first.done == 3
    monkeypatch.setattr(runners, "perform", real)
    second = Runner(cache=Cache(tmp_path / "cache", no_warning))
    assert len(second.run(jobs)) == 6
    assert (second.done, second.reused) == (3, 3)


def test_several_processes_agree_with_one(trace, tmp_path):
    jobs = [Job(trace, memory=96 * MIB, depth=depth) for depth in (1, 8, 32)]
    assert Runner(2).run(jobs) == Runner(1).run(jobs)


def test_a_failing_job_keeps_what_was_done(trace, tmp_path):
    good = Job(trace, memory=96 * MIB)
    jobs = [good, Job("nowhere/none.trace"), Job(trace, memory=64 * MIB)]
    runner = Runner(2, Cache(tmp_path / "cache", no_warning))
    with pytest.raises(TraceError, match="no file"):
        runner.run(jobs)
    again = Runner(2, Cache(tmp_path / "cache", no_warning))
    assert again.run([good])[good].figures
    assert again.reused == min(1, runner.done)


def test_a_killed_process_is_told_in_one_line(trace, tmp_path):
    (tmp_path / "deadly.py").write_text(
        "import os\nimport deepum\n\n\nclass Deadly(deepum.Policy):\n"
        "    def on_launch(self, view, launch):\n        os._exit(9)\n"
    )
    policy = f"{tmp_path / 'deadly.py'}:Deadly"
    jobs = [Job(trace, policy=policy, memory=memory * MIB) for memory in (64, 96)]
    with pytest.raises(DeepUMError, match="--jobs 1"):
        Runner(2).run(jobs)


def test_warnings_of_a_run_travel_and_are_kept(job, tmp_path, monkeypatch):
    monkeypatch.setattr(
        runners, "perform", lambda job: Outcome({"time_s": 1.0}, warnings=("mind the gap",))
    )
    Runner(cache=Cache(tmp_path / "cache", no_warning)).run([job])
    found = Runner(cache=Cache(tmp_path / "cache", no_warning)).run([job])
    assert found[job].warnings == ("mind the gap",)

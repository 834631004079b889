# SPDX-License-Identifier: Apache-2.0
"""What is pure in the scripts of bench/gpu: plans, files, the bound, the search, comparisons."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.live import CARD, session
from tests.managed.stand_in import BLOCK, Program, training

from .scripts import FOLDER, load

GIB = 1 << 30


# The plan


def test_points_come_in_the_order_they_run() -> None:
    plan = load("plan")
    found = plan.points(["a", "b"], [1.0, 2.0], ["native", "noop", "chained"], ablation=True)
    per_model = 1 + 2 * (2 + len(plan.ABLATION))
    assert len(found) == 2 * per_model
    assert found[0] == plan.Point("a", None, "native", None)
    assert found[per_model] == plan.Point("b", None, "native", None)
    assert [p.mode for p in found[1:5]] == ["noop", "chained", *plan.ABLATION]
    assert {p.ratio for p in found[1:per_model]} == {1.0, 2.0}


def test_native_runs_even_if_nobody_asks_for_it() -> None:
    assert [p.mode for p in load("plan").points(["a"], [2.0], ["chained"])] == ["native", "chained"]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="no mode 'fast'"):
        load("plan").points(["a"], [2.0], ["fast"])


def test_the_limit_is_the_peak_over_the_ratio_in_whole_blocks() -> None:
    limit = load("plan").limit
    assert limit(10 * GIB, 11 * GIB, 2.0) == 5 * GIB
    assert limit(10 * GIB + 3, 11 * GIB, 3.0) % BLOCK == 0
    assert limit(10 * GIB, 11 * GIB, 1.0) > 11 * GIB  # all that the allocator holds, and to spare
    with pytest.raises(ValueError, match="below 1"):
        limit(GIB, GIB, 0.5)


def test_the_estimate_grows_with_what_does_not_fit_and_ends_at_the_timeout() -> None:
    plan = load("plan")

    def seconds(mode: str, ratio: float | None, timeout: float = 1e9) -> float:
        return plan.estimate(plan.Point("gpt2-xl", None, mode, ratio), 6, timeout)

    assert seconds("native", None) < seconds("chained", 1.5) < seconds("chained", 3)
    assert seconds("chained:prefetch", 2) == seconds("chained", 2) < seconds("noop", 2)
    assert seconds("noop", 3, timeout=40) == 40


def test_the_plan_is_printed_without_a_gpu() -> None:
    result = CliRunner().invoke(
        load("managed").main, ["--plan", "--models", "gpt2-xl,dlrm", "--ratios", "1,2"]
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 2 * (1 + 2 * 4) + 1
    assert lines[0].split()[:2] == ["gpt2-xl", "native"]
    assert lines[-1].startswith("18 points, about ")
    bad = CliRunner().invoke(load("managed").main, ["--plan", "--modes", "fast"])
    assert bad.exit_code == 2
    assert "no mode 'fast'" in bad.output
    wanted = CliRunner().invoke(load("acceptance").main, ["--plan"])
    assert "12 points" in wanted.output


# The file


def test_the_file_is_whole_after_every_point(tmp_path: Path) -> None:
    child = load("child")
    path = tmp_path / "out.json"
    results = child.Results(path, {"date": "now", "command": "one"}, key=("model", "ratio"))
    for ratio in (1.0, 2.0):
        results.add({"model": "a", "ratio": ratio, "step_s": ratio})
        stored = json.loads(path.read_text())
        assert stored["date"] == "now"
        assert stored["points"][-1]["ratio"] == ratio
    results.add({"model": "a", "ratio": 3.0, "error": "no end in 5 s"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json"]

    head = {"date": "later", "command": "two"}
    again = child.Results(path, head, resume=True, key=("model", "ratio"))
    assert again.find(model="a", ratio=2.0)["step_s"] == 2.0
    assert again.find(model="a", ratio=3.0) is None  # it failed, so it is tried again
    again.add({"model": "a", "ratio": 3.0, "step_s": 3.0})
    stored = json.loads(path.read_text())
    assert stored["date"] == "now"
    assert stored["command"] == "one && two"
    assert [p["ratio"] for p in stored["points"]] == [1.0, 2.0, 3.0]
    fresh = child.Results(path, {"date": "later"}, key=("model", "ratio"))
    assert fresh.points == []


CHILD = """
import sys, time
sys.path.insert(0, {folder!r})
import child
task = child.task()
print("noise")
print("something went wrong", file=sys.stderr, flush=True)
if task["how"] == "hang":
    print("step 1.250 {{'faults': 3}}\\nstep 0.750 {{}}", file=sys.stderr, flush=True)
    time.sleep(60)
if task["how"] == "die":
    sys.exit(3)
child.answer({{"how": task["how"], "is": child.is_child()}})
"""


@pytest.mark.parametrize("how", ["answer", "die", "hang"])
def test_a_point_has_a_process_and_a_timeout_of_its_own(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILD.format(folder=str(FOLDER)))
    point = load("child").run(str(script), {"how": how}, 3 if how == "hang" else 60)
    if how == "answer":
        assert point == {"how": "answer", "is": True}
    else:
        assert point["error"] == ("exit status 3" if how == "die" else "no end in 3 s")
        assert "something went wrong" in point["stderr"]
        assert point.get("step_s_all") == (None if how == "die" else [1.25, 0.75])


def test_what_was_measured_has_the_documented_fields(repo: Path) -> None:
    names = ("h200-managed.json", "h200-managed-models.json")
    all_stored = [json.loads((repo / "bench" / "results" / name).read_text()) for name in names]
    assert all(set(stored) == {"machine", "command", "date", "points"} for stored in all_stored)
    for point in (point for stored in all_stored for point in stored["points"]):
        assert {"model", "batch", "mode", "peak_bytes", "limit_bytes", "step_s", "faults",
                "bytes_in", "bytes_out", "bytes_dropped", "energy_j"} <= set(point)  # fmt: skip


# The bound

WEIGHT, COUNT = 8 * BLOCK, 10


def recorded(steps: int, first: int = 7) -> tuple[list[tuple], list[int]]:
    """Return what a program does that reads ten weights a step, one after another."""
    events: list[tuple] = [("alloc", WEIGHT * k, WEIGHT) for k in range(1, COUNT + 1)]
    seq = 0
    for _ in range(first):  # the set-up: launches before the first step
        seq += 1
        events.append(("launch", seq, 99, ((WEIGHT, WEIGHT),)))
    ends = [seq]
    scratch = WEIGHT * (COUNT + 1)
    for _ in range(steps):
        events.append(("alloc", scratch, BLOCK))
        for k in range(1, COUNT + 1):
            seq += 1
            events.append(("launch", seq, k, ((WEIGHT * k, WEIGHT), (scratch, BLOCK))))
        events.append(("free", scratch))
        ends.append(seq)
    return events, ends


def test_a_recording_becomes_a_trace_of_its_steps() -> None:
    events, ends = recorded(4)
    trace = load("bound").to_trace("x", events, ends)
    assert len(trace.schedule) == 4
    assert trace.kernels_per_step == COUNT
    columns = trace.columns()
    assert int((columns["event_op"] == 0).sum()) % COUNT == 0


def test_the_bound_counts_what_any_plan_must_move() -> None:
    bound = load("bound")
    trace = bound.to_trace("x", *recorded(5))
    fits = bound.bound_s(trace, (COUNT + 1) * WEIGHT, native_s=0.25)
    assert fits["bound_s"] == 0.25
    assert fits["bound_bytes_in"] == fits["bound_bytes_out"] == 0
    # Half of it at a time, in a circle: the best plan keeps some and moves the rest, each way.
    half = bound.bound_s(trace, 5 * WEIGHT + BLOCK, native_s=1e-6)
    least, most = (COUNT - 6) * WEIGHT, COUNT * WEIGHT
    assert least <= half["bound_bytes_in"] <= most
    assert least <= half["bound_bytes_out"] <= most
    more = max(half["bound_bytes_in"], half["bound_bytes_out"])
    assert half["bound_s"] == pytest.approx(more / bound.BUS_BYTES_S)
    tight = bound.bound_s(trace, 2 * WEIGHT, native_s=1e-6)
    assert tight["bound_s"] > half["bound_s"]
    slow = bound.bound_s(trace, 5 * WEIGHT + BLOCK, native_s=1e-6, bus_bytes_s=1e9)
    assert slow["bound_s"] == pytest.approx(more / 1e9)


@pytest.mark.slow
@on_fake(memory_bytes=CARD)
def test_a_session_records_what_its_program_does(driver: Driver) -> None:
    bound = load("bound")
    recorder = bound.Recorder()
    words = BLOCK // 4
    ends = []
    with session(driver, recorder, limit=GIB, gates=False) as (backend, machine):
        program = Program(machine)
        for _ in range(4):
            training(program, 6, words, 1)
            for tensor in list(program.tensors):
                program.drop(tensor)
            driver.sync()
            ends.append(backend.feed.counts["launches"])
        while recorder.last_seq < ends[-1]:
            pass
    assert backend.stats["set_aside"] == ""
    trace = bound.to_trace("x", recorder.events, ends)
    assert len(trace.schedule) == 3
    named = trace.columns()["kernel_operand_start"]
    assert named[-1] > trace.kernels_per_step  # more than one operand for each kernel, in the mean
    assert bound.bound_s(trace, 8 * BLOCK, native_s=1e-9)["bound_bytes_in"] > 0


# The others


@pytest.mark.parametrize("right", [0, 1, 5, 37, 64, 100])
@pytest.mark.parametrize("within", [0.0, 0.1])
def test_the_largest_batch_is_found_in_few_tries(right: int, within: float) -> None:
    tried: list[int] = []

    def runs(batch: int) -> bool:
        tried.append(batch)
        return batch <= right

    found = load("largest").largest(runs, 1, 100, within)
    assert right * (1 - within) - 1 <= found <= right
    if not within:
        assert found == right
    assert len(tried) == len(set(tried)) <= 16
    assert all(1 <= batch <= 100 for batch in tried)


@pytest.mark.parametrize(
    ("error", "found"), [("exit status -9", 4), ("no end in 9 s", 4), ("exit status 1", None)]
)
def test_a_batch_that_the_host_has_no_memory_for_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, found: int | None
) -> None:
    script = load("largest")
    monkeypatch.setattr(load("head"), "head", dict)
    monkeypatch.setattr(
        script.child, "run",
        lambda script, task, timeout: {"runs": True} if task["batch"] < 5 else {"error": error},
    )  # fmt: skip
    path = tmp_path / "out.json"
    given = ["--models", "m", "--modes", "vmm", "--most", "16", "--json", str(path)]
    assert CliRunner().invoke(script.main, given).exit_code == (found is None)
    stored = json.loads(path.read_text())["points"]
    assert stored[-1].get("largest_batch") == found
    reasons = {point["batch"]: point.get("reason") for point in stored if "batch" in point}
    assert reasons[8] == (error if found else None)


def test_what_a_launch_costs_more() -> None:
    summary = load("launch_cost").summary
    got = summary([1e-3] * 3, [3e-3, 2e-3, 9e-3], [1.2e-3] * 3, 1000)
    assert got["plain_us"] == pytest.approx(1.1)
    assert got["session_us"] == pytest.approx(3.0)
    assert got["added_us"] == pytest.approx(1.9)
    assert got["drift_us"] == pytest.approx(0.2)


def test_a_difference_of_one_bit_is_named() -> None:
    differing = load("acceptance").differing
    right = [{"loss": "aa", "gradients": "1"}, {"loss": "bb", "gradients": "2"}]
    assert differing(right, right) == []
    wrong = [right[0], {"loss": "bb", "gradients": "3"}]
    assert differing(right, wrong) == ["step 1: gradients"]
    assert differing(right, right[:1]) == ["1 steps and not 2"]

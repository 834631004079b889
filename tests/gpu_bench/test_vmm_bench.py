# SPDX-License-Identifier: Apache-2.0
"""bench/gpu/vmm.py without a GPU: what it plans, what its rows say, when a long run is right."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver
from tests.managed.live import CARD, machine_for
from tests.managed.stand_in import BLOCK, Program, training

from ..how_many import examples
from .scripts import load

GIB = 1 << 30
FIELDS = {
    "step_s", "step_s_all", "bound_s", "bytes_in", "bytes_out", "bytes_dropped", "faults",
    "bitwise_equal", "model", "batch", "mode", "limit_bytes", "ratio",
}  # fmt: skip


# Modes


def test_modes_say_where_memory_comes_from_and_who_decides() -> None:
    plan = load("plan")
    assert [plan.memory_of(mode) for mode in plan.VMM_MODES[:4]] == [
        "native",
        "managed",
        "managed",
        "vmm",
    ]
    assert [plan.memory_of(mode) for mode in plan.ALTERNATIVES] == list(plan.ALTERNATIVES)
    assert plan.policy_of("vmm") == plan.policy_of("managed-chained") == "chained"
    assert plan.policy_of("noop") == "noop"
    assert plan.policy_of("single-level") == "single-level"
    assert plan.policy_of("chained:prefetch+pre-evict") == "chained:prefetch+pre-evict"
    assert all(plan.memory_of(mode) == "managed" for mode in plan.MODES[1:])


def test_the_plan_sets_every_mode_beside_the_others() -> None:
    command = load("vmm").main
    result = CliRunner().invoke(command, ["--plan", "--models", "gpt2-xl,llama-1b"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    modes = len(load("plan").VMM_MODES) - 1
    assert len(lines) == 2 * (1 + 5 * modes) + 1
    assert [line.split()[1] for line in lines[:4]] == ["native", "noop", "managed-chained", "vmm"]
    bad = CliRunner().invoke(command, ["--plan", "--modes", "chained"])
    assert bad.exit_code == 2
    assert "no mode 'chained'" in bad.output
    life = CliRunner().invoke(command, ["--plan", "--life", "--ratios", "2"])
    assert [line.split()[1] for line in life.output.splitlines()[:2]] == ["native", "vmm"]


# Rows


class Machine:
    """Answers for the processes of points."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, child: ModuleType) -> None:
        self.tasks: list[dict] = []
        self.answers: dict[str, dict] = {}
        monkeypatch.setattr(child, "run", self.run)

    def run(self, script: str, task: dict, timeout: float) -> dict:
        self.tasks.append(task)
        answer = self.answers.get(task["mode"], {})
        if "error" in answer or "out_of_memory" in answer:
            return answer
        usual = {
            "batch": 4, "peak_bytes": 8 * GIB, "reserved_bytes": 9 * GIB, "step_s": 0.5,
            "step_s_all": [0.5],
            "faults": 0, "blocks_faulted": 0, "misses": 0, "bytes_in": 1, "bytes_out": 1,
            "bytes_dropped": 1, "check": "right", "losses": [2.0, 1.0], "bound_s": 0.5,
        }  # fmt: skip
        return usual | answer


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    matrix = load("matrix")
    monkeypatch.setattr(matrix, "batch_of", lambda point: 4)
    return Machine(monkeypatch, matrix.child)


def rows(
    machine: Machine, path: Path, modes: list[str], resume: bool = False, **how: Any
) -> list[dict]:
    child, matrix, plan = load("child"), load("matrix"), load("plan")
    wanted = plan.points(["gpt2-xl"], [2.0], modes, known=plan.VMM_MODES)
    results = child.Results(path, {}, resume=resume, key=matrix.KEY)
    matrix.run(wanted, results, matrix.How("x.py", 5, 4, 60.0, whole_rows=True, **how))
    stored = json.loads(path.read_text())["points"]
    assert all(set(point) >= FIELDS - {"ratio"} for point in stored)
    return stored


def test_rows_are_whole_and_compared_with_native(machine: Machine, tmp_path: Path) -> None:
    machine.answers["vmm"] = {"check": "wrong"}
    machine.answers["save-on-cpu"] = {"check": None, "note": "rounds otherwise"}
    machine.answers["noop"] = {"error": "no end in 60 s"}
    made = rows(
        machine, tmp_path / "out.json", ["noop", "managed-chained", "vmm"],
        options={"chunk_mib": 8}, options_for=("vmm",),
    )  # fmt: skip
    assert [(row["mode"], row["bitwise_equal"]) for row in made] == [
        ("native", None),
        ("noop", None),
        ("managed-chained", True),
        ("vmm", False),
    ]
    assert {row["limit_bytes"] for row in made[1:]} == {4 * GIB}
    given = {task["mode"]: task["options"] for task in machine.tasks}
    assert given == {
        "native": {}, "record": {}, "noop": {}, "managed-chained": {}, "vmm": {"chunk_mib": 8},
    }  # fmt: skip


def test_points_of_other_numbers_of_steps_are_not_compared(
    machine: Machine, tmp_path: Path
) -> None:
    machine.answers["noop"] = {"losses": [2.0]}
    machine.answers["managed-chained"] = {"losses": [3.0]}
    made = rows(machine, tmp_path / "out.json", ["noop", "managed-chained", "vmm"])
    assert [row["bitwise_equal"] for row in made] == [None, None, None, True]
    assert [row.get("losses_equal") for row in made] == [None, True, False, True]


def test_each_session_may_have_a_trace(machine: Machine, tmp_path: Path) -> None:
    rows(machine, tmp_path / "out.json", ["noop", "vmm"], traces=tmp_path)
    given = {task["mode"]: task.get("live_trace") for task in machine.tasks}
    assert given["native"] is given["record"] is None
    assert given["noop"] == str(tmp_path / "gpt2-xl-noop-2.trace")
    assert given["vmm"] == str(tmp_path / "gpt2-xl-vmm-2.trace")


def test_a_resumed_run_tries_again_what_failed_and_not_what_had_no_memory(
    machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    machine.answers["vmm"] = {"out_of_memory": True, "reason": "4 GiB", "batch": 4}
    machine.answers["noop"] = {"error": "no end in 60 s"}
    first = rows(machine, path, ["noop", "vmm"])
    assert first[-1]["out_of_memory"]
    machine.answers.clear()
    machine.tasks.clear()
    again = rows(machine, path, ["noop", "vmm"], resume=True)
    assert [task["mode"] for task in machine.tasks] == ["record", "noop"]
    assert len(again) == 3


@pytest.mark.torch
def test_an_alternative_that_cannot_run_is_a_row_that_says_why(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(load("alternatives"), "find_spec", lambda name: None)
    made = rows(machine, tmp_path / "out.json", ["checkpointing", "paged-adamw"])
    assert made[1]["bitwise_equal"] is True
    assert made[2]["error"] == "not installed: bitsandbytes"
    assert made[2]["ratio"] == 2.0
    assert [row.get("lines_changed") for row in made] == [None, 2, 1]
    assert "paged-adamw" not in [task["mode"] for task in machine.tasks]


# A long run


@examples(100)
@given(st.integers(0, 10_000), st.integers(1, 200))
def test_a_step_has_all_of_its_samples_in_parts_of_about_one_size(step: int, batch: int) -> None:
    life = load("life")
    parts = life.shape(step, batch)
    assert sum(parts) == max(1, round(batch * life.SHARES[step % len(life.SHARES)]))
    assert max(parts) - min(parts) <= 1
    assert min(parts) >= 1


def test_shapes_change() -> None:
    life = load("life")
    shapes = {tuple(life.shape(step, 8)) for step in range(30)}
    assert len(shapes) > 6
    assert {len(shape) for shape in shapes} == {1, 2, 3}


def test_growth_is_what_the_second_half_holds_more() -> None:
    grown = load("life").grown
    steady = [{"a": GIB, "b": 5} for _ in range(50)]
    assert grown(steady) == {}
    warming = [{"a": min(k, 5) * GIB} for k in range(100)]
    assert grown(warming) == {}
    leaking = [{"a": GIB, "b": 2 * GIB + k * (16 << 20)} for k in range(50)]
    assert list(grown(leaking)) == ["b"]
    assert grown([{"a": 1}]) == {}


def test_the_first_difference_is_found() -> None:
    differing = load("life").differing
    assert differing(["a", "b"], ["a", "b"]) is None
    assert differing(["a", "b"], ["a", "c"]) == 1
    assert differing(["a", "b"], ["a"]) == 1


def lives(machine: Machine, path: Path) -> tuple[bool, list[dict]]:
    child, matrix, plan, life = load("child"), load("matrix"), load("plan"), load("life")
    wanted = plan.points(["gpt2-small"], [2.0], ["native", "vmm"], known=plan.VMM_MODES)
    results = child.Results(path, {}, key=matrix.KEY)
    return life.run(wanted, results, matrix.How("x.py", 3, 0, 60.0)), results.points


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"digests": ["a", "b", "x"]},
        {"grown": {"reserved": [1, 2]}},
        {"failure": "the device is lost"},
        {"error": "no end in 60 s"},
    ],
)
def test_a_life_is_right_if_nothing_is_wrong(machine: Machine, tmp_path: Path, wrong: dict) -> None:
    usual = {"digests": ["a", "b", "c"], "grown": {}, "failure": "", "samples": []}
    machine.answers["native"] = usual
    machine.answers["vmm"] = usual | wrong
    if "error" in wrong:
        del machine.answers["vmm"]["digests"]
    ok, points = lives(machine, tmp_path / "out.json")
    assert ok is not bool(wrong)
    assert [point["mode"] for point in points] == ["life-native", "life-vmm"]
    assert points[1]["limit_bytes"] == 4 * GIB
    if "digests" in wrong:
        assert points[1]["first_difference"] == 2


@pytest.mark.torch
def test_a_life_trains_clips_and_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    life, models = load("life"), load("models")
    monkeypatch.setattr(models, "DEVICE", "cpu")
    torch.manual_seed(0)
    model, training = models.dlrm(6, tables=2, rows=20, width=4)
    before = [parameter.clone() for parameter in model.parameters()]
    seen = life.one_step(model, training, [2, 1])
    assert len(seen) == 3  # two losses and the norm
    assert all(p.grad is None for p in model.parameters())
    moved = [(p - b).norm() for p, b in zip(model.parameters(), before, strict=True)]
    assert 0 < torch.stack(moved).norm().item() <= 0.1 * 1.001  # lr times the clipped norm
    assert life.evaluate(model, training, 4).requires_grad is False
    assert model.training


# Sessions


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["vmm", "managed-chained", "noop"])
def test_a_mode_is_a_session_whose_counts_are_all_there(mode: str) -> None:
    {"vmm": in_vmm, "managed-chained": in_managed, "noop": in_noop}[mode]()


def open_and_train(driver: Driver, mode: str) -> None:
    measure, plan = load("measure"), load("plan")
    machine = machine_for(driver)
    limit, words = 128 << 20, BLOCK // 4
    backend = measure.open_session({"mode": mode, "limit": limit, "options": {"host_limit": GIB}})
    try:
        assert backend.name == plan.memory_of(mode)
        before = measure.stats(backend)
        program = Program(machine)
        training(program, 60, words, 1)
        driver.sync()
        after = measure.stats(backend)
    finally:
        backend.stop()
    moved = {name: after[name] - before[name] for name in measure.COUNTS}
    assert moved["launches"] > 120
    assert moved["bytes_out"] + moved["bytes_dropped"] > 0
    assert moved["bytes_in"] > 0 or mode == "noop"
    assert measure.notes_of(after, plan.memory_of(mode))
    json.dumps(measure.notes_of(after, plan.memory_of(mode)))
    assert backend.refused == ""


@on_fake(memory_bytes=CARD)
def in_vmm(driver: Driver) -> None:
    open_and_train(driver, "vmm")


@on_fake(memory_bytes=CARD)
def in_managed(driver: Driver) -> None:
    open_and_train(driver, "managed-chained")


@on_fake(memory_bytes=CARD)
def in_noop(driver: Driver) -> None:
    open_and_train(driver, "noop")


# What the calls cost


@on_fake(memory_bytes=256 << 20)
def test_remaps_are_timed_alone_and_beside_copies(driver: Driver) -> None:
    remaps = load("remaps")
    took = remaps.measure(4, 3)
    assert {"create", "set access", "unmap the last", "release"} < took.keys()
    assert all(low <= middle <= high for low, middle, high in took.values())
    assert driver.get("frames") == 0
    context = remaps.call(remaps.cuda.cuCtxGetCurrent)
    for bursts in (False, True):
        traffic = remaps.Traffic(context, bursts)
        traffic.start()
        remaps.measure(2, 3)
        while not all(traffic.bytes):
            time.sleep(0.01)
        assert all(rate > 0 for rate in traffic.stop())

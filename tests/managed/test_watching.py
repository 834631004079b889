# SPDX-License-Identifier: Apache-2.0
"""What is recorded and told of a live session."""

import json
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import BUDGET, CARD, LAYERS, WORDS, machine_for, nothing_read_after_its_discard
from .stand_in import Machine, Program, training

KERNEL_NS = 300_000


def steps_of(machine: Machine, count: int, step=None) -> None:
    """Train step by step, as a loop around an optimizer does."""
    program = Program(machine)
    weights = [program.new(WORDS, k) for k in range(LAYERS)]
    for number in range(count):
        stack = [program.new(WORDS, number)]
        for weight in weights:
            stack.append(program.new(WORDS, 1))
            program.axpy(stack[-1], stack[-2], 3)
            program.axpy(stack[-1], weight, 2)
        for weight in reversed(weights):
            program.axpy(weight, stack[-1], 5)
            program.drop(stack.pop())
        program.drop(stack.pop())
        program.reduce(weights[0])
        if step:
            step()
    for weight in weights:
        program.check(weight)


def recorded(driver: Driver, path: Path, policy: str, count: int, **options):
    """Train in a session that records; return it, closed, and its machine."""
    import deepum

    machine = machine_for(driver)
    driver.delay("exec:kernel", KERNEL_NS, 0)
    says = options.pop("says", False)
    limit = options.pop("limit", BUDGET)
    session = deepum.Session(
        policy, memory_limit=limit, backend="managed", trace=path, trace_steps=2, options=options
    )
    with session:
        steps_of(machine, count, session.step if says else None)
    nothing_read_after_its_discard(driver)
    return session, machine


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize(("policy", "says"), [("arguments", True), ("chained", False)])
def test_a_live_run_is_recorded_and_simulates(driver: Driver, policy: str, says: bool) -> None:
    import deepum
    from deepum.trace import Trace

    path = Path(tempfile.mkdtemp()) / "live.trace"
    session, _ = recorded(driver, path, policy, 8, says=says)
    trace = Trace.load(path)
    assert trace.iterations == 2
    assert trace.loop_from >= 0
    launches = 4 * LAYERS + 2  # a fill and three axpys a layer, one more fill, a reduction
    assert trace.kernels_per_step == launches
    assert set(trace.names) == {"fill", "axpy", "reduce"}
    tensor = WORDS * 4
    assert abs(trace.peak_bytes - (2 * LAYERS + 1) * tensor) <= 2 * tensor
    # A kernel takes what the stand-in was told, and what it really takes here.
    times = trace.kernel_time_ns[trace.event_arg[trace.event_op == 0].astype(int)]
    assert times.mean() >= 0.9 * KERNEL_NS
    assert trace.meta["times"] == "measured"
    live = trace.meta["live"]
    assert len(live) == 2
    assert all(step["bytes_out"] > 0 and step["fault_records"] == 0 for step in live)
    assert all(step["time_s"] >= launches * KERNEL_NS * 0.9e-9 for step in live)
    assert trace.meta["doubtful_share"] == 0
    assert trace.meta["policy"] == policy
    for simulated in ("noop", "chained"):
        run = deepum.simulate(path, "h200-pcie5", simulated, memory=BUDGET, iterations=4)
        last = run.iterations[-1]
        assert 0.9 * launches * KERNEL_NS * 1e-9 <= last.compute_s <= last.time_s
        assert last.faults > 0 or simulated == "chained"
    stats = session.stats
    assert stats["steps"] >= 4
    assert stats["limit_bytes"] == BUDGET


@on_fake(memory_bytes=CARD)
def test_what_a_trace_says_is_what_the_session_counted(driver: Driver) -> None:
    from deepum.trace import Trace

    path = Path(tempfile.mkdtemp()) / "live.trace"
    # All steps from the first on: nothing but set-up lies before them.
    from deepum.record import live

    live.WARM_UP = 0
    session, _ = recorded(driver, path, "noop", 2, says=True)
    rows = Trace.load(path).meta["live"]
    stats = session.stats
    assert 0 < sum(row["fault_records"] for row in rows) <= stats["fault_records"]
    assert 0 < sum(row["bytes_out"] for row in rows) <= stats["bytes_out"]
    assert sum(row["time_s"] for row in rows) <= stats["time_s"]


@on_fake(memory_bytes=CARD)
def test_a_ring_that_is_full_is_told_of(driver: Driver) -> None:
    import warnings

    from deepum.backends import watch

    path = Path(tempfile.mkdtemp()) / "live.trace"
    watch.RING = 64
    watch.RECORDING_S = 60
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorded(driver, path, "arguments", 4, says=True)
    text = " ".join(str(warning.message) for warning in caught)
    assert "did not fit" in text or "no trace" in text


@on_fake(memory_bytes=CARD)
def test_a_timeline_becomes_a_chrome_trace(driver: Driver) -> None:
    from click.testing import CliRunner

    from deepum.commands import cli

    path = Path(tempfile.mkdtemp()) / "live.trace"
    out = path.with_suffix(".json")
    # A move takes as long as many kernels, and launches wait for what they name.
    driver.delay("exec:prefetch", 10_000_000)
    recorded(driver, path, "arguments", 6, says=True)
    done = CliRunner().invoke(cli, ["info", str(path), "--perfetto", str(out)])
    assert done.exit_code == 0, done.output
    events = json.loads(out.read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"kernels", "moves out", "steps", "waits for memory"} <= named
    assert {event["name"] for event in events if event["ph"] == "C"} == {"resident"}


@on_fake(memory_bytes=CARD)
def test_steps_are_those_of_the_first_optimizer(driver: Driver) -> None:
    import deepum

    machine = machine_for(driver)

    class Optimizer:
        pass

    one, other = Optimizer(), Optimizer()
    with deepum.Session("arguments", memory_limit=BUDGET, backend="managed") as session:
        program = Program(machine)
        a, b = program.new(WORDS, 1), program.new(WORDS, 2)
        for _ in range(5):
            program.axpy(a, b, 1)
            machine.stepped(one, (), {})
            program.axpy(b, a, 1)
            machine.stepped(other, (), {})
        program.check_all()
        end = time.monotonic() + 10
        while session.stats["steps"] < 5 and time.monotonic() < end:
            time.sleep(0.01)
        assert session.stats["steps"] == 5
        assert session.stats["step_s"] > 0
        session.step()
        machine.stepped(one, (), {})  # not heard any more
        program.check_all()
    assert session.stats["steps"] <= 6


@on_fake(memory_bytes=CARD)
def test_counts_have_the_same_names_everywhere(driver: Driver) -> None:
    import deepum
    from deepum.backends.stats import COMMON

    machine = machine_for(driver)
    with deepum.Session("chained", memory_limit=BUDGET, backend="managed") as session:
        training(Program(machine), LAYERS, WORDS, 3)
        stats = session.stats
    assert set(COMMON) <= set(stats)
    assert stats["fault_source"] == "uvm-tools"
    assert 0 < stats["prefetch_accuracy"] <= 1
    assert stats["resident_bytes"] <= stats["limit_bytes"] == BUDGET
    assert not any(thread.name.startswith("deepum") for thread in threading.enumerate())


@on_fake(memory_bytes=CARD)
def test_the_command_records_and_shows_progress(driver: Driver) -> None:
    from click.testing import CliRunner

    from deepum.commands import cli
    from deepum.trace import Trace

    machine = machine_for(driver)
    path = Path(tempfile.mkdtemp()) / "live.trace"
    script = path.with_suffix(".py")
    script.write_text("import builtins; builtins.train()")
    import builtins

    builtins.train = lambda: steps_of(machine, 5, lambda: machine.stepped(machine, (), {}))
    done = CliRunner().invoke(
        cli,
        [
            "run", "--memory-limit", "128MiB", "--trace", str(path), "--trace-steps", "1",
            "--progress", "--json", "-", str(script),
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert Trace.load(path).iterations == 1
    stats = json.loads(done.stdout)
    assert stats["steps"] == 5
    assert "resident" in done.stderr
    assert f"wrote {path}, 1 step" in done.stderr

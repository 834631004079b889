# SPDX-License-Identifier: Apache-2.0
"""A network trains in half the memory it needs: same result, fewer faults, policies swapped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import deepum
from deepum.backends import training
from deepum.backends.memory import available_bytes
from deepum.commands import cli

pytestmark = pytest.mark.kmod

BLOCK = 2 << 20
LAYERS = 54
SHAPES = [(1024, 512), (512, 1024)]  # of layers in turn: 4 MiB of weights, and of gradients
NEEDED = LAYERS * 2 * 2  # blocks


class Plain:
    """Ordinary memory, nobody told of anything."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def launch(self, name: str, reads: Any = (), writes: Any = ()) -> Any:
        return nullcontext()


def train(
    session: Any, steps: int, after: Callable[[int], None] = lambda step: None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Train a deep perceptron; return its output and its weights."""
    random = np.random.default_rng(7)
    shapes = [SHAPES[i % 2] for i in range(LAYERS)]
    weights = [session.empty(shape, np.float64) for shape in shapes]
    gradients = [session.empty(shape, np.float64) for shape in shapes]
    some = random.standard_normal(SHAPES[0]) / 32
    for i, weight in enumerate(weights):
        np.add(some.reshape(weight.shape), i * 1e-4, out=weight)
    acts = [np.ones((1, shape[0])) for shape in [*shapes, SHAPES[0]]]
    for step in range(steps):
        for i in range(LAYERS):
            with session.launch(f"forward {i}", reads=[weights[i]]):
                np.tanh(acts[i] @ weights[i], out=acts[i + 1])
        delta = acts[-1] - 0.5
        for i in reversed(range(LAYERS)):
            with session.launch(f"backward {i}", reads=[weights[i]], writes=[gradients[i]]):
                delta = delta * (1 - acts[i + 1] ** 2)
                np.multiply(acts[i].T, delta * 0.01, out=gradients[i])
                delta = delta @ weights[i].T
        for i in range(LAYERS):
            with session.launch(f"update {i}", reads=[gradients[i]], writes=[weights[i]]):
                np.subtract(weights[i], gradients[i], out=weights[i])
        after(step)
    return acts[-1].copy(), [np.asarray(w) for w in weights]


# Which policy advises from which step on. Its last step counts; the first is for learning.
SCHEDULE = {0: "noop", 2: "single-level", 4: "chained"}
STEPS = 6


@pytest.fixture(scope="module")
def expected() -> tuple[np.ndarray, list[np.ndarray]]:
    return train(Plain(), STEPS)


def test_training_is_the_same_and_faults_go_away(
    expected: tuple[np.ndarray, list[np.ndarray]],
) -> None:
    """Three policies in one session, swapped while the program runs; nothing is reloaded."""
    totals = [0]
    memory = NEEDED // 2 * BLOCK
    with deepum.Session("noop", depth=8, memory_limit=memory, backend="kmod") as session:

        def after(step: int) -> None:
            assert session._host is not None and session._host.settle()
            totals.append(session.stats["faults"])
            assert session.stats["budget_blocks"] == NEEDED // 2
            assert session.stats["resident_blocks"] <= NEEDED // 2
            if step + 1 in SCHEDULE:
                session.policy = SCHEDULE[step + 1]

        output, weights = train(session, STEPS, after)
        stats = session.stats
        assert output.tobytes() == expected[0].tobytes()
        for ours, theirs in zip(weights, expected[1], strict=True):
            assert ours.tobytes() == theirs.tobytes()
    faults = [later - earlier for earlier, later in pairwise(totals)]
    print("faults by step:", faults, stats)
    assert stats["set_aside"] == ""
    assert stats["peak_bytes"] == NEEDED * BLOCK
    noop, single, chained = faults[1], faults[3], faults[5]
    assert noop >= NEEDED  # it does not fit: each block comes in more than once
    assert chained <= 0.005 * noop
    assert chained < single < noop


@pytest.mark.long
def test_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """``deepum demo --live --backend kmod`` keeps its contract with whoever reads its JSON."""
    monkeypatch.setattr(training, "library", lambda: "numpy")  # no time to import PyTorch
    arguments = ["--layers", "4", "--batch", "2", "--steps", "2", "--json", "-"]
    done = CliRunner().invoke(cli, ["demo", "--live", "--backend", "kmod", *arguments])
    assert done.exit_code == 0, done.output
    demo = json.loads(done.stdout)
    assert {"backend", "peak_bytes", "budget_bytes", "bitwise_equal", "runs"} <= set(demo)
    assert (demo["backend"], demo["bitwise_equal"]) == ("kmod", True)
    # Three arrays of two blocks for each layer, and what flows between the layers.
    assert 24 * BLOCK < demo["peak_bytes"] < 26 * BLOCK
    assert demo["peak_bytes"] // 2 - BLOCK <= demo["budget_bytes"] <= demo["peak_bytes"] // 2
    assert [run["policy"] for run in demo["runs"]] == ["noop", "single-level", "chained"]
    for run in demo["runs"]:
        assert len(run["iterations"]) == 2
        for iteration in run["iterations"]:
            assert iteration["time_s"] > 0
            assert iteration["faults"] >= 0
    assert demo["runs"][0]["iterations"][1]["faults"] > 12  # noop: it does not fit


@pytest.mark.long
def test_closing_needs_no_second_copy() -> None:
    """What becomes ordinary memory leaves its place on the host: there is never twice of it."""
    blocks, least = 100, available_bytes()
    session = deepum.Session("noop", memory_limit=16 * BLOCK, backend="kmod")
    array = session.empty(blocks * BLOCK, np.uint8)
    array[:: BLOCK // 2] = 3
    ended = threading.Event()
    before = available_bytes()
    assert before is not None and least is not None
    assert before < least - blocks * BLOCK // 2  # the array is somewhere
    seen = [before]

    def watch() -> None:
        while not ended.is_set():
            seen.append(available_bytes() or 0)
            time.sleep(0.002)

    watching = threading.Thread(target=watch)
    watching.start()
    session.close()
    ended.set()
    watching.join()
    assert len(seen) > 5
    assert min(seen) > before - blocks * BLOCK // 4
    assert (array[:: BLOCK // 2] == 3).all()


@pytest.fixture
def small() -> Iterator[deepum.Session]:
    with deepum.Session("chained", memory_limit=16 * BLOCK, backend="kmod") as session:
        yield session


@pytest.mark.long
def test_more_happens_than_the_engine_hears_of(small: deepum.Session) -> None:
    """Nobody reads the ring for a while: it runs over, the program goes on, the engine follows."""
    array = small.empty(40 * BLOCK, np.uint8)
    host = small._host
    assert host is not None
    with host.live.held():  # the thread that reads the ring waits for this lock
        for round_ in range(150):
            for block in range(40):
                array[block * BLOCK] = round_ & 0xFF
    assert small._host is not None and small._host.settle()
    lost = host.mechanism.mapping.module_stats["events_dropped"]
    assert lost > 0
    present = host.mechanism.present()
    with host.live.held() as engine:
        engine.check()
        assert sorted(engine.resident_blocks()) == present
    assert (array[::BLOCK] == 149).all()


def test_the_thread_that_reads_the_ring_dies(small: deepum.Session) -> None:
    array = small.empty(40 * BLOCK, np.uint8)
    host = small._host
    assert host is not None
    host.mechanism.mapping.stop_watching()
    host.mechanism._thread.join()
    for round_ in range(3):
        array[:: BLOCK // 4] = round_
        assert (array[:: BLOCK // 4] == round_).all()


def test_discarded_memory_never_takes_live_data(small: deepum.Session) -> None:
    """Arrays come and go, as temporaries do; what is there keeps its contents."""
    random = np.random.default_rng(1)
    kept: list[tuple[np.ndarray, int]] = []
    for step in range(60):
        blocks = int(random.integers(1, 6))
        array = small.empty(blocks * BLOCK, np.uint8)
        with small.launch(f"fill {blocks}", writes=[array]):
            array[:: BLOCK // 8] = step & 0xFF
        kept.append((array, step & 0xFF))
        del array
        if len(kept) > 5:
            kept.pop(int(random.integers(len(kept))))
        for old, value in kept:
            assert (old[:: BLOCK // 8] == value).all()
    assert small._host is not None and small._host.settle()
    assert small.stats["discarded"] > 0


@pytest.mark.torch
def test_tensors_of_pytorch(small: deepum.Session) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: make .venv/.torch")
    a = small.tensor((1024, 4096), torch.float32)
    b = small.tensor((1024, 4096), torch.float32)
    with small.launch("fill", writes=[a]):
        a.fill_(2)
    with small.launch("add", reads=[a], writes=[b]):
        torch.add(a, 1, out=b)
    assert float(b.sum()) == 3 * 1024 * 4096

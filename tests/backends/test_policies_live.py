# SPDX-License-Identifier: Apache-2.0
"""Policies beside a running program: told in a thread of their own, and never waited for."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import deepum
from deepum import Policy
from deepum._core.python_policy import MAX_COMMANDS
from deepum.backends import host as host_module
from deepum.backends.host import HostBackend
from deepum.errors import PolicyError
from deepum.policy import PolicyWarning

from .drivers import BLOCK, Host, touch


def fill(backend: HostBackend, blocks: int = 20) -> np.ndarray:
    array = backend.empty(blocks * BLOCK, np.uint8)
    array[:] = 1
    return array


def work(backend: HostBackend, array: np.ndarray, steps: int = 3) -> None:
    """Run kernels over an array, one for each three blocks."""
    for _ in range(steps):
        for first in range(0, len(array) // BLOCK, 3):
            part = array[first * BLOCK : (first + 3) * BLOCK]
            with backend.launch(f"k{first}", [], [part]):
                part += 1


class Listening(Policy):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_launch(self, view: Any, launch: Any) -> None:
        self.told.append(("launch", launch.seq, launch.ranges))
        assert view.budget_blocks == 10
        assert 0 <= view.free_blocks <= 10
        assert len(view.resident_blocks) <= 10
        assert view.options["depth"] == 32
        assert isinstance(view.predict(launch.exec_id, 2), list)
        assert isinstance(view.blocks_of(launch.exec_id), list)

    def on_fault(self, view: Any, fault: Any) -> None:
        self.told.append(("fault", fault.block, fault.seq))
        assert view.is_resident(fault.block) in (True, False)
        assert view.running is None or view.running.seq >= 1

    def on_complete(self, view: Any, launch: Any) -> None:
        self.told.append(("complete", launch.seq, launch.exec_id))

    def on_alloc(self, view: Any, allocation: Any) -> None:
        self.told.append(("alloc", allocation.address, allocation.bytes))

    def on_free(self, view: Any, allocation: Any) -> None:
        self.told.append(("free", allocation.address, allocation.bytes))


def test_hooks_hear_of_everything_in_order(host: Host) -> None:
    policy = Listening()
    backend = host.backend(policy, 10)
    array = backend.empty(4 * BLOCK, np.uint8)
    address = array.__array_interface__["data"][0]
    with backend.launch("one", [], [array]):
        for block in range(4):
            touch(array, block)
    del array
    assert backend.settle()
    assert policy.told == [
        ("alloc", address, 4 * BLOCK),
        ("launch", 1, ((address, 4 * BLOCK),)),
        *[("fault", address // BLOCK + block, 1) for block in range(4)],
        ("complete", 1, policy.told[-2][2]),
        ("free", address, 4 * BLOCK),
    ]
    backend.close()
    assert backend.stats["set_aside"] == ""


class Raising(Policy):
    def on_fault(self, view: Any, fault: Any) -> None:
        raise ZeroDivisionError("a mistake")


class Leaving(Policy):
    def on_launch(self, view: Any, launch: Any) -> None:
        raise SystemExit


class Flooding(Policy):
    def on_launch(self, view: Any, launch: Any) -> None:
        view.prefetch(1, MAX_COMMANDS + 1)


class Wrong(Policy):
    def victims(self, view: Any, count: int) -> Any:
        return ["a"]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Raising, "ZeroDivisionError: a mistake"),
        pytest.param(Leaving, "SystemExit", marks=pytest.mark.long),
        pytest.param(Flooding, "asked for more than", marks=pytest.mark.long),
        pytest.param(Wrong, "TypeError", marks=pytest.mark.long),
    ],
)
def test_a_policy_that_fails_is_set_aside(host: Host, policy: Any, reason: str) -> None:
    backend = host.backend(policy, 10, without=("pre-evict",))
    array = backend.empty(20 * BLOCK, np.uint8)
    with pytest.warns(PolicyWarning, match="plain demand paging goes on"):
        with backend.launch("fill"):
            array[:] = 1
        assert backend.settle()
        work(backend, array)
        assert backend.settle()
    assert reason in backend.stats["set_aside"]
    assert (array == 4).all()
    before = backend.stats["prefetched"]
    work(backend, array, 1)
    assert backend.stats["prefetched"] == before
    backend.policy = "chained"
    assert backend.stats["set_aside"] == ""
    backend.close()


class Hanging(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.refused = False

    def on_launch(self, view: Any, launch: Any) -> None:
        self.entered.set()
        self.go.wait(60)
        try:
            view.prefetch(1)
        except RuntimeError:
            self.refused = True


def test_a_policy_that_hangs_does_not_hang_the_program(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "PATIENCE_S", 0.05)
    policy = Hanging()
    backend = host.backend(policy, 10)
    array = fill(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolicyWarning)
        with backend.launch("a"):
            array += 1
        assert policy.entered.wait(30)
        time.sleep(0.06)
        with backend.launch("b"):
            array += 1
    assert "more than 0.05 s" in backend.stats["set_aside"]
    assert (array == 3).all()
    backend.close()
    policy.go.set()
    deadline = time.monotonic() + 30
    while not policy.refused and time.monotonic() < deadline:
        time.sleep(0.01)
    assert policy.refused  # what it asks for afterwards does nothing


class Touching(Policy):
    """Reads the program's own memory in a hook: a fault in the policy's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.array: Any = None
        self.sums: list[int] = []

    def on_fault(self, view: Any, fault: Any) -> None:
        self.sums.append(int(self.array[:: BLOCK // 2].sum()))


@pytest.mark.long
def test_a_hook_may_fault_itself(host: Host) -> None:
    policy = Touching()
    backend = host.backend(policy, 10)
    policy.array = np.zeros(1)
    array = fill(backend, 14)
    assert backend.settle()
    policy.array = array
    touch(array, 3)
    touch(array, 0)
    policy.array = np.zeros(1)  # its own faults are news to it as well
    assert backend.settle()
    assert backend.stats["set_aside"] == ""
    backend.close()


class Chooser(Policy):
    """Wants one block kept, whatever the order."""

    invalidates = False
    pre_evicts = False

    def __init__(self) -> None:
        super().__init__()
        self.keep = 0

    def victims(self, view: Any, count: int) -> Any:
        return [block for block in reversed(view.resident_blocks) if block != self.keep][:count]


@pytest.mark.long
def test_victims_are_the_policys_when_it_has_named_them(host: Host) -> None:
    policy = Chooser()
    backend = host.backend(policy, 10)
    array = backend.empty(16 * BLOCK, np.uint8)
    policy.keep = array.__array_interface__["data"][0] // BLOCK
    for block in range(10):
        touch(array, block)
    touch(array, 10)  # the first victim is the engine's: nobody was asked before
    touch(array, 0)
    assert backend.settle()
    for block in range(1, 16):
        touch(array, block)
        assert backend.settle()
        assert policy.keep in backend.mechanism.present()
    assert backend.stats["set_aside"] == ""
    backend.close()


def test_the_policy_is_swapped_in_mid_run(host: Host) -> None:
    backend = host.backend("noop", 16, depth=2)
    array = fill(backend, 30)
    counts = []
    for policy in ("noop", "chained", "noop"):
        backend.policy = policy
        assert backend.policy.name == policy
        work(backend, array, 3)
        assert backend.settle()
        before = backend.stats["faults"]
        work(backend, array, 2)
        counts.append(backend.stats["faults"] - before)
    noop, chained, again = counts
    assert noop == again == 60
    assert chained <= 6
    assert (array == 16).all()
    backend.close()


@pytest.mark.long
def test_a_subclass_of_a_built_in_policy_keeps_its_native_part(host: Host) -> None:
    from deepum_policies.chained import Chained

    class Counting(Chained):
        launches = 0

        def on_launch(self, view: Any, launch: Any) -> None:
            Counting.launches += 1

    backend = host.backend(Counting, 16, depth=2)
    array = fill(backend, 30)
    work(backend, array, 3)
    assert backend.settle()
    assert Counting.launches == 30
    assert backend.stats["prefetched"] > 30
    backend.close()


@pytest.mark.parametrize(("policy", "line"), [("lms", "plain device memory"), ("oracle", "future")])
def test_policies_that_need_a_simulation_say_so(uffd: Host, policy: str, line: str) -> None:
    with pytest.raises(PolicyError, match=line):
        uffd.backend(policy, 10)
    backend = uffd.backend("noop", 10)
    with pytest.raises(PolicyError, match=line):
        backend.policy = policy
    assert backend.policy.name == "noop"
    with pytest.raises(PolicyError, match="no policy named"):
        backend.policy = "nonsense"
    backend.close()


def test_session_swaps_policies_too(uffd: Host) -> None:
    with deepum.Session("noop", memory_limit="32MiB", backend="uffd") as session:
        session.policy = "single-level"
        assert session.policy.name == "single-level"
        assert session.stats["policy"] == "single-level"

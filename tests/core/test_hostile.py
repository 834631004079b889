# SPDX-License-Identifier: Apache-2.0
"""Policies that raise, lie, flood or dawdle: one warning, and the program goes on unharmed."""

import itertools
import time
import warnings
import weakref
from typing import ClassVar

import pytest

from deepum._core.python_policy import MAX_COMMANDS, Fault, Launch, PythonPolicy, View
from deepum.errors import PolicyError
from deepum.policy import HOOKS, Policy, PolicyWarning, make_native, warn_set_aside

from .harness import BLOCK, MIB, Bench, Witness, brief, decode, engine, native

BUDGET, MEMORY = 16, 64


class Hostile(Policy):
    """Does its one bad thing where and when it is told to."""

    name = "hostile"

    def __init__(self, hook, deed, after=0):
        super().__init__()
        self.hook, self.deed, self.left = hook, deed, after
        self.calls = 0
        self.answers = []

    def turn(self, hook, view, argument):
        if hook != self.hook:
            return None
        self.left -= 1
        if self.left >= 0:
            return None
        self.calls += 1
        return self.deed(self, view, argument)

    def on_launch(self, view, launch):
        self.turn("on_launch", view, launch)

    def on_fault(self, view, fault):
        self.turn("on_fault", view, fault)

    def on_complete(self, view, launch):
        self.turn("on_complete", view, launch)

    def on_alloc(self, view, allocation):
        self.turn("on_alloc", view, allocation)

    def on_free(self, view, allocation):
        self.turn("on_free", view, allocation)

    def victims(self, view, count):
        return self.turn("victims", view, count)


class Watched(Bench):
    """A bench whose every command a witness judges."""

    def __init__(self, policy, **options):
        self.witness = Witness(BUDGET)
        super().__init__(BUDGET, policy, blocks=MEMORY, **options)
        self.witness.event("manage", {"address": 0, "bytes": MEMORY * BLOCK})
        feed = self.engine.event
        self.feed = feed

    def send(self, kind, **fields):
        self.feed(kind, **fields)
        self.witness.event(kind, fields)
        self.act()

    def act(self):
        while commands := decode(self.engine.drain()):
            for kind, first, count, _, _ in commands:
                self.witness.command(kind, first, count)
            for kind, first, count, _, _ in commands:
                for block in range(first, first + count):
                    if kind != "discard":
                        done = "arrived" if kind == "prefetch" else "departed"
                        self.feed(done, address=block * BLOCK)
                        self.witness.event(done, {"address": block * BLOCK})
        self.engine.check()
        self.witness.agrees(self.engine)

    def program(self, steps=3):
        """Run a small training: kernels over more blocks than there are frames."""
        tensors = [(k * 3 * BLOCK, 3 * BLOCK - k) for k in range(12)]
        for address, size in tensors[:-1]:
            self.send("alloc", address=address, bytes=size)
        launched = 0
        for _ in range(steps):
            address, size = tensors[-1]
            self.send("alloc", address=address, bytes=size)
            for k in range(12):
                address, size = tensors[k]
                self.send("range", address=address, bytes=size)
                self.send("launch", exec_id=k)
                launched += 1
                for block in range(address // BLOCK, (address + size - 1) // BLOCK + 1):
                    if not self.engine.is_resident(block):
                        self.send("fault", address=block * BLOCK)
                    assert self.engine.is_resident(block), "the kernel stands still"
                self.send("complete", seq=launched)
            address, size = tensors[-1]
            self.send("free", address=address, bytes=size)
        for address, size in tensors[:-1]:
            for block in range(address // BLOCK, (address + size - 1) // BLOCK + 1):
                assert self.engine.inspect(block)["content"], "data was lost"


def swallow(view, *requests):
    """Make requests and ignore all complaints."""
    for name, *arguments in requests:
        try:
            getattr(view, name)(*arguments)
        except (RuntimeError, OverflowError, TypeError):
            continue


def raises(policy, view, _):
    raise KeyError("no such thing")


def leaves(policy, view, _):
    raise StopIteration


def divides(policy, view, _):
    return 1 // 0


def floods(policy, view, _):
    while True:
        view.prefetch(1)


def floods_evicting(policy, view, _):
    while True:
        view.evict(1, 1000)


def floods_all_at_once(policy, view, _):
    view.prefetch(0, (1 << 64) - 1)


def wants_negative(policy, view, _):
    view.prefetch(-1)


def wants_too_large(policy, view, _):
    view.prefetch(1 << 64)


def wants_text(policy, view, _):
    view.prefetch("seven")


def dawdles(policy, view, _):
    time.sleep(0.3)


DEEDS = [
    (raises, "KeyError: 'no such thing'"),
    (leaves, "StopIteration"),
    (divides, "ZeroDivisionError"),
    (floods, "RuntimeError: one hook asked for more than 65536 blocks"),
    (floods_evicting, "RuntimeError: one hook asked for more than 65536 blocks"),
    (floods_all_at_once, "RuntimeError: one hook asked for more than 65536 blocks"),
    (wants_negative, "OverflowError"),
    (wants_too_large, "OverflowError"),
    (wants_text, "TypeError"),
    (dawdles, "a hook took 0."),
]


def hire(policy, patience=1.0, hooks=HOOKS):
    """Return what the engine calls, with little patience or fewer hooks if need be."""
    return PythonPolicy(policy, None, {*hooks}, warn_set_aside, patience)


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("deed", "reason"), DEEDS, ids=lambda d: getattr(d, "__name__", ""))
def test_a_bad_deed_costs_the_job(hook, deed, reason, after):
    policy = Hostile(hook, deed, after)
    bench = Watched(hire(policy, 0.2 if deed is dawdles else 10.0))
    with pytest.warns(PolicyWarning) as caught:
        bench.program()
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith("policy hostile was set aside, plain demand paging goes on: ")
    assert reason in message
    assert policy.calls == 1
    assert bench.engine.policy.name == "noop"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (["a", "b"], "TypeError"),
        ([float("nan")], "ValueError"),
        ([float("inf")], "OverflowError"),
        ([None], "TypeError"),
        ([-1], "OverflowError"),
        ([1 << 64], "OverflowError"),
        (7, "TypeError"),
        (object(), "TypeError"),
        ("text", "TypeError"),
        ((1 // 0 for _ in "x"), "ZeroDivisionError"),
    ],
    # Names that are the same in every process: the parallel runner compares them.
    ids=[
        "texts",
        "nan",
        "infinity",
        "none",
        "negative",
        "huge",
        "number",
        "object",
        "text",
        "raises",
    ],
)
def test_victims_that_are_no_blocks_cost_the_job(answer, reason):
    bench = Watched(hire(Hostile("victims", lambda *_: answer)))
    with pytest.warns(PolicyWarning, match=reason) as caught:
        bench.program()
    assert len(caught) == 1
    assert bench.engine.policy.name == "noop"


@pytest.mark.parametrize(
    "answer",
    [
        lambda policy, view, count: [],
        lambda policy, view, count: None,
        lambda policy, view, count: [1 << 40, (1 << 64) - 1, (1 << 32) - 1, MEMORY],
        lambda policy, view, count: itertools.repeat(0),
        lambda policy, view, count: itertools.count(),
        lambda policy, view, count: range(MEMORY),
        lambda policy, view, count: {*view.resident_blocks},
        lambda policy, view, count: [True, False],
        lambda policy, view, count: view.resident_blocks * 50,
        lambda policy, view, count: reversed(view.resident_blocks),
    ],
)
def test_useless_victims_are_passed_over(answer):
    bench = Watched(hire(Hostile("victims", answer)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.program()
    assert bench.engine.policy.name == "hostile"


def test_useless_victims_for_ever_cost_the_job():
    policy = Hostile("victims", lambda policy, view, count: itertools.repeat(9999))
    bench = Bench(2048, hire(policy, hooks=["victims"]), low=250, high=500)
    bench.alloc(0, 4096)
    with pytest.warns(PolicyWarning, match="more than 100000 requests in a row were refused"):
        for step in range(30):
            bench.fault(*range(step * 100, step * 100 + 100))
            bench.settle()
    assert bench.engine.policy.name == "noop"
    assert bench.engine.stats["refused"] > 100_000
    assert bench.engine.stats["refused"] <= 100_500


@pytest.mark.slow
def test_refused_requests_are_forgiven_by_a_call_without():
    def deed(policy, view, launch):
        if launch.seq % 2:
            view.evict(1 << 20, 60_000)

    bench = Bench(16, hire(Hostile("on_launch", deed)))
    for seq in range(6):
        bench.run(seq)
    assert bench.engine.stats["refused"] == 180_000
    assert bench.engine.policy.name == "hostile"


@pytest.mark.slow
def test_refused_requests_add_up():
    policy = Hostile("on_launch", lambda p, view, e: view.prefetch(1 << 20, 50_000))
    bench = Bench(16, hire(policy, hooks=["on_launch"]))
    bench.run(1)
    bench.run(2)
    assert bench.engine.policy.name == "hostile"
    with pytest.warns(PolicyWarning, match="100000 requests in a row"):
        bench.run(3)
    bench.run(4)
    assert bench.engine.stats["refused"] == 150_000


@pytest.mark.slow  # 65,536 requests in a traced build take longer than a hook may
def test_what_a_hook_may_ask_for():
    asked = []

    def deed(policy, view, launch):
        asked.append(view.prefetch(1 << 20, MAX_COMMANDS - 1))
        asked.append(view.prefetch(1 << 20))
        with pytest.raises(RuntimeError, match="65536"):
            view.prefetch(1)
        # Once over, always over, whatever the count would wrap around to.
        for count in (0, 1, (1 << 64) - 1, (1 << 64) - MAX_COMMANDS):
            swallow(view, ("prefetch", 0, count), ("evict", 0, count))
        asked.append(view.free_blocks)

    assert MAX_COMMANDS == 1 << 16
    bench = Bench(16, hire(Hostile("on_launch", deed)))
    bench.run(1)
    assert asked == [0, 0, 16]
    assert bench.engine.stats["refused"] == MAX_COMMANDS
    assert bench.engine.policy.name == "hostile"
    bench.run(2)  # the next call has a quota of its own
    assert asked[3:] == [0, 0, 16]


def test_numbers_that_are_no_blocks_are_refused():
    top = (1 << 32) - 1

    def deed(policy, view, launch):
        assert view.prefetch(top) == 0
        assert view.prefetch(1 << 32) == 0  # not block 0
        assert view.prefetch((1 << 64) - 1, 3) == 0  # not 0 and 1 either
        assert view.prefetch(top - 1, 3) == 0
        assert view.evict((1 << 64) - 1, 3) == 0
        assert view.evict(1 << 32) == 0
        assert view.prefetch(MEMORY - 1, 3) == 1
        assert not view.is_resident(top)
        assert not view.is_resident(1 << 32)
        assert not view.is_resident((1 << 64) - 1)
        assert not view.is_resident(MEMORY)
        policy.done = True

    policy = Hostile("on_launch", deed)
    bench = Watched(hire(policy), queue=8)
    bench.send("fault", address=0)
    bench.send("fault", address=BLOCK)
    bench.send("launch")
    assert policy.done
    assert bench.engine.stats["refused"] == 1 + 1 + 3 + 3 + 3 + 1 + 2
    assert bench.engine.resident_blocks() == [0, 1, MEMORY - 1]


def test_pinned_blocks_cannot_be_evicted():
    policy = Hostile("on_launch", lambda p, view, e: p.answers.append(view.evict(0, 8)))
    bench = Watched(hire(policy), learn_allocations=False)
    bench.send("alloc", bytes=8 * BLOCK)
    for block in range(4):
        bench.send("fault", address=block * BLOCK)
    bench.send("range", address=BLOCK, bytes=2 * BLOCK)
    bench.send("launch")
    assert policy.answers == [2]
    assert bench.engine.stats["refused"] == 6
    assert bench.engine.resident_blocks() == [1, 2]


def test_evicting_everything_all_the_time():
    deed = lambda p, view, e: swallow(view, ("evict", 0, MEMORY), ("prefetch", 0, MEMORY))  # noqa: E731
    for hook in HOOKS[:-1]:
        bench = Watched(hire(Hostile(hook, deed)), queue=16)
        bench.program()
        assert bench.engine.policy.name == "hostile"


def test_evicting_inside_victims():
    def deed(policy, view, count):
        if view.running.seq not in policy.answers:  # more than once would never come to rest
            policy.answers.append(view.running.seq)
            view.evict(0, MEMORY)
            view.prefetch(0, MEMORY)
        return range(MEMORY)

    bench = Watched(hire(Hostile("victims", deed)), queue=16)
    bench.program()
    assert bench.engine.policy.name == "hostile"


def test_swallowing_the_quota_once():
    def deed(policy, view, event):
        if policy.calls == 1:
            swallow(view, ("prefetch", 0, MAX_COMMANDS + 1))
            swallow(view, ("evict", 0, MEMORY))

    bench = Watched(hire(Hostile("on_fault", deed)))
    bench.program()
    assert bench.engine.policy.name == "hostile"


def test_a_view_used_outside_its_hook_is_as_harmless():
    views = []
    bench = Watched(hire(Hostile("on_launch", lambda p, view, e: views.append(view))))
    bench.send("launch")
    view = views[0]
    assert view.prefetch(3, 2) == 2
    bench.send("fault", address=9 * BLOCK)
    assert bench.engine.resident_blocks() == [9, 3, 4]
    assert view.evict(0, 20) == 2  # 9 is pinned
    bench.engine.set_policy(native("noop"))
    bench.act()
    assert view.prefetch(5) == 1
    bench.act()
    with pytest.raises(TypeError):
        View(None, {})


def test_interrupting_the_program_is_not_the_policys_fault():
    def deed(policy, view, event):
        raise KeyboardInterrupt

    bench = Bench(16, hire(Hostile("on_launch", deed)))
    with pytest.raises(KeyboardInterrupt):
        bench.launch(1)
    bench.engine.check()
    assert bench.engine.policy.name == "hostile"


def test_set_aside_is_told_what_and_why():
    told = []
    policy = Hostile("on_launch", raises)
    e = engine(16, make_native(policy, lambda *arguments: told.append(arguments)))
    e.event("launch")
    e.event("launch")
    [(who, why)] = told
    assert who is policy
    assert isinstance(why, KeyError)


def test_wishes_of_a_policy_set_aside_are_forgotten():
    def deed(policy, view, event):
        view.prefetch(0, 4)
        view.wait_for_evictions()
        raise KeyError

    bench = Watched(hire(Hostile("on_launch", deed)), queue=8)
    with pytest.warns(PolicyWarning):
        bench.send("launch")
    assert bench.engine.resident == 0
    assert not bench.engine.inspect(0)["queued"]


# -- what hooks are given -------------------------------------------------------------------------


def test_what_hooks_see():
    seen = []

    class Curious(Policy):
        defaults: ClassVar = {"colour": "red", "depth": 1}

        def on_launch(self, view, launch):
            seen.append((repr(launch), launch.exec_id, launch.seq, launch.ranges))
            assert view.running.seq == 1
            assert view.running.ranges == ()
            assert (view.budget_blocks, view.free_blocks) == (16, 14)
            assert view.options == {"colour": "blue", "depth": 5}
            assert view.resident_blocks == [1, 0]
            assert view.is_resident(0)
            assert not view.is_resident(2)

        def on_fault(self, view, fault):
            seen.append((repr(fault), fault.block, fault.address, fault.exec_id, fault.seq))
            if view.running is None:
                assert fault.seq == 0

        def on_complete(self, view, launch):
            seen.append((launch.exec_id, launch.seq, launch.ranges))
            assert view.predict(7) == [8]
            assert view.predict(8) == []
            assert view.blocks_of(7) == [2]

        def on_alloc(self, view, allocation):
            seen.append((repr(allocation), allocation.address, allocation.bytes, allocation.kind))

        def on_free(self, view, allocation):
            seen.append((allocation.address, allocation.bytes, allocation.kind))

    bench = Bench(16, Curious(colour="blue"), depth=5, learn_allocations=False)
    assert bench.engine.policy.name == "Curious"
    bench.touch(0, 1)
    bench.engine.event("alloc", address=5, bytes=6)
    bench.name(8, 2)
    bench.name(3)
    bench.launch(7)
    bench.launch(8)
    bench.touch(2)
    bench.complete(1)
    bench.engine.event("free", address=5, bytes=6)
    assert seen == [
        ("Fault(block=0, exec_id=0x0, seq=0)", 0, 0, 0, 0),
        ("Fault(block=1, exec_id=0x0, seq=0)", 1, BLOCK, 0, 0),
        ("Allocation(address=0x5, bytes=6, kind='')", 5, 6, ""),
        ("Launch(exec_id=0x7, seq=1)", 7, 1, ((8 * BLOCK, 2 * BLOCK), (3 * BLOCK, BLOCK))),
        ("Launch(exec_id=0x8, seq=2)", 8, 2, ()),
        ("Fault(block=2, exec_id=0x7, seq=1)", 2, 2 * BLOCK, 7, 1),
        (7, 1, ()),
        (5, 6, ""),
    ]
    assert Launch(1, 2, ((3, 4),)).ranges == ((3, 4),)
    assert Launch(1, 2).ranges == ()
    assert (Fault(3, 4, 5).address, Fault(3, 4, 5).exec_id) == (3 * BLOCK, 4)


def test_only_overridden_hooks_are_called_and_a_policy_without_any_is_idle():
    class Idle(Policy):
        pass

    bench = Bench(4, Idle())
    for block in range(9):
        bench.run(1, block)
    assert bench.engine.policy.name == "Idle"
    assert bench.engine.stats["prefetched"] == 0
    assert bench.engine.table_bytes > 0  # it learns by default


def test_a_subclass_of_a_built_in_policy_still_prefetches_by_itself():
    from deepum_policies.chained import Chained

    class Counting(Chained):
        launches = 0

        def on_launch(self, view, launch):
            self.launches += 1

    policy = Counting(successors=2)
    assert make_native(Chained()).name == "chained"
    bench = Bench(64, policy, low=0, high=0)
    for _ in range(3):
        bench.run(1, 10, 11)
        bench.run(2, 20, 21)
    assert policy.launches == 6
    assert bench.engine.policy.name == "Counting"
    before = bench.engine.stats
    for block in (10, 20):
        bench.engine.event("unmanage", address=block * BLOCK, bytes=2 * BLOCK)
        bench.manage(block, 2)
    bench.engine.set_policy(make_native(Counting()))
    bench.run(1, 10, 11)
    bench.run(2, 20, 21)
    stats = bench.engine.stats
    assert stats["prefetched"] - before["prefetched"] == 4
    assert stats["faults"] == before["faults"]


def test_a_hostile_subclass_of_a_built_in_policy_loses_all_of_it():
    from deepum_policies.chained import Chained

    class Bad(Chained):
        def on_fault(self, view, fault):
            raise KeyError

    bench = Bench(64, Bad(), low=0, high=0)
    with pytest.warns(PolicyWarning):
        bench.run(1, 10, 11)
    for _ in range(3):
        bench.run(1, 10, 11)
    assert bench.engine.policy.name == "noop"
    assert bench.engine.table_bytes == 0
    assert bench.engine.stats["prefetched"] == 0


def test_built_in_geometry_is_checked():
    from deepum_policies.single_level import SingleLevel

    for options in ({"rows": 0}, {"rows": -1}, {"ways": "two"}):
        with pytest.raises(PolicyError, match="policy single-level: "):
            make_native(SingleLevel(**options))
    assert make_native(SingleLevel(rows=16)).name == "single-level"


def test_engines_and_their_policies_are_freed():
    import gc

    class Keeps(Policy):
        def on_launch(self, view, launch):
            self.view = view  # a cycle

    policy = Keeps()
    bench = Bench(4, policy)
    bench.run(1)
    gone = weakref.ref(policy)
    del policy, bench
    gc.collect()
    assert gone() is None


def test_queue_length_follows_the_policys_wish():
    class Long(Policy):
        queue = 12

        def on_launch(self, view, launch):
            self.accepted = [view.prefetch(block) for block in range(20)]

    for options, expected in (({}, 12), ({"queue": 3}, 3), ({"queue": 99}, 16)):
        policy = Long()
        bench = Bench(16, policy, **options)
        bench.launch(1)
        assert sum(policy.accepted) == expected
        assert bench.engine.stats["refused"] == 20 - expected


def test_waiting_for_evictions():
    class Waits(Policy):
        pre_evicts = False

        def on_launch(self, view, launch):
            view.evict(0, 2)
            view.wait_for_evictions()
            view.prefetch(9)

    bench = Bench(16, Waits(), learn_allocations=False)
    bench.alloc(0, 16)
    bench.touch(0, 1)
    bench.launch(1)
    assert bench.drain() == [("evict", 0, 2, False, 0)]
    bench.engine.event("departed", address=0)
    assert bench.drain() == []
    bench.fault(5)  # faults do not wait
    assert bench.drain() == [("prefetch", 5, 1, True, 1)]
    bench.engine.event("departed", address=BLOCK)
    assert bench.drain() == [("prefetch", 9, 1, False, 0)]


def test_waiting_for_no_evictions_is_no_waiting():
    class Waits(Policy):
        pre_evicts = False

        def on_launch(self, view, launch):
            if launch.seq == 1:
                view.wait_for_evictions()
            else:
                view.evict(0)
                view.prefetch(9)

    bench = Bench(16, Waits(), learn_allocations=False)
    bench.alloc(0, 16)
    bench.touch(0)
    bench.launch(1)
    bench.launch(2)
    assert brief(bench.drain()) == ["evict 0", "prefetch 9"]


def test_a_subclass_of_a_built_in_policy_without_hooks_has_its_own_way():
    from deepum_policies.chained import Chained

    class Keeps(Chained):
        pre_evicts = False
        invalidates = False

    e = engine(64, Keeps())
    assert (e.policy.learns, e.policy.pre_evicts, e.policy.invalidates) == (True, False, False)

    class Same(Chained):
        pass

    assert make_native(Same()).name == "chained"  # nothing of its own: no detour


def test_an_adapter_has_the_traits_of_its_policy():
    traits = {
        "learns": False,
        "pre_evicts": False,
        "invalidates": False,
        "plain_memory": True,
        "wants_ranges": True,
        "queue": 7,
    }
    default = make_native(Policy())
    own = make_native(type("Own", (Policy,), traits)())
    for name, value in traits.items():
        assert getattr(own, name) == value
        assert getattr(default, name) == getattr(Policy, name) != value


def test_a_subclass_of_the_oracle_chooses_as_the_oracle_does():
    from deepum_policies.oracle import Oracle

    from deepum.backends.sim import SimBackend
    from deepum.trace import Trace

    class Watching(Oracle):
        def on_launch(self, view, launch):
            view.is_resident(0)

    b = Trace.builder("turns")
    tensors = [b.alloc(20 * MIB, "parameter") for _ in range(8)]
    for _ in range(3):
        b.step()
        for k in (0, 1, 2, 0, 3, 4, 5, 0, 6, 7):
            b.launch(f"use {k}", [(tensors[k], "rw")], time_ns=1_000_000)
    trace = b.build()
    runs = [
        SimBackend(trace, policy=policy, memory=100 * MIB).run(4).iterations
        for policy in (Oracle, Watching)
    ]
    assert runs[0] == runs[1]

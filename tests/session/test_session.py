# SPDX-License-Identifier: Apache-2.0
"""Session: policies named in every way, swapped while running, and what the statistics say."""

import doctest
import inspect
import threading
import warnings

import pytest

import deepum
import deepum.backends.sim
import deepum.session
from deepum.backends.results import Iteration
from deepum.backends.stats import COMMON
from deepum.errors import (
    BackendError,
    BudgetError,
    DeepUMError,
    MachineError,
    PolicyError,
    TraceError,
)
from deepum.policy import PolicyWarning

MIB = 1 << 20
BLOCK = 2 * MIB
LAYERS = 12
LIMIT = 40 * BLOCK


@pytest.fixture(scope="module")
def trace():
    """Six layers forward and back under a budget of 40 blocks: much has to move, and much dies."""
    b = deepum.Trace.builder("layers", times="measured")
    weights = [b.alloc(8 * BLOCK, "parameter") for _ in range(LAYERS // 2)]
    for _ in range(2):
        b.step()
        outs = []
        for weight in weights:
            outs.append(b.alloc(4 * BLOCK))
            b.launch("layer", [(weight, "r"), (outs[-1], "w")], time_ns=3_000_000)
        for weight in reversed(weights):
            out = outs.pop()
            b.launch("backward", [(weight, "rw"), (out, "r")], time_ns=3_000_000)
            b.free(out)
    return b.build()


def session(policy="chained", memory_limit=LIMIT, **more):
    return deepum.Session(policy, memory_limit=memory_limit, **more)


class Ahead(deepum.Policy):
    """Fetches the block after the one that faulted."""

    defaults = {"blocks": 2}  # noqa: RUF012

    def on_fault(self, view, fault):
        view.prefetch(fault.block + 1, view.options["blocks"])


# Naming a policy


def test_by_name_class_instance_and_reference(trace, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import deepum\nclass Mine(deepum.Policy):\n    name = 'mine'\n")
    for policy, name in [
        ("noop", "noop"),
        ("single-level", "single-level"),
        ("chained", "chained"),
        ("oracle", "oracle"),
        (Ahead, "Ahead"),
        (Ahead(blocks=3), "Ahead"),
        ("deepum_policies.noop:Noop", "noop"),
        (f"{file}:Mine", "mine"),
    ]:
        with session(policy) as s:
            assert s.policy.name == name
            run = s.run(trace, 2)
            assert run.policy == s.policy.name == s.stats["policy"] == name
            assert len(run.iterations) == 2


def test_the_default_is_chained(trace):
    s = deepum.Session(memory_limit=LIMIT)
    assert s.policy.name == "chained"
    assert (
        s.run(trace, 6).iterations[-1].faults < session("noop").run(trace, 6).iterations[-1].faults
    )


def test_registered_in_this_process(trace, monkeypatch):
    monkeypatch.setattr("deepum.policy._registered", {})
    assert deepum.register_policy("ahead", Ahead) is Ahead
    assert session("ahead").run(trace).policy == "Ahead"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("chaned", "no policy named 'chaned'; did you mean chained?"),
        ("zzz", "no policy named 'zzz'; available: "),
        (3, "3 is neither a policy nor the name of one"),
        (int, "<class 'int'> is not a subclass of deepum.Policy"),
        ("nowhere.py:Mine", "no file nowhere.py to load policy Mine from"),
        ("no_such_module:Mine", "policy no_such_module:Mine does not load: No module named"),
        ("deepum_policies.noop:Nope", "policy deepum_policies.noop:Nope does not load: module"),
        ("math:pi", "math:pi is not a subclass of deepum.Policy"),
    ],
)
def test_what_cannot_be_a_policy(policy, says):
    with pytest.raises(PolicyError) as error:
        session(policy)
    assert str(error.value).startswith(says)
    s = session("noop")
    with pytest.raises(PolicyError):
        s.policy = policy
    assert s.policy.name == "noop"


# What it is opened with


@pytest.mark.parametrize(
    ("more", "kind", "says"),
    [
        ({"backend": "cuda"}, BackendError, "no backend named 'cuda'; this version has: sim"),
        ({"machine": "v100"}, MachineError, "no machine profile or file named 'v100'"),
    ],
)
def test_refused_at_once(more, kind, says):
    with pytest.raises(kind) as error:
        session(**more)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("more", "kind", "says"),
    [
        ({"depth": -1}, DeepUMError, "depth must be between 0 and 1023 kernels, not -1"),
        ({"depth": 1024}, DeepUMError, "depth must be between 0 and 1023 kernels, not 1024"),
        ({"depth": 3.0}, DeepUMError, "depth must be between 0 and 1023 kernels, not 3.0"),
        ({"depth": True}, DeepUMError, "depth must be between 0 and 1023 kernels, not True"),
        ({"without": "magic"}, DeepUMError, "cannot switch off 'magic'; choose from prefetch, "),
        ({"without": ["prefetch", "evict"]}, DeepUMError, "cannot switch off 'evict'"),
        ({"options": {"rowz": 1}}, PolicyError, "policy chained has no option 'rowz'; it has: "),
        ({"options": {"window": 1.5}}, PolicyError, "option window must be of type int, not 1.5"),
        ({"options": {"window": True}}, PolicyError, "option window must be of type int, not True"),
        ({"options": {"ranges": 1}}, PolicyError, "option ranges must be of type bool, not 1"),
        ({"options": {"window": 0}}, DeepUMError, "options: window and max_run must be at least 1"),
        ({"options": {"window": 256}}, DeepUMError, "options: window must be at most 255 blocks"),
        (
            {"options": {"pre_evict_low": 9, "pre_evict_high": 8}},
            DeepUMError,
            "options: high (8) must not be below low (9)",
        ),
        ({"options": {"window": -1}}, DeepUMError, "options: "),
        ({"options": {"rows": -1}}, DeepUMError, "options: "),
        ({"options": {"rows": "many"}}, DeepUMError, "options: "),
        ({"memory_limit": "lots"}, DeepUMError, "'lots' is not a size; write it as 24GiB or 24GB"),
        ({"memory_limit": 1 << 20}, BudgetError, "memory of 1048576 bytes is below one 2 MiB"),
        ({"memory_limit": 0}, DeepUMError, "a size must be above zero, not 0"),
    ],
)
def test_refused_when_it_runs(trace, more, kind, says):
    if "window" in more.get("options", {}):
        more = {"memory_limit": "2GiB", **more}
    with pytest.raises(kind) as error:
        session(**more).run(trace)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_the_largest_depth(trace):
    assert session(depth=1023).run(trace).iterations[0].time_s > 0
    assert session(depth=0).run(trace).iterations[0].time_s > 0


@pytest.mark.parametrize("text", ["80MiB", "80 mib", "80m", "0.078125GiB", 80 * MIB, "83886080"])
def test_memory_limits(trace, text):
    with session(memory_limit=text) as s:
        s.run(trace)
        assert s.stats["budget_blocks"] == 40


def test_a_budget_is_whole_blocks(trace):
    with session(memory_limit=41 * BLOCK - 1) as s:
        s.run(trace)
        assert s.stats["budget_blocks"] == 40


def test_without_a_limit_the_machine_has_its_memory(trace):
    with deepum.Session("noop", machine="a100-pcie4-40g") as s:
        s.run(trace)
        machine = deepum.Machine.load("a100-pcie4-40g")
        assert s.stats["budget_blocks"] == machine.memory_bytes // BLOCK


def test_a_budget_below_one_kernel_names_it(trace):
    with pytest.raises(BudgetError) as error:
        session(memory_limit=11 * BLOCK).run(trace)
    assert str(error.value) == (
        "memory of 0.02 GiB is too small: kernel 'layer' alone touches "
        "0.02 GiB (12 blocks of 2 MiB)"
    )
    assert session(memory_limit=12 * BLOCK).run(trace).iterations[0].faults > 0


def test_switching_mechanisms_off(trace):
    def last(policy="chained", **more):
        return session(policy, **more).run(trace, 6).iterations[-1]

    assert last().prefetched
    assert last().pre_evictions
    assert last().bytes_dropped
    assert not last(without="prefetch").prefetched
    assert not last(without=["invalidate"]).bytes_dropped
    bare = last(without=("prefetch", "pre-evict", "invalidate"))
    assert bare.faults == last("noop").faults
    assert bare.pre_evictions == bare.bytes_dropped == 0


# Running


def test_runs_go_on_where_the_last_one_ended(trace):
    whole = session().run(trace, 6).iterations
    s = session()
    parts = s.run(trace, 2).iterations
    parts += s.run(iterations=1).iterations
    parts += s.run(None, 3).iterations
    assert parts == whole
    assert s.stats["iterations"] == 6


def test_a_trace_given_again_begins_anew(trace):
    s = session()
    first = s.run(trace, 2).iterations
    assert s.run(trace, 2).iterations == first
    assert s.stats["iterations"] == 4


@pytest.mark.parametrize("iterations", [0, -3])
def test_no_iterations(trace, iterations):
    with pytest.raises(DeepUMError, match=f"iterations must be at least 1, not {iterations}"):
        session().run(trace, iterations)


def test_a_trace_that_ends(trace):
    b = deepum.Trace.builder("short")
    x = b.alloc(100)
    b.step()
    b.launch("k", [(x, "r")])
    b.step()
    b.launch("l", [(x, "r")])
    short = b.build(loop=False)
    s = session("oracle")
    assert len(s.run(short, 2).iterations) == 2
    with pytest.raises(TraceError, match="ends after 2 iterations"):
        s.run(iterations=1)
    with pytest.raises(TraceError, match="ends after 2 iterations"):
        session().run(short, 3)


def test_which_trace():
    with pytest.raises(DeepUMError, match="which trace"):
        session().run()


def test_a_trace_by_name_and_path(trace, tmp_path):
    path = tmp_path / "layers.trace"
    trace.save(path)
    expected = session().run(trace, 2).iterations
    assert session().run(path, 2).iterations == expected
    assert session().run(str(path), 2).iterations == expected
    with pytest.raises(TraceError, match="did you mean gpt2-xl-b3"):
        session().run("gpt2-xl-b33")


def test_a_closed_session(trace):
    with session() as s:
        s.run(trace)
    with pytest.raises(DeepUMError, match="the session has ended; open a new one"):
        s.run(trace)
    assert s.stats["iterations"] == 1
    s.close()


def test_timeline_and_progress(trace):
    seen = []
    run = session().run(trace, 3, timeline=True, progress=seen.append)
    assert seen == run.iterations
    assert len(run.timeline.time_s) == LAYERS
    assert run.timeline.time_s[-1] == pytest.approx(run.iterations[-1].time_s)
    assert run.timeline.bytes_in[-1] == run.iterations[-1].bytes_in
    assert run.timeline.resident_bytes.max() <= LIMIT
    again = session().run(trace, 3)
    assert again.timeline is None
    assert again.iterations == run.iterations


def test_a_long_timeline_is_thinned():
    b = deepum.Trace.builder("long", times="measured")
    x = b.alloc(100)
    b.step()
    for _ in range(10_000):
        b.launch("k", [(x, "r")], time_ns=1000)
    run = deepum.simulate(b.build(), policy="noop", iterations=1, timeline=True)
    assert 2000 <= len(run.timeline.time_s) <= 2001
    assert run.timeline.time_s[1] - run.timeline.time_s[0] == pytest.approx(5e-6)


# Swapping


def test_swapping_between_runs(trace):
    s = session("noop")
    before = s.run(trace, 3).iterations[-1]
    s.policy = "chained"
    assert s.policy.name == "chained"
    after = s.run(iterations=5).iterations[-1]
    assert before.prefetched == 0
    assert after.prefetched > 0
    assert after.faults < before.faults
    assert s.stats["iterations"] == 8
    s.policy = "noop"
    back = s.run(iterations=3).iterations[-1]
    assert back.prefetched == 0
    assert back.faults == pytest.approx(before.faults, rel=0.1)
    assert back.time_s == pytest.approx(before.time_s, rel=0.1)


def test_swapping_from_a_progress_callback(trace):
    s = session("noop")
    seen = []

    def progress(iteration):
        seen.append(iteration)
        if len(seen) == 3:
            s.policy = "chained"

    run = s.run(trace, 8, progress=progress)
    assert run.policy == "chained"
    assert [i.prefetched > 0 for i in run.iterations[:3]] == [False] * 3
    assert run.iterations[-1].prefetched > 0
    assert run.iterations[:3] == session("noop").run(trace, 3).iterations
    # Nothing is lost: the kernels' time is the same in each, residency is right.
    assert len({i.compute_s for i in run.iterations}) == 1
    s._backend.engine.check()
    assert s.stats["resident_blocks"] <= 40


def test_swapping_to_the_oracle_in_mid_run(trace):
    s = session("noop")
    count = []

    def progress(iteration):
        count.append(iteration)
        if len(count) == 2:
            s.policy = "oracle"

    run = s.run(trace, 6, progress=progress)
    fastest = session("oracle").run(trace, 6).iterations[-1]
    assert run.policy == "oracle"
    assert run.iterations[-1].faults == 0
    assert run.iterations[-1].time_s == pytest.approx(fastest.time_s, rel=0.02)


@pytest.mark.slow
def test_swapping_from_another_thread():
    # Long steps, so that the change comes within one: seen at the next slice of events.
    b = deepum.Trace.builder("long", times="measured")
    weights = [b.alloc(8 * BLOCK) for _ in range(12)]
    b.step()
    for _ in range(1500):
        for weight in weights:
            b.launch("layer", [(weight, "r")], time_ns=4_000_000)
    trace = b.build()
    s = session("noop")
    started, swapped = threading.Event(), threading.Event()

    def swap():
        started.wait(30)
        s.policy = "chained"
        swapped.set()

    thread = threading.Thread(target=swap)
    thread.start()

    def progress(iteration):
        started.set()
        if len(seen) == 1:
            swapped.wait(30)
        seen.append(iteration)

    seen = []
    run = s.run(trace, 4, progress=progress)
    thread.join()
    assert run.policy == "chained"
    assert run.iterations[0].prefetched == 0
    assert run.iterations[-1].prefetched > 0
    assert run.iterations[-1].compute_s == run.iterations[0].compute_s
    s._backend.engine.check()


def test_a_swap_takes_effect_within_an_iteration(trace, monkeypatch):
    # The next slice of events sees it, not only the next iteration.
    monkeypatch.setattr(deepum.backends.sim, "_SLICE", 9)
    backend = deepum.backends.sim.SimBackend(trace, policy="noop", memory=LIMIT)
    backend.run(1)

    class Once(deepum.Policy):
        name = "once"

        def on_launch(self, view, launch):
            if launch.seq == LAYERS + 4:
                backend.policy = "oracle"

    backend.policy = Once
    assert backend.policy.name == "once"
    run = backend.run(1)
    assert run.policy == backend.policy.name == "oracle"
    assert run.iterations[0].prefetched > 0


def test_a_policy_set_before_the_first_run(trace):
    s = session("noop")
    s.policy = Ahead
    assert s.policy is Ahead
    assert s.run(trace).policy == "Ahead"


# Statistics


def test_statistics_are_sums(trace):
    s = session()
    empty = s.stats
    assert empty["iterations"] == empty["faults"] == empty["time_s"] == 0
    assert empty["table_bytes"] == empty["budget_blocks"] == empty["resident_blocks"] == 0
    assert empty["set_aside"] == ""
    assert empty["prefetch_accuracy"] is None
    assert empty["prefetch_coverage"] is None
    assert empty["prefetch_timeliness"] is None
    done = s.run(trace, 3).iterations + s.run(iterations=2).iterations
    stats = s.stats
    fields = list(Iteration.__dataclass_fields__)
    for name in fields:
        assert stats[name] == sum(getattr(i, name) for i in done), name
    used, faults = stats["prefetch_used"], stats["faults"]
    assert used > stats["late"] > 0
    assert stats["prefetch_accuracy"] == used / stats["prefetched"]
    assert stats["prefetch_coverage"] == used / (used + faults)
    assert stats["prefetch_timeliness"] == (used - stats["late"]) / used
    assert stats["policy"] == "chained"
    assert stats["table_bytes"] == s._backend.engine.table_bytes > 0
    assert 0 < stats["resident_blocks"] <= stats["budget_blocks"] == 40
    assert set(stats) == {*fields, *COMMON, "iterations"}
    assert stats["steps"] == 5
    assert stats["last_step_s"] == done[-1].time_s
    assert stats["limit_bytes"] == 40 << 21


def test_statistics_of_noop(trace):
    s = session("noop")
    s.run(trace, 2)
    assert s.stats["prefetch_coverage"] == 0.0
    assert s.stats["prefetch_accuracy"] is None
    assert s.stats["table_bytes"] == 0


def test_json(trace):
    run = session().run(trace, 2)
    data = run.to_json()
    assert set(data) == {"policy", "table_bytes", "iterations"}
    assert data["policy"] == "chained"
    assert data["table_bytes"] == run.table_bytes
    wanted = "time_s compute_s stall_s faults page_faults bytes_in bytes_out bytes_dropped"
    assert {*wanted.split(), "prefetched", "prefetch_used", "late"} <= set(data["iterations"][0])
    assert [i["time_s"] for i in data["iterations"]] == [i.time_s for i in run.iterations]


# Policies that go wrong


class Raises(deepum.Policy):
    """Works for a while."""

    name = "raises"

    def on_launch(self, view, launch):
        if launch.seq == 30:
            raise RuntimeError("out of ideas")


def test_a_policy_that_raises_is_set_aside(trace):
    s = session(Raises)
    with pytest.warns(PolicyWarning) as caught:
        run = s.run(trace, 6)
    assert [str(w.message) for w in caught] == [
        "policy raises was set aside, plain demand paging goes on: RuntimeError: out of ideas"
    ]
    assert s.stats["set_aside"] == run.set_aside == "RuntimeError: out of ideas"
    assert run.to_json()["set_aside"] == "RuntimeError: out of ideas"
    naive = session("noop").run(trace, 6).iterations[-1]
    last = run.iterations[-1]
    assert (last.prefetched, last.pre_evictions, last.bytes_dropped) == (0, 0, 0)
    assert last.faults == pytest.approx(naive.faults, rel=0.1)
    assert last.time_s == pytest.approx(naive.time_s, rel=0.1)
    s._backend.engine.check()
    # Another one may take over, and then nothing is set aside.
    s.policy = "chained"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert s.run(iterations=4).iterations[-1].prefetched > 0
    assert s.stats["set_aside"] == ""


class Floods(deepum.Policy):
    """Asks for too much at once."""

    name = "floods"

    def on_fault(self, view, fault):
        view.prefetch(0, 1 << 20)


class Nonsense(deepum.Policy):
    """Answers what is no list of blocks."""

    name = "nonsense"
    pre_evicts = False

    def victims(self, view, count):
        return ["soon", -1]


@pytest.mark.parametrize("policy", [Floods, Nonsense])
def test_nonsense_is_set_aside(trace, policy):
    s = session(policy)
    with pytest.warns(PolicyWarning, match=f"policy {policy.name} was set aside"):
        run = s.run(trace, 3)
    naive = session("noop").run(trace, 3).iterations[-1].faults
    assert run.iterations[-1].faults == pytest.approx(naive, rel=0.1)
    assert s.stats["set_aside"]


class Starts(deepum.Policy):
    """Does not start."""

    name = "starts"

    def __init__(self):
        raise OSError("no file")


def test_a_policy_that_does_not_start(trace):
    with pytest.raises(PolicyError, match="policy starts does not start: no file"):
        session(Starts).run(trace)


def test_options_go_to_classes(trace):
    run = session(Ahead, options={"blocks": 1}).run(trace, 2)
    assert run.iterations[-1].prefetched > 0
    assert session(Ahead, options={"blocks": 0}).run(trace, 2).iterations[-1].prefetched == 0
    with pytest.raises(PolicyError, match="policy Ahead is an instance: give options to its"):
        session(Ahead(), options={"blocks": 1}).run(trace)


@pytest.mark.slow
@pytest.mark.parametrize("module", [deepum.session, deepum.backends.sim])
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_pointers_and_allocations_are_options(trace):
    def last(**options):
        return session(options=options).run(trace, 6).iterations[-1]

    assert last() == last(pointers=True, learn_allocations=True, window=32)
    assert last() != last(pointers=False)
    assert last() != last(window=1)
    assert last() != last(pre_evict_low=0, pre_evict_high=0)


def test_defaults(trace):
    # The paper's distance, and thresholds that its results were compared with: part of the
    # contract, since a change alters every published number.
    options = deepum.backends.sim.ENGINE_OPTIONS
    assert {name: options[name] for name in ("pre_evict_low", "pre_evict_high", "window")} == {
        "pre_evict_low": 32,
        "pre_evict_high": 64,
        "window": 32,
    }
    assert options["learn_allocations"]
    assert options["pointers"]
    assert not any(options[name] for name in ("queue", "drop_clean", "auto_depth", "ranges"))
    run = deepum.simulate(trace, memory=LIMIT)
    assert (run.policy, len(run.iterations)) == ("chained", 6)
    assert run == deepum.simulate(
        trace, "v100-pcie3-32g", "chained", memory=LIMIT, depth=32, iterations=6, options=options
    )
    for function in (deepum.simulate, deepum.backends.sim.SimBackend, deepum.Session):
        assert inspect.signature(function).parameters["depth"].default == 32

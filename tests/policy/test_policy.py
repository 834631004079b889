# SPDX-License-Identifier: Apache-2.0
"""How policies are found, what is said of them, and what a subclass may change."""

import sys
import time
from pathlib import Path

import pytest
from deepum_policies.chained import Chained
from deepum_policies.noop import Noop
from deepum_policies.oracle import Oracle
from deepum_policies.single_level import SingleLevel

import deepum
from deepum import policy as policies
from deepum._core.engine import NativePolicy
from deepum._core.noop import NoopPolicy
from deepum._core.python_policy import PythonPolicy
from deepum.backends.sim import SimBackend, simulate
from deepum.errors import PolicyError
from deepum.policy import Policy, PolicyInfo, available, find, make, make_native, register_policy
from deepum.trace import Operand

BLOCK = 2 << 20
BUILT_IN = {"noop": Noop, "single-level": SingleLevel, "chained": Chained, "oracle": Oracle}


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch):
    monkeypatch.setattr(policies, "_registered", {})


@pytest.fixture(scope="module")
def trace():
    b = deepum.Trace.builder("layers", times="measured")
    weights = [b.alloc(8 * BLOCK, "parameter") for _ in range(12)]
    b.step()
    for weight in weights:
        b.launch("layer", [(weight, "rw")], time_ns=4_000_000)
    return b.build()


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Return what installs a fake distribution with entry points and a module."""

    def install(entries, module="", name="stranger"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        (info / "entry_points.txt").write_text(f"[deepum.policies]\n{lines}")
        (tmp_path / "stranger_policies.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "stranger_policies", raising=False)

    yield install
    sys.modules.pop("stranger_policies", None)


MODULE = '''
import deepum

class Strange(deepum.Policy):
    """Does as strangers do.

    More of it.
    """

    defaults = {"amount": 3, "mode": "soft"}

class Bare(deepum.Policy):
    pass

def function():
    pass
'''


# What there is


def test_built_in_policies():
    found = available()
    assert set(BUILT_IN) <= set(found)
    assert list(found) == sorted(found)
    for name, policy in BUILT_IN.items():
        info = found[name]
        assert info == PolicyInfo(name, info.summary, "built in", dict(policy.defaults))
        assert info.summary == policy.__doc__.splitlines()[0]
        assert info.summary.endswith(".")
        assert find(name) is policy
        assert policy.name == name
    assert found["chained"].options == {
        "rows": 2048,
        "ways": 2,
        "successors": 4,
        "levels": 1,
        "next_use": False,
        "gate": True,
    }
    assert found["single-level"].options == {
        "rows": 65536,
        "ways": 2,
        "successors": 4,
        "levels": 1,
    }
    assert found["noop"].options == {}
    assert found["oracle"].options["horizon"] > 0


def test_a_strangers_package(distribution, trace):
    distribution({"strange": "stranger_policies:Strange"}, MODULE)
    assert available()["strange"] == PolicyInfo(
        "strange", "Does as strangers do.", "stranger", {"amount": 3, "mode": "soft"}
    )
    with deepum.Session("strange", memory_limit=40 * BLOCK, options={"amount": 4}) as session:
        assert session.run(trace).policy == "Strange"
        assert session.policy.options == {"amount": 4, "mode": "soft"}
        session.policy = "noop"
        session.policy = "strange"
        assert session.run(iterations=1).policy == "Strange"
    with pytest.raises(PolicyError, match=r"did you mean strange"):
        find("strangr")


def test_a_policy_without_a_docstring_has_no_summary(distribution):
    distribution({"bare": "stranger_policies:Bare"}, MODULE)
    assert available()["bare"].summary in ("", *(Policy.__doc__.splitlines()[:1]))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("stranger_policies:Missing", "module 'stranger_policies' has no attribute 'Missing'"),
        ("stranger_policies:function", "stranger_policies:function is not a subclass of"),
        ("no_such_module:Strange", "No module named 'no_such_module'"),
    ],
)
def test_one_that_does_not_load_is_listed_with_the_reason(distribution, value, reason):
    distribution({"broken": value, "strange": "stranger_policies:Strange"}, MODULE)
    found = available()
    assert found["broken"].summary.startswith("does not load: ")
    assert reason in found["broken"].summary
    assert found["broken"].source == "stranger"
    assert found["broken"].options == {}
    assert found["strange"].summary == "Does as strangers do."
    with pytest.raises(PolicyError, match=reason):
        find("broken")


def test_one_whose_module_raises(distribution):
    distribution({"broken": "stranger_policies:Strange"}, "raise OSError('no disk')")
    assert available()["broken"].summary == "does not load: policy broken does not load: no disk"


def test_registering():
    class Mine(Policy):
        """Mine."""

        defaults = {"x": 1}  # noqa: RUF012

    assert register_policy("mine", Mine) is Mine
    assert find("mine") is Mine
    assert available()["mine"] == PolicyInfo("mine", "Mine.", "this process", {"x": 1})
    register_policy("aaa", Mine)
    assert list(available()) == sorted(available())
    register_policy("noop", Mine)  # a name that is taken is taken over, here only
    assert find("noop") is Mine


@pytest.mark.parametrize("name", ["", "a:b", "a,b"])
def test_what_cannot_be_a_name(name):
    with pytest.raises(PolicyError, match=r"cannot be the name of a policy: no ':' or ','"):
        register_policy(name, Noop)


@pytest.mark.parametrize("thing", [Noop(), int, "noop", None])
def test_what_cannot_be_registered(thing):
    with pytest.raises(PolicyError, match=r"is not a subclass of deepum.Policy"):
        register_policy("mine", thing)


def test_no_policies_at_all(monkeypatch):
    monkeypatch.setattr(policies, "_entries", dict)
    with pytest.raises(PolicyError, match=r"no policies found: is deepum installed"):
        find("noop")
    assert available() == {}


# References


def test_references(tmp_path, monkeypatch):
    (tmp_path / "by_name.py").write_text(MODULE)
    folder = tmp_path / "a folder: odd"
    folder.mkdir()
    (folder / "other.py").write_text(MODULE)
    assert find(f"{folder}/other.py:Strange").__name__ == "Strange"
    # A module in the folder where the program was started.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(Path.cwd()))])
    assert find("by_name:Strange").__name__ == "Strange"
    assert find("by_name.py:Bare").name == "Bare"
    sys.modules.pop("by_name")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "does not load: No module named 'no_such_module'"),
        ("class Mine: pass", "is not a subclass of deepum.Policy"),
        ("class Mine(", "does not load: '.' was never closed"),
        ("Other = 1", "has no attribute 'Mine'"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, reason):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(PolicyError, match=reason):
        find(f"{file}:Mine")
    with pytest.raises(PolicyError, match=r"no file"):
        find(f"{tmp_path}/absent.py:Mine")


# The base class


def test_names():
    class Plain(Policy):
        pass

    class Named(Policy):
        name = "named"

    class Child(Named):
        pass

    assert [p.name for p in (Plain, Named, Child)] == ["Plain", "named", "Child"]


def test_options():
    class Some(Policy):
        defaults = {"b": 2, "a": 1}  # noqa: RUF012

    assert Some().options == {"a": 1, "b": 2}
    assert Some(a=5).options == {"a": 5, "b": 2}
    assert Some.defaults == {"b": 2, "a": 1}
    with pytest.raises(PolicyError, match=r"policy Some has no option 'c'; it has: a, b$"):
        Some(c=1)
    with pytest.raises(PolicyError, match=r"policy noop has no option 'c'; it has: none$"):
        Noop(c=1)
    assert make(Some, {"a": 9}).options["a"] == 9
    assert make("chained", {"rows": 4}).options == {
        "rows": 4,
        "ways": 2,
        "successors": 4,
        "levels": 1,
        "next_use": False,
        "gate": True,
    }
    with pytest.raises(PolicyError, match=r"has no option"):
        make("noop", {"a": 9})
    one = Some()
    assert make(one) is one
    with pytest.raises(PolicyError, match=r"give options to its class"):
        make(one, {"a": 9})


def test_what_a_policy_does_if_it_does_nothing(trace):
    class Nothing(Policy):
        pass

    nothing = Nothing()
    for hook in (nothing.on_launch, nothing.on_fault, nothing.on_complete, nothing.victims):
        assert hook(None, None) is None
    assert (Policy.learns, Policy.pre_evicts, Policy.invalidates, Policy.native) == (
        True,
        True,
        True,
        "",
    )
    assert isinstance(make_native(Nothing()), PythonPolicy)

    class Bare(Nothing):
        pre_evicts = invalidates = learns = False

    naive, bare = (
        simulate(trace, policy=p, memory=40 * BLOCK, iterations=3) for p in ("noop", Bare)
    )
    assert naive.iterations == bare.iterations
    assert bare.table_bytes == 0
    assert simulate(trace, policy=Nothing, memory=40 * BLOCK, iterations=3).table_bytes > 0


# What does the work


def test_built_in_policies_run_without_python():
    for name, policy in BUILT_IN.items():
        native = make_native(policy())
        assert isinstance(native, NativePolicy)
        assert not isinstance(native, PythonPolicy)
        assert native.name == name
    assert isinstance(make_native(Noop()), NoopPolicy)

    class Renamed(Chained):
        name = "renamed"

    assert not isinstance(make_native(Renamed()), PythonPolicy)


@pytest.mark.parametrize("hook", policies.HOOKS)
def test_one_hook_makes_it_a_python_policy(hook):
    subclass = type("Sub", (Chained,), {hook: lambda self, view, event: None})
    assert isinstance(make_native(subclass()), PythonPolicy)


def test_options_reach_the_native_part(trace):
    def table_bytes(policy, **options):
        return simulate(trace, policy=policy, memory=40 * BLOCK, options=options).table_bytes

    assert table_bytes("chained", successors=8) > table_bytes("chained")
    assert table_bytes("single-level", successors=8) > table_bytes("single-level")

    def backend(**options):
        return SimBackend(trace, policy="oracle", memory=40 * BLOCK, options=options)

    near, far = (backend(horizon=h).run(4).iterations[-1] for h in (0, 64))
    assert near.stall_s > far.stall_s
    for name in ("chained", "single-level"):
        with pytest.raises(deepum.DeepUMError, match=f"^(options|policy {name}): "):
            table_bytes(name, ways=0)
    with pytest.raises(PolicyError, match=r"^policy oracle: "):
        backend(horizon="far")


def test_a_subclass_may_add_options_of_its_own(trace):
    class More(SingleLevel):
        defaults = {**SingleLevel.defaults, "extra": 5}  # noqa: RUF012

        def on_launch(self, view, launch):
            seen.append((view.options["extra"], view.options["depth"], view.options["rows"]))

    seen = []
    run = simulate(
        trace, policy=More, memory=40 * BLOCK, iterations=1, depth=7, options={"extra": 6}
    )
    assert run.set_aside == ""
    assert set(seen) == {(6, 7, 65536)}
    more = Oracle.__subclasses__()
    assert all(s.native == "oracle" for s in more)


# Subclasses of a built-in policy


def test_overriding_victims(trace):
    class Newest(Chained):
        """Evicts what came last."""

        name = "newest"

        def victims(self, view, count):
            asked.append(count)
            return list(reversed(view.resident_blocks))[:count]

    asked = []
    plain = simulate(trace, policy="chained", memory=40 * BLOCK, iterations=4)
    run = simulate(trace, policy=Newest, memory=40 * BLOCK, iterations=4)
    assert run.set_aside == ""
    assert asked
    assert min(asked) >= 1
    assert run.iterations[-1].prefetched > 0  # the native part goes on
    assert run.iterations[-1] != plain.iterations[-1]


def test_victims_that_keep_the_default(trace):
    class Default(Chained):
        name = "default"

        def victims(self, view, count):
            asked.append(count)

    asked = []
    plain = simulate(trace, policy="chained", memory=40 * BLOCK, iterations=4)
    run = simulate(trace, policy=Default, memory=40 * BLOCK, iterations=4)
    assert asked
    assert run.iterations == plain.iterations


def test_overriding_on_fault(trace):
    class Watches(Chained):
        """Chained, and looks on."""

        name = "watches"

        def on_fault(self, view, fault):
            faults.append((fault.block, fault.exec_id, fault.seq))
            assert fault.address == fault.block << 21
            assert not view.is_resident(fault.block)
            assert view.running.seq == fault.seq
            assert view.running.exec_id == fault.exec_id

    faults = []
    plain = simulate(trace, policy="chained", memory=40 * BLOCK, iterations=4)
    run = simulate(trace, policy=Watches, memory=40 * BLOCK, iterations=4)
    assert run.set_aside == ""
    assert run.iterations == plain.iterations
    assert len(faults) == sum(i.faults for i in run.iterations) > 0
    assert len({exec_id for _, exec_id, _ in faults}) <= 12


def test_hooks_see_launches_in_order(trace):
    class Watches(Policy):
        """Looks on."""

        def on_launch(self, view, launch):
            calls.append(("launch", launch.seq))
            assert view.budget_blocks == 40
            assert 0 <= view.free_blocks <= 40
            ranges.append(launch.ranges)

        def on_complete(self, view, launch):
            calls.append(("complete", launch.seq))

    for wanted in (False, True):
        calls, ranges = [], []
        run = simulate(
            trace, policy=Watches, memory=40 * BLOCK, iterations=1, options={"ranges": wanted}
        )
        assert run.set_aside == ""
        assert calls == [(c, seq) for seq in range(1, 13) for c in ("launch", "complete")]
        first = int(trace.columns()["tensor_address"][0])
        named = [((first + 8 * BLOCK * i, 8 * BLOCK),) for i in range(12)]
        assert ranges == (named if wanted else [()] * 12)


def test_a_policy_may_want_the_tensors_named():
    class Names(Policy):
        """Looks on."""

        wants_ranges = True

        def on_launch(self, view, launch):
            ranges.append(launch.ranges)

    ranges = []
    b = deepum.Trace.builder("twice")
    x, y = b.alloc(3 * BLOCK), b.alloc(1000)
    b.step()
    b.launch("k", [(x, "r"), Operand(y, "r", 8, 8), (x, "w"), (y, "w")])
    b.launch("nothing")
    run = simulate(b.build(), policy=Names, iterations=1)
    assert run.set_aside == ""
    # The PT block of each operand, once.
    assert ranges == [((b.address(x), 3 * BLOCK), (b.address(y), 1024)), ()]


def test_set_aside_by_default_is_a_warning():
    with pytest.warns(policies.PolicyWarning, match=r"policy noop was set aside, .*: too slow"):
        policies.warn_set_aside(Noop(), "too slow")
    with pytest.warns(policies.PolicyWarning, match=r"goes on: ValueError: no"):
        policies.warn_set_aside(Noop(), ValueError("no"))


def test_patience_is_the_policys_own():
    b = deepum.Trace.builder("one")
    tensor = b.alloc(4 << 20)
    b.step()
    b.launch("k", [(tensor, "rw")], time_ns=1000)
    trace = b.build()

    class Slow(Policy):
        patience = 0.05

        def on_launch(self, view, launch):
            time.sleep(0.2)

    class Patient(Slow):
        patience = 30.0

    assert Policy.patience == 1.0
    with pytest.warns(policies.PolicyWarning, match="a hook took 0"):
        assert "a hook took" in deepum.simulate(trace, policy=Slow, iterations=1).set_aside
    assert deepum.simulate(trace, policy=Patient, iterations=1).set_aside == ""

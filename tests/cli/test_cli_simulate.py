# SPDX-License-Identifier: Apache-2.0
"""``deepum simulate`` and ``deepum demo``: the contract, good and bad input."""

import json
import shutil
import sys

import pytest

from deepum.commands import runs
from deepum.errors import DeepUMError
from deepum.trace import Trace

# Half of the small trace's peak.
SMALL = ("--memory", "96MiB", "--jobs", "1")
ITERATION_KEYS = {
    "time_s",
    "compute_s",
    "stall_s",
    "faults",
    "page_faults",
    "bytes_in",
    "bytes_out",
    "bytes_dropped",
    "prefetched",
    "prefetch_used",
    "late",
}
POLICY = """
import deepum


class Ahead(deepum.Policy):
    \"\"\"Fetch the next block.\"\"\"

    def __init__(self, blocks: int = 1) -> None:
        self.blocks = blocks

    def on_fault(self, view, fault):
        view.prefetch(fault.block + 1, self.blocks)


class Broken(deepum.Policy):
    \"\"\"Fail at the tenth launch.\"\"\"

    launches = 0

    def on_launch(self, view, launch):
        self.launches += 1
        if self.launches == 10:
            raise ZeroDivisionError("oh no")
"""


@pytest.fixture
def own_policy(tmp_path):
    """Put a module with two policies into the current folder."""
    (tmp_path / "my_policies_for_tests.py").write_text(POLICY)
    yield "my_policies_for_tests"
    sys.modules.pop("my_policies_for_tests", None)


def simulated(run, *arguments, status: int = 0) -> dict:
    return json.loads(run("simulate", *arguments, "--json", "-", status=status).stdout)


def test_json_is_the_contract(run, trace_file):
    data = simulated(run, trace_file, *SMALL)
    assert list(data) == ["machine", "memory_bytes", "traces"]
    assert data["machine"] == "v100-pcie3-32g"
    assert data["memory_bytes"] == 96 << 20
    (trace,) = data["traces"]
    assert list(trace) == ["trace", "peak_bytes", "ideal_s", "bound_s", "runs"]
    assert trace["trace"] == "tiny"
    assert trace["peak_bytes"] == 192 << 20
    assert [r["policy"] for r in trace["runs"]] == ["noop", "single-level", "chained", "oracle"]
    for one in trace["runs"]:
        assert list(one) == ["policy", "table_bytes", "iterations"]
        assert len(one["iterations"]) == 6
        for step in one["iterations"]:
            assert set(step) >= ITERATION_KEYS
            assert step["time_s"] >= trace["ideal_s"] * 0.999


def test_table(run, trace_file):
    text = run("simulate", trace_file, *SMALL).stdout
    for piece in ("layers, batch 4: peak 201 MB in 101 MB (2.00×)", "noop", "oracle", "bound"):
        assert piece in text, piece


def test_jobs_change_nothing(run, trace_file):
    arguments = (trace_file, "--memory", "96MiB", "--policy", "noop,chained")
    alone = simulated(run, *arguments, "--jobs", "1")
    together = simulated(run, *arguments, "--jobs", "2")
    assert alone == together


def test_several_traces_each_once(run, trace_file, tmp_path):
    shutil.copy(trace_file, tmp_path / "other.trace")
    data = simulated(run, trace_file, "other.trace", trace_file, *SMALL, "--policy", "noop")
    assert len(data["traces"]) == 2


def test_policies_without_doubles_in_their_order(run, trace_file):
    data = simulated(run, trace_file, *SMALL, "--policy", "chained,noop,chained")
    assert [r["policy"] for r in data["traces"][0]["runs"]] == ["chained", "noop"]


def test_iterations(run, trace_file):
    data = simulated(run, trace_file, *SMALL, "--policy", "noop", "--iterations", "2")
    assert len(data["traces"][0]["runs"][0]["iterations"]) == 2


def test_without_prefetch_nothing_is_prefetched(run, trace_file):
    data = simulated(run, trace_file, *SMALL, "--policy", "chained", "--without", "prefetch")
    assert sum(s["prefetched"] for s in data["traces"][0]["runs"][0]["iterations"]) == 0
    data = simulated(run, trace_file, *SMALL, "--policy", "chained")
    assert sum(s["prefetched"] for s in data["traces"][0]["runs"][0]["iterations"]) > 0


def test_machine_from_a_file(run, trace_file, tmp_path, repo):
    source = repo / "src" / "deepum" / "machines" / "a100-pcie4-40g.toml"
    text = source.read_text("utf-8").replace('name = "a100-pcie4-40g"', 'name = "mine"')
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    data = simulated(run, trace_file, "--machine", "mine.toml", *SMALL, "--policy", "noop")
    assert data["machine"] == "mine"


def test_own_policy_from_the_current_folder(run, trace_file, own_policy):
    name = f"{own_policy}:Ahead"
    data = simulated(run, trace_file, *SMALL, "--policy", name, "--option", "blocks=2")
    assert data["traces"][0]["runs"][0]["iterations"][0]["prefetched"] > 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_policy_that_is_set_aside(run, trace_file, own_policy, jobs):
    arguments = ["simulate", trace_file, "--memory", "96MiB", "--jobs", jobs, "--json", "-"]
    result = run(*arguments, "--policy", f"noop,{own_policy}:Broken")
    assert len(json.loads(result.stdout)["traces"][0]["runs"]) == 2
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "oh no" in warnings[0]


def test_all_outputs_at_once(run, trace_file, tmp_path):
    pytest.importorskip("matplotlib")
    result = run(
        "simulate", trace_file, *SMALL, "--json", "r.json", "--html", "r.html", "--plot", "r.svg"
    )
    assert "chained" in result.stdout
    assert [f"wrote r.{kind}" in result.stderr for kind in ("json", "html", "svg")] == [True] * 3
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["traces"]
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "layers, batch 4" in page
    assert "Memory and bus under chained" in page
    assert (tmp_path / "r.svg").read_text("utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Missing argument"),
        (["TRACE", "--policy", ","], "--policy names no policy"),
        (["TRACE", "--memory", "lots"], "'lots' is not a size"),
        (["TRACE", "--without", "evict"], "'evict' is not one of"),
        (["TRACE", "--option", "depth"], "not of the form key=value"),
        (["TRACE", "--iterations", "0"], "not in the range"),
        (["TRACE", "--depth", "0"], "not in the range"),
    ],
)
def test_wrong_use(run, trace_file, arguments, text):
    arguments = [trace_file if a == "TRACE" else a for a in arguments]
    assert text in run("simulate", *arguments, status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no-such-trace"], "no shipped trace named 'no-such-trace'"),
        (["TRACE", "--machine", "h100"], "no machine profile or file named 'h100'"),
        (["TRACE", "--policy", "chian"], "chian"),
        (["TRACE", "--policy", "no_such_module:Policy"], "no_such_module"),
        (["TRACE", "--policy", "noop", "--option", "speed=9"], "no policy of this run has"),
        (["TRACE", "--policy", "noop", "--option", "chained.x=1"], "'chained' is not among"),
        (["TRACE", "--json", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["TRACE", "--html", "report.txt"], "must end in .html or .htm"),
        (["TRACE", "--plot", "plot.gif"], "must end in .png or .svg"),
    ],
)
def test_errors_are_one_line(run, trace_file, arguments, text):
    arguments = [trace_file if a == "TRACE" else a for a in arguments]
    result = run("simulate", *arguments, "--jobs", "1", status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr


def test_budget_below_one_kernel_names_the_kernel(run, trace_file):
    for jobs in ("1", "2"):
        arguments = ("--memory", "8MiB", "--policy", "noop,chained", "--jobs", jobs)
        text = run("simulate", trace_file, *arguments, status=2).stderr
        assert text.startswith("error: ")
        assert text.count("\n") == 1
        assert "ward" in text  # forward or backward


def test_trace_is_not_overwritten_by_json(run, trace_file, tmp_path):
    shutil.copy(trace_file, tmp_path / "b.trace")
    text = run("simulate", trace_file, "--json", "b.trace", status=2).stderr
    assert "is a trace and would be overwritten; write --json -" in text


def test_reports_without_matplotlib(run, trace_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = run("simulate", trace_file, *SMALL, "--html", "r.html", status=2).stderr
    assert (
        text == "error: plots need matplotlib, which is not installed: pip install 'deepum[plot]'\n"
    )


def test_options_go_to_the_policies_that_have_them(own_policy, run):
    ahead = f"{own_policy}:Ahead"
    given = {"rows": 64, "chained.ways": 4, "window": 8, "blocks": 3}
    assert runs.split_options(["noop", "single-level", "chained", ahead], given) == {
        "noop": {"window": 8},
        "single-level": {"rows": 64, "window": 8},
        "chained": {"rows": 64, "ways": 4, "window": 8},
        ahead: {"window": 8, "blocks": 3},
    }
    with pytest.raises(
        DeepUMError,
        match="no policy of this run has an option 'z'; there are: auto_depth, drop_clean, le",
    ):
        runs.split_options(["noop"], {"z": 1})
    with pytest.raises(DeepUMError, match="has no option 'z'"):
        runs.split_options(["noop"], {"noop.z": 1})


def test_progress_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    task = runs.Task("some-trace", None, 1, 1, "chained")
    with runs.progress(2) as done:
        done(task)
    assert "some-trace: chained done" in capsys.readouterr().err


def test_no_progress_bar_in_a_pipe(capsys):
    with runs.progress(2) as done:
        done(runs.Task("some-trace", None, 1, 1))
    assert capsys.readouterr().err == ""


def test_demo(run, trace_file, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: {"gpt2-xl-b3": trace_file}))
    result = run("demo", "--memory", "96MiB", "--jobs", "1")
    for piece in ("chained", "bound", "times what there is", "Nothing can run a step in less"):
        assert piece in result.stdout, piece
    assert result.stderr == "wrote deepum-demo.html\n"
    assert "layers, batch 4" in (tmp_path / "deepum-demo.html").read_text("utf-8")


def test_demo_of_another_trace_as_json(run, trace_file, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("--memory", "96MiB", "--jobs", "1", "--html", "mine.html", "--json")
    data = json.loads(run("demo", trace_file, *arguments).stdout)
    assert data["traces"][0]["trace"] == "tiny"
    assert (tmp_path / "mine.html").exists()


def test_demo_without_matplotlib(run, trace_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", trace_file, "--memory", "96MiB", "--jobs", "1")
    assert "chained" in result.stdout
    assert result.stderr.startswith("warning: no report: plots need matplotlib")
    assert not (tmp_path / "deepum-demo.html").exists()


def test_both_memory_modes_at_once(run, trace_file):
    asked = (trace_file, *SMALL, "--machine", "h200-pcie5", "--policy", "noop,chained")
    both = simulated(
        run, *asked, "--memory-mode", "managed,vmm", "--option", "ahead=8", "--option", "window=16"
    )
    (trace,) = both["traces"]
    names = [one["policy"] for one in trace["runs"]]
    assert names == ["noop", "chained", "noop, vmm", "chained, vmm"]
    assert trace["bound_vmm_s"] < trace["bound_s"]
    last = {one["policy"]: one["iterations"][-1] for one in trace["runs"]}
    assert last["noop"]["faults"] > 0 == last["noop, vmm"]["faults"]
    assert last["noop, vmm"]["time_s"] < last["noop"]["time_s"]
    # Each as if it had been asked for alone.
    (alone,) = simulated(
        run, *asked, "--memory-mode", "vmm", "--option", "ahead=8", "--option", "window=16"
    )["traces"]
    assert alone["runs"] == trace["runs"][2:]
    assert alone["bound_s"] == trace["bound_vmm_s"]
    shown = run("simulate", *asked, "--memory-mode", "managed,vmm").stdout
    assert "chained, vmm" in shown
    assert "bound, vmm" in shown


def test_memory_modes_that_cannot_be(run, trace_file):
    result = run("simulate", trace_file, "--memory-mode", "vmm", status=2)
    assert "v100-pcie3-32g has no [vmm] section" in result.output
    result = run("simulate", trace_file, "--memory-mode", "swap", status=2)
    assert "'swap' is not one of managed, vmm" in result.output
    result = run("simulate", trace_file, "--memory-mode", ",", status=2)
    assert "names no memory mode" in result.output
    result = run("simulate", trace_file, *SMALL, "--option", "ahead=8", status=2)
    assert "ahead" in result.output

# SPDX-License-Identifier: Apache-2.0
"""G10's traces, machine constants and DeepUM+; what needs the traces skips without them."""

import dataclasses
import gzip
import json

import pytest

import deepum
from deepum.backends.sim import bound, simulate
from deepum.errors import MachineError, PolicyError
from deepum.machine import Machine
from deepum.reproduce import g10
from deepum.reproduce.deepum_plus import DeepUMPlus

BLOCK = 2 << 20
PAGE = 4096

# Pages that plain UVM moves in, in one iteration, from host and SSD (the artifact's
# example_results/overall_traffic/traffic.txt).
UVM_PAGES_IN = {"BERT-256": 45385726, "VIT-1280": 52147993 + 6142981}

needs_traces = pytest.mark.skipif(bool(g10.absence()), reason=g10.absence() or "present")


def layers(count=40, blocks=4, time_ns=2_000_000, steps=1):
    b = deepum.Trace.builder("layers", times="measured")
    weights = [b.alloc(blocks * BLOCK, "parameter") for _ in range(count)]
    for step in range(steps):
        b.step()
        for weight in weights[step:]:
            b.launch("layer", [(weight, "rw")], time_ns=time_ns)
    return b.build(loop=steps == 1)


# -- the machine ----------------------------------------------------------------------------------


def test_machine_names_every_source():
    machine = Machine.load(g10.MACHINE)
    named = {field.name for field in dataclasses.fields(machine)}
    assert set(machine.sources) == named - {"name", "title", "sources", "vmm"}  # it has no vmm


def test_machine_is_the_artifacts():
    machine = Machine.load(g10.MACHINE)
    assert machine.memory_bytes == 40 << 30
    assert machine.bus_in_bytes_s == machine.bus_out_bytes_s == 15.754e9
    assert machine.bus_both_bytes_s == 2 * machine.bus_in_bytes_s  # full duplex
    assert machine.fault_batch_s == 45e-6
    cycles = round(0.814e-6 * PAGE / 1e6 * 1.2e9)  # as its simulator rounds them
    assert machine.populate_s == pytest.approx(512 * cycles / 1.2e9, rel=1e-3)


def test_evictions_ahead_hide_behind_the_transfers():
    trace, machine = layers(), Machine.load(g10.MACHINE)
    plain = dataclasses.replace(machine, fault_evict_ahead_blocks=0)
    memory = 80 * BLOCK
    ahead, one_by_one = (
        simulate(trace, m, "noop", memory=memory, iterations=3).iterations[-1]
        for m in (machine, plain)
    )
    assert ahead.bytes_in == one_by_one.bytes_in == trace.peak_bytes  # cyclic: nothing is found
    transfers = ahead.bytes_in / machine.bus_in_bytes_s
    assert one_by_one.stall_s == pytest.approx(2 * transfers, rel=0.1)
    assert transfers < ahead.stall_s < 1.5 * transfers


def test_evictions_ahead_must_be_a_count(tmp_path):
    text = (
        "\n".join(
            f"{field.name} = {json.dumps(getattr(Machine.load(g10.MACHINE), field.name))}"
            for field in dataclasses.fields(Machine)
            if field.name not in {"sources", "vmm"}
        )
        .replace("fault_evict_ahead_blocks = 64", "fault_evict_ahead_blocks = -1")
        .replace("true", "1")
    )
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(MachineError, match="fault_evict_ahead_blocks"):
        Machine.load(path)


# -- DeepUM+ --------------------------------------------------------------------------------------


def test_deepum_plus_asks_ahead():
    trace, memory = layers(), 80 * BLOCK
    run = simulate(
        trace, g10.MACHINE, DeepUMPlus(trace=trace), memory=memory, iterations=3
    ).iterations[-1]
    plain = simulate(trace, g10.MACHINE, "noop", memory=memory, iterations=3).iterations[-1]
    assert run.faults == 0
    assert plain.faults == 160
    assert run.prefetched > 0
    assert run.time_s < 0.9 * plain.time_s
    assert run.time_s >= bound(trace, g10.MACHINE, memory).ideal_s


def test_deepum_plus_keeps_what_the_next_kernels_need():
    trace = layers()
    policy = DeepUMPlus(trace=trace, distance=3)
    asked = []

    class View:
        resident_blocks = ()

        def prefetch(self, block, count):
            asked.append((block, count))
            return count

    class Launch:
        seq = 10

    view = View()
    policy.on_launch(view, Launch())
    first = int(trace.tensor_address[trace.initial[12]]) >> 21
    assert asked == [(first, 4)]  # all of the kernel 3 further on, launch 13
    view.resident_blocks = (first, first - 100, first + 1, first - 99)
    assert policy.victims(view, 1) == [first - 100]
    assert policy.victims(view, 5) == [first - 100, first - 99]
    assert policy.victims(view, 5) == []  # all that may go has been named
    Launch.seq = 14
    policy.on_launch(view, Launch())
    assert policy.victims(view, 1) == [first]


def test_deepum_plus_goes_on_asking():
    trace = layers()
    policy = DeepUMPlus(trace=trace)
    room = 3

    class View:
        def prefetch(self, block, count):
            asked.append((block, count))
            return min(room, count)

    class Launch:
        seq = 1

    asked = []
    policy.on_launch(View(), Launch())
    policy.on_fault(View(), None)
    assert [count for _, count in asked] == [4, 1]
    assert asked[1][0] == asked[0][0] + 3


def test_deepum_plus_forgets_what_came_too_late():
    policy = DeepUMPlus(trace=layers(), distance=1)
    asked = []

    class View:
        def prefetch(self, block, count):
            asked.append(block)
            return 0

    class Launch:
        seq = 1

    for Launch.seq in (1, 5):
        policy.on_launch(View(), Launch())
    assert len(asked) == 2  # launch 2's wish was dropped, launch 6's tried


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "has to be told the trace"),
        ({"distance": 0}, "distance"),
        ({"distance": "far"}, "distance"),
        ({"sight": 8}, "no option 'sight'"),
    ],
)
def test_deepum_plus_refuses(options, words):
    with pytest.raises(PolicyError, match=words):
        DeepUMPlus(**options)


def test_deepum_plus_wants_one_iteration():
    with pytest.raises(PolicyError, match="iterations that differ"):
        DeepUMPlus(trace=layers(steps=2))


# -- results --------------------------------------------------------------------------------------


def test_published_times_of_g10():
    assert g10.published("BERT-256")["g10"] == pytest.approx(1.257 / 1.253)
    assert g10.published("VIT-1280") == pytest.approx(
        {"noop": 6.62, "deepum_plus": 2.034, "g10": 2.034 / 1.364}
    )
    assert g10.published("BERT-512") == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "set DEEPUM_DATA"), ("nowhere", "is not a folder"), (".", "none of G10's traces")],
)
def test_without_the_traces(value, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if value is None:
        monkeypatch.delenv(g10.FOLDER_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(g10.FOLDER_VARIABLE, value)
    assert words in g10.absence()
    with pytest.warns(UserWarning, match=words):
        assert g10.results() == []


@pytest.mark.slow
def test_results_of_a_trace_in_their_format(monkeypatch, tmp_path):
    # A small model under the name of a large one: forward, then backward in reverse order.
    size, count = 2 << 30, 24
    names = ["forward", "backward"]
    tensors = [[i, 0, size, i * size] for i in range(count)]
    kernels = [[0, 240_000_000, [i - 1] if i else [], [i]] for i in range(count)]
    kernels += [[1, 240_000_000, [i], []] for i in reversed(range(count))]
    value = {"names": names, "tensors": tensors, "kernels": kernels, "cycle_hz": 1.2e9}
    (tmp_path / "g10").mkdir()
    with gzip.open(tmp_path / "g10" / "BERT-256.json.gz", "wt") as file:
        json.dump(value, file)
    monkeypatch.setenv(g10.FOLDER_VARIABLE, str(tmp_path))
    (row,) = g10.results()
    assert row["trace"] == "BERT-256"
    assert set(row["ours"]) == {"noop", "chained", "deepum_plus", "oracle", "ideal", "bound"}
    assert row["ours"]["ideal"] == pytest.approx(count * 2 * 0.2)
    assert row["noop_s"] == row["ours"]["noop"]
    assert row["ratios"]["ideal"] == 1.0
    assert 1.0 <= row["ratios"]["oracle"] <= row["ratios"]["noop"]
    assert row["published"]["noop"] == 2.70
    assert row["oracle_horizon"] in g10.HORIZONS


# -- their traces ---------------------------------------------------------------------------------


def ratios(name, *runs):
    path = str(g10.folder() / f"{name}.json.gz")
    jobs = g10.jobs(path)
    outcomes = g10.Runner().run([jobs["bound"], *(jobs[run] for run in runs)])
    figures = {run: outcomes[jobs[run]].figures for run in runs}
    ideal = outcomes[jobs["bound"]].figures["ideal_s"]
    return ideal, figures, {run: figures[run]["time_s"] / ideal for run in runs}


@pytest.mark.slow
@needs_traces
@pytest.mark.parametrize("name", g10.TRACES)
def test_kernels_fit(name):
    from deepum._core.lowering import Program

    trace = deepum.Trace.load(g10.folder() / f"{name}.json.gz")
    sets = Program(trace.columns()).working_set
    assert int(sets.max()) * BLOCK <= Machine.load(g10.MACHINE).memory_bytes


@pytest.mark.slow
@needs_traces
@pytest.mark.parametrize("name", sorted(UVM_PAGES_IN))
def test_plain_uvm_moves_what_theirs_moves(name):
    _, figures, ratio = ratios(name, "noop")
    assert figures["noop"]["bytes_in"] / PAGE == pytest.approx(UVM_PAGES_IN[name], rel=0.01)
    assert ratio["noop"] == pytest.approx(g10.published(name)["noop"], rel=0.35)


@pytest.mark.slow
@needs_traces
@pytest.mark.parametrize("name", ["BERT-256", "VIT-1280"])
def test_order_and_published_result(name):
    runs = ("noop", "chained", "deepum_plus", *(f"oracle_{h}" for h in g10.HORIZONS))
    _, _, ratio = ratios(name, *runs)
    oracle = min(ratio[f"oracle_{h}"] for h in g10.HORIZONS)
    assert 1.0 <= oracle <= ratio["chained"] <= ratio["noop"]
    assert oracle <= ratio["deepum_plus"]
    assert oracle <= g10.published(name)["g10"]
    assert ratio["chained"] <= g10.published(name)["deepum_plus"]

# SPDX-License-Identifier: Apache-2.0
"""From a program to a trace: set-up, repetition, kinds, times, and every way to fail."""

import gc
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deepum.errors import MachineError, RecordError  # noqa: E402
from deepum.machine import Machine  # noqa: E402
from deepum.record import recorder, shim  # noqa: E402
from deepum.trace.columns import HOST, KINDS  # noqa: E402

pytestmark = pytest.mark.torch


def make_mlp(layers=3, width=64, batch=16, **options):
    def make_step():
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False, **options)
        device = torch.get_default_device()

        def step():
            x = torch.rand(batch, width, device="cpu").to(device)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        return step

    return make_step


def test_steps_are_recorded_until_they_repeat():
    trace = recorder.record(make_mlp(), name="mlp")
    assert trace.schedule.tolist() == [0, 1, 1]
    assert trace.loop_from == 2
    assert trace.step_at(100) == 1
    assert "iterations_note" not in trace.meta
    assert trace.meta["machine"] == "v100-pcie3-32g"
    assert trace.meta["times"] == "estimated"
    assert trace.meta["device"] == "fake cuda"
    assert trace.meta["recorded_with"].startswith("torch 2.")


def test_the_same_program_gives_the_same_file(tmp_path):
    files = []
    for i in range(2):
        garbage = [[] for _ in range(1000 * i)]  # other addresses in the process
        path = tmp_path / f"{i}.trace"
        recorder.record(make_mlp(), name="mlp").save(path)
        files.append(path.read_bytes())
        del garbage
    assert files[0] == files[1]


def test_what_is_there_at_the_beginning():
    trace = recorder.record(make_mlp(layers=3), name="mlp")
    kinds = [KINDS[k] for k in trace.tensor_kind[trace.initial]]
    assert kinds == ["parameter"] * 6
    rows = trace.tensor_kind.tolist()
    for kind, count in (("gradient", 6), ("optimizer", 12), ("input", 1)):
        assert rows.count(KINDS.index(kind)) >= count
    assert (trace.tensor_bytes[trace.initial] == [64 * 64 * 4, 64 * 4] * 3).all()


def test_times_are_the_machines():
    fast, slow = Machine.load("h200-pcie5"), Machine.load("v100-pcie3-32g")
    traces = [recorder.record(make_mlp(width=4096), name="mlp", machine=m) for m in (fast, slow)]
    assert traces[0].kernel_time_ns.sum() < traces[1].kernel_time_ns.sum()
    trace = traces[1]
    copies = trace.kernel_name == trace.names.index("memcpy HtoD")
    work = (trace.kernel_flops, trace.kernel_bytes, trace.kernel_dtype)
    expected = slow.kernel_time_s(*work)
    np.testing.assert_allclose(trace.kernel_time_ns[~copies], expected[~copies] * 1e9, atol=1)
    over_the_bus = trace.kernel_bytes[copies] / slow.bus_in_bytes_s * 1e9
    np.testing.assert_allclose(trace.kernel_time_ns[copies], over_the_bus, atol=1)


def test_host_time_comes_first_in_each_step():
    trace = recorder.record(make_mlp(), name="mlp", host_ns=12345)
    for step in trace.step_start[:-1]:
        assert (trace.event_op[step], trace.event_arg[step]) == (HOST, 12345)


def test_fixed_number_of_steps():
    assert recorder.record(make_mlp(), name="mlp", steps=5).iterations == 5
    assert recorder.record(make_mlp(), name="mlp", steps=1).iterations == 1


def growing():
    kept = []
    return lambda: kept.append(torch.zeros(1024))


def test_a_program_that_leaks_does_not_loop():
    trace = recorder.record(lambda: growing(), name="leak")
    assert trace.iterations == 8
    assert trace.loop_from == -1
    assert "do not repeat" in trace.meta["iterations_note"]


def changing():
    sizes = iter(range(1, 100))
    return lambda: torch.zeros(next(sizes) * 1024)


def test_a_program_that_changes_loops_with_its_last_step():
    trace = recorder.record(lambda: changing(), name="changing")
    assert trace.iterations == 8
    assert trace.loop_from == 7
    assert "within 8" in trace.meta["iterations_note"]


def alternating():
    count = iter(range(100))
    return lambda: torch.zeros(1024 * (1 + next(count) % 2)).add_(1)


def test_two_steps_that_alternate():
    trace = recorder.record(lambda: alternating(), name="alternating")
    assert trace.schedule.tolist() == [0, 1, 0, 1]


def test_progress():
    told = []
    recorder.record(make_mlp(), name="mlp", progress=told.append)
    assert told == ["set-up", "step 1", "step 2", "step 3"]


def test_nothing_on_the_device():
    with pytest.raises(RecordError, match="launches nothing on the device"):
        recorder.record(lambda: lambda: torch.zeros(3, device="cpu") + 1, name="cpu")


def test_unknown_machine():
    with pytest.raises(MachineError, match="no-such"):
        recorder.record(make_mlp(), name="mlp", machine="no-such")


def reads_a_value():
    weight = torch.ones(4, requires_grad=True)

    def step():
        loss = (weight * 2).sum()
        return loss.item()

    return step


@pytest.mark.parametrize(
    ("make_step", "text"),
    [
        (reads_a_value, r"test_recorder\.py:\d+: step 1 needs the value of a tensor"),
        (lambda: lambda: torch.ones(3).nonzero(), "needs the value of a tensor"),
        (lambda: 1 / 0, "the set-up failed: ZeroDivisionError: division by zero"),
        (lambda: lambda: torch.ones(2, 3) @ torch.ones(2, 3), "step 1 failed: RuntimeError"),
    ],
)
def test_a_step_that_fails(make_step, text):
    with pytest.raises(RecordError, match=text) as error:
        recorder.record(make_step, name="bad")
    assert "\n" not in str(error.value)


def test_nothing_is_left_behind_after_a_failure():
    with pytest.raises(RecordError):
        recorder.record(lambda: 1 / 0, name="bad")
    assert gc.isenabled()
    assert torch.zeros(2).tolist() == [0, 0]
    assert not torch.cuda.is_available()


def test_garbage_is_collected_between_steps():
    """Cycles that hold tensors die at the end of the step that made them."""

    def make_step():
        def step():
            cycle = [torch.zeros(1024)]
            cycle.append(cycle)

        return step

    assert recorder.record(make_step, name="cycle").schedule.tolist() == [0, 0, 0]


def test_on_the_cpu_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(shim, "_loaded", [])
    monkeypatch.setenv("DEEPUM_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match="fake CPU tensors"):
        trace = recorder.record(make_mlp(), name="mlp")
    assert trace.meta["device"] == "fake cpu"
    assert trace.schedule.tolist()[-2:] == [1, 1]


def test_models_by_name():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = recorder.record_model("dlrm", 8192, "a100-pcie4-40g")
    assert trace.name == "dlrm-b8k"
    assert trace.meta["model"] == "dlrm"
    assert trace.meta["batch"] == 8192
    assert trace.event_arg[0] == round(84.7e3 * 8192)


@pytest.mark.parametrize(
    ("model", "batch", "text"),
    [
        ("gpt2-xxl", 3, "did you mean gpt2-xl"),
        ("zzz", 3, "choose from gpt2-xl, gpt2-l"),
        ("gpt2-xl", 0, "at least one sample"),
    ],
)
def test_wrong_models(model, batch, text):
    with pytest.raises(RecordError, match=text):
        recorder.record_model(model, batch)


def test_batch_labels():
    assert [recorder.batch_label(x) for x in (3, 4200, 8191, 98304)] == ["3", "4200", "8191", "96k"]


def test_convolutions_have_an_efficiency_of_their_own():
    machine = Machine.load("v100-pcie3-32g")

    def make_step():
        layer, image = torch.nn.Conv2d(64, 64, 3), torch.zeros(64, 64, 64, 64)
        return lambda: layer(image)

    trace = recorder.record(make_step, name="conv")
    assert trace.names == ["aten::convolution"]
    work = (trace.kernel_flops, trace.kernel_bytes, trace.kernel_dtype)
    expected = machine.kernel_time_s(*work, convolution=True) * 1e9
    assert trace.kernel_time_ns[0] == pytest.approx(expected[0], abs=1)
    assert expected[0] != machine.kernel_time_s(*work)[0] * 1e9

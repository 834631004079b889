# SPDX-License-Identifier: Apache-2.0
"""Other people's formats, told by their contents."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from deepum.errors import TraceError
from deepum.record import formats
from deepum.trace import Trace
from deepum.trace.columns import ALLOC, FREE, HOST, KERNEL

MIB = 1 << 20
BASE = 0x7F00_0000_0000


def loaded(tmp_path, text: str | bytes, name: str = "x.json") -> Trace:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Trace.load(path)


def refused(tmp_path, text: str | bytes, name: str = "x.json") -> str:
    with pytest.raises(TraceError) as error:
        loaded(tmp_path, text, name)
    message = str(error.value)
    assert "\n" not in message
    path = str(tmp_path / name)
    assert message.startswith(path)
    return message.removeprefix(path)


def events(trace: Trace, step: int) -> list[tuple[str, int]]:
    low, high = trace.step_start[step : step + 2].tolist()
    words = {KERNEL: "run", ALLOC: "alloc", FREE: "free", HOST: "host"}
    return [
        (words[op], arg)
        for op, arg in zip(
            trace.event_op[low:high].tolist(), trace.event_arg[low:high].tolist(), strict=True
        )
    ]


def test_what_is_in_no_format(tmp_path, monkeypatch):
    neither = ": JSON, but neither the JSON form of a trace (docs/trace-format.md), nor a G10 "
    assert refused(tmp_path, "{}").startswith(neither)
    assert refused(tmp_path, "[1, 2]").startswith(neither)
    assert refused(tmp_path, "{").startswith(": not JSON: Expecting property name enclosed in")
    assert refused(tmp_path, '{"x": ' + "[" * 100_000) == (
        ": not JSON that can be read: nested too deep, or a number too long"
    )
    assert "or a number too long" in refused(tmp_path, '{"x": ' + "1" * 5000 + "}")
    assert refused(tmp_path, b"{\xff") == ": not a deepum trace, and not text"
    whole = gzip.compress(b'{"x": 1}' * 50)
    assert "cannot be read: Compressed file ended" in refused(tmp_path, whole[:-12])
    damaged = bytearray(whole)
    damaged[15] ^= 255
    assert ": cannot be read: " in refused(tmp_path, bytes(damaged))
    monkeypatch.setattr(formats, "MAX_BYTES", 100)
    assert ": more than 100 bytes are too many for a trace" in refused(tmp_path, whole)
    with pytest.raises(TraceError, match="cannot be read"):
        formats.load_foreign(tmp_path / "absent")


# G10


def g10() -> dict:
    """Return a weight, an input that is read before anything writes it, and two intermediates."""
    return {
        "names": ["Linear_Forward", "Add_Forward", "Apply_Grad"],
        "cycle_hz": 1.2e9,
        "tensors": [[0, 0, 8192, 0], [1, 1, 4096, 0], [2, 0, 4096, 8192], [3, 1, 4096, 4096],
                    [4, 0, 4096, 4 * MIB]],
        "kernels": [
            [0, 1200, [1, 0], [2]],
            [1, 600, [2, 2, 3], [2, 4]],
            [2, 1, [4, 1], [1]],
        ],
    }  # fmt: skip


def test_g10(tmp_path):
    trace = loaded(tmp_path, gzip.compress(json.dumps(g10()).encode()), "NET-12.json.gz")
    assert (trace.name, trace.meta["batch"], trace.meta["times"]) == ("NET-12", 12, "measured")
    assert trace.meta["source"] == "g10"
    # Weights in one region, intermediates in the next.
    assert trace.segment_address.tolist() == [BASE, BASE + 2 * MIB]
    assert trace.segment_bytes.tolist() == [2 * MIB, 6 * MIB]
    offsets = (trace.tensor_address - np.uint64(BASE)).tolist()
    assert offsets == [0, 4096, 2 * MIB, 2 * MIB + 8192, 6 * MIB]
    assert trace.tensor_kind.tolist() == [1, 1, 4, 4, 4]
    assert trace.initial.tolist() == [0, 1]
    a, run, free = "alloc", "run", "free"
    assert events(trace, 0) == [
        (a, 2), (a, 3), (run, 0), (free, 2), (a, 4), (run, 1), (free, 3), (run, 2), (free, 4),
    ]  # fmt: skip
    assert trace.kernel_time_ns.tolist() == [1000, 500, 1]
    assert trace.operand_tensor.tolist() == [0, 2, 3, 3, 1, 4, 4, 0]
    assert trace.operand_mode.tolist() == [1, 1, 2, 3, 1, 2, 1, 3]
    assert trace.peak_bytes == 2 * 4096 + 8192 + 4096
    assert (trace.schedule.tolist(), trace.loop_from) == ([0], 0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("names", [1], ": a kernel name must be a string, not 1"),
        ("cycle_hz", "fast", ": the trace: 'cycle_hz' must be a number, not 'fast'"),
        ("cycle_hz", 0, ": cycle_hz is 0"),
        ("tensors", {}, ": the trace: 'tensors' must be a list, not {}"),
        ("tensors", [1], ": tensor 0 must be a list, not 1"),
        ("tensors", [[1, 2]], ": tensor 0 has 2 fields instead of 4"),
        ("tensors", [[0, 0, "x", 0]], ": tensor 0 must be a whole number, not 'x'"),
        ("tensors", [[0, 0, 9, 0]] * 2, ": tensor 1: [0, 0, 9, 0] is not [a new id, 0 or 1, bytes"),
        ("tensors", [[0, 2, 9, 0]], ": tensor 0: [0, 2, 9, 0] is not [a new id"),
        ("tensors", [[0, 0, 0, 0]], ": tensor 0: [0, 0, 0, 0] is not [a new id"),
        ("tensors", [[0, 0, 9, -1]], ": tensor 0: [0, 0, 9, -1] is not [a new id"),
        ("kernels", [[0, 1, []]], ": kernel 0 has 3 fields instead of 4"),
        ("kernels", [[3, 1, [], []]], ": kernel 0 has name 3 of 3 and 1 cycles"),
        ("kernels", [[0, -1, [], []]], ": kernel 0 has name 0 of 3 and -1 cycles"),
        ("kernels", [[0, 1, [9], []]], ": kernel 0 names tensor 9, which does not exist"),
        ("kernels", [[0, 1, 5, []]], ": kernel 0 must be a list, not 5"),
        ("kernels", [], ": nothing to build: no step() was followed by a launch"),
    ],
)
def test_wrong_g10(tmp_path, key, value, text):
    assert refused(tmp_path, json.dumps(g10() | {key: value})).startswith(text)


def test_g10_without_weights_or_batch(tmp_path):
    value = g10() | {"kernels": [[0, 1, [], [0]]], "tensors": [[0, 0, 9, 0]]}
    trace = loaded(tmp_path, json.dumps(value), "net-x")
    assert "batch" not in trace.meta
    assert (trace.peak_bytes, trace.initial.tolist()) == (9, [])


@pytest.mark.parametrize(
    ("name", "kernels", "gib"),
    [
        ("BERT-256", 1369, 47.8),
        ("VIT-1280", 1489, 57.4),
        ("Inceptionv3-1536", 929, 133.9),
        ("ResNet152-1280", 1299, 273.5),
    ],
)
def test_published_g10_traces(data_dir, name, kernels, gib):
    """Peaks of live memory as the artifact's own tool reports them."""
    path = data_dir / "g10" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    trace = Trace.load(path)
    assert trace.kernels_per_step == kernels
    assert round(trace.peak_bytes / 2**30, 1) == gib


# DTR


def dtr(*rows: dict) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def constant(name: str, size: int) -> list[dict]:
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)},
    ]


def call(name: str, args: list[str], time: int, *results: tuple[str, int, int]) -> list[dict]:
    first = {"INSTRUCTION": "CALL", "NAME": name, "ARGS": args, "TIME": str(time)}
    rows = [first | {"RESULT": [r[0] for r in results]}]
    for result, size, alias in results:
        rows.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)})
        rows.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": str(alias)})
    return rows


def mutate(name: str, args: list[str], which: list[int], time: int) -> dict:
    row = {"INSTRUCTION": "MUTATE", "NAME": name, "ARGS": args, "MUTATE": which}
    return row | {"TIME": str(time)}


def copy(dst: str, src: str, instruction: str = "COPY") -> dict:
    return {"INSTRUCTION": instruction, "DST": dst, "SRC": src}


def release(name: str) -> dict:
    return {"INSTRUCTION": "RELEASE", "NAME": name}


START = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}
BACKWARD = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}


def test_dtr_every_instruction(tmp_path):
    text = dtr(
        *constant("before", 1),  # left out: before START
        START,
        *constant("w", 4 * MIB),
        release("w"),  # constants stay
        *constant("nothing", 0),
        copy("w2", "w"),
        *call("conv", ["w2", "nothing"], 1000, ("x", 2 * MIB, -1), ("none", 0, -1)),
        *call("view", ["x", "w"], 7, ("xv", 2 * MIB, 0)),
        *call("free view", ["x"], 0, ("xw", 2 * MIB, 0)),
        copy("x2", "x"),
        release("x"),
        release("x2"),
        release("none"),
        release("unheard of"),
        mutate("relu_", ["xv", "w"], [0], 300),
        BACKWARD,
        *call("mul", ["xv", "xv"], 200, ("y", MIB // 2, -1), ("yv", 0, 1)),
        *call("add", ["y", "y"], 100, ("z", MIB // 2, -1)),
        copy("y", "z", "COPY_FROM"),  # frees the storage that y was
        release("xv"),
        release("yv"),
        release("xw"),  # and only now the one that x was
        *call("stat", [], 50, ("empty", 0, -1)),
        # z and y are still alive: freed at the end of the iteration
    )
    trace = loaded(tmp_path, text, "toy.log")
    assert (trace.name, trace.meta["source"], trace.meta["times"]) == ("toy", "dtr", "measured")
    assert trace.names == ["conv", "relu_", "mul", "add", "stat"]
    assert (trace.schedule[1:].tolist(), trace.loop_from) == ([trace.schedule[2]] * 2, 2)
    assert trace.tensor_bytes.tolist()[:4] == [4 * MIB, 2 * MIB, MIB // 2, MIB // 2]
    assert trace.tensor_kind.tolist()[:2] == [1, 4]
    assert trace.initial.tolist() == [0]
    assert events(trace, 0) == [
        ("alloc", 1), ("run", 0), ("host", 7), ("run", 1),
        ("alloc", 2), ("run", 2), ("alloc", 3), ("run", 3), ("free", 2), ("free", 1), ("run", 4),
        ("free", 3),
    ]  # fmt: skip
    assert trace.kernel_time_ns.tolist()[:5] == [1000, 300, 200, 100, 50]
    start = trace.kernel_operand_start.tolist()
    used = list(zip(trace.operand_tensor.tolist(), trace.operand_mode.tolist(), strict=True))
    assert [used[a:b] for a, b in pairwise(start)][:5] == [
        [(0, 1), (1, 2)],
        [(1, 3), (0, 1)],
        [(1, 1), (2, 2)],
        [(2, 1), (3, 2)],
        [],
    ]
    assert trace.peak_bytes == (4 + 2 + 1) * MIB


def test_dtr_without_start_and_with_blank_lines(tmp_path):
    text = dtr(*constant("w", 512), *call("k", ["w"], 1)).replace("\n", "\n\n")
    assert loaded(tmp_path, text).kernels_per_step == 1


W = constant("w", 512)
DEAD = [*call("k", [], 1, ("x", 8, -1)), release("x")]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([START, {"INSTRUCTION": "JUMP"}], "line 2: instruction 'JUMP' is unknown here"),
        ([START, {}], "line 2 lacks 'INSTRUCTION'"),
        ([START, W[0]], "line 2: the MEMORY line of 'w' is missing"),
        ([START, W[0], W[0]], "line 3: the MEMORY line of 'w' is missing"),
        ([START, W[0], W[1] | {"NAME": "v"}], "line 3: the MEMORY line of 'w' is missing"),
        ([START, W[0], W[1] | {"MEMORY": "x"}], "line 3: 'MEMORY' must be a whole number, not 'x'"),
        ([START, W[0], W[1] | {"MEMORY": "-1"}], "line 3: 'MEMORY' is -1"),
        ([START, *W, *W], "line 5: 'w' is defined twice"),
        ([START, {"INSTRUCTION": "CONSTANT", "NAME": 3}], "line 2: 'NAME' must be a string, not 3"),
        ([START, *call("k", ["v"], 1)], "line 2: 'v' is not defined"),
        ([START, *call("k", [3], 1)], "line 2: an argument must be a string, not 3"),
        ([START, *call("k", [], -1)], "line 2: 'TIME' is -1"),
        ([START, *call("k", [], 1, ("x", 8, -1))[:2]], "line 3: the ALIAS line of 'x' is missing"),
        ([START, *call("k", [], 1, ("x", 8, 0))], "line 4: there is no argument 0 to be a view of"),
        ([START, *call("k", [], 1, ("x", 8, -2))], "line 4: 'ALIAS' is -2"),
        ([START, *W, mutate("k", ["w"], [1], 1)], "line 4: there is no argument 1 to mutate"),
        ([START, *W, mutate("k", ["w"], ["a"], 1)], "line 4: 'MUTATE' must be a whole number"),
        ([START, *W, copy("w", "w")], "line 4: 'w' is defined twice"),
        ([START, *W, copy("v", "u")], "line 4: 'u' is not defined"),
        ([START, *W, copy("v", "w", "COPY_FROM")], "line 4: 'v' is not defined"),
        ([START, *DEAD, copy("y", "x")], "line 6: 'x' has been freed"),
        ([START, *DEAD, release("x")], "line 6: 'x' has been freed"),
        ([START, *W], "nothing to build"),
    ],
)
def test_wrong_dtr(tmp_path, rows, text):
    assert text in refused(tmp_path, dtr(*rows))


def test_dtr_that_is_not_json(tmp_path):
    text = dtr(START)
    assert refused(tmp_path, text + "{\n") == ": line 2 is not JSON"
    assert refused(tmp_path, text + "[]\n") == ": line 2 must be an object, not []"

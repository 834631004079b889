# SPDX-License-Identifier: Apache-2.0
"""The JSON form: for people, and an exact copy of a trace."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepum.errors import TraceError
from deepum.record import json_form
from deepum.record.formats import load_foreign
from deepum.trace import Operand, Trace
from how_many import examples

MIB = 1 << 20
BASE = 0x7F00_0000_0000


def example() -> dict:
    return {
        "format": "deepum-trace-json",
        "version": 1,
        "tensors": {"w": {"bytes": MIB, "kind": "parameter"}, "x": {"bytes": 2 * MIB}},
        "initial": ["w"],
        "steps": [
            [
                {"alloc": "x"},
                {"kernel": "k", "operands": [["w", "r"], {"tensor": "x", "mode": "w"}]},
                {"host": 5},
                {"free": "x"},
            ]
        ],
    }


def load(value: object, tmp_path) -> Trace:
    path = tmp_path / "some.json"
    path.write_text(json.dumps(value))
    return json_form.read(path)


def test_defaults(tmp_path):
    trace = load(example(), tmp_path)
    assert (trace.name, trace.meta["times"]) == ("some", "estimated")
    assert (trace.schedule.tolist(), trace.loop_from) == ([0, 0], 1)
    assert trace.tensor_address.tolist() == [BASE, BASE + 2 * MIB]
    assert trace.kernel_bytes.tolist() == [3 * MIB]
    assert trace.event_arg.tolist() == [1, 0, 5, 1]


def test_a_round_trip_is_exact(trace, tmp_path):
    path = tmp_path / "small.json"
    json_form.write(trace, path)
    assert Trace.load(path) == trace
    (tmp_path / "small.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert Trace.load(tmp_path / "small.json.gz") == trace
    ends = trace.replace(meta={"loop_from": -1})
    assert json_form.from_json(json_form.to_json(ends), "") == ends
    assert json.loads(path.read_text()) == json_form.to_json(trace)


def test_every_operand_field(tmp_path):
    value = example()
    value["steps"][0][1] = {
        "kernel": "k",
        "operands": [
            {"tensor": "w", "mode": "r", "offset": 512, "length": "0x200"},
            {"tensor": "x", "mode": "rw", "pattern": "gather", "touches": 12},
        ],
        "time_ns": 10,
        "flops": 3,
        "bytes": 100,
        "dtype": "bf16",
        "key": "0xffffffffffffffff",
    }
    trace = load(value, tmp_path)
    assert trace.operand_offset.tolist() == [512, 0]
    assert trace.operand_length.tolist() == [512, 2 * MIB]
    assert trace.operand_pattern.tolist() == [0, 1]
    assert trace.operand_touches.tolist() == [0, 12]
    assert (trace.kernel_time_ns[0], trace.kernel_flops[0], trace.kernel_bytes[0]) == (10, 3, 100)
    assert (trace.kernel_dtype[0], trace.kernel_key[0]) == (2, 2**64 - 1)
    assert json_form.from_json(json_form.to_json(trace), "") == trace


def test_schedules(tmp_path):
    value = example()
    value["steps"].append([{"kernel": "other", "operands": [["w", "rw"]]}])
    value |= {"schedule": [0, 1, 0, 1], "loop": 2}
    trace = load(value, tmp_path)
    assert (trace.schedule.tolist(), trace.loop_from) == ([0, 1, 0, 1], 2)
    value["loop"] = True
    assert load(value, tmp_path).loop_from == 3
    value["loop"] = False
    assert load(value, tmp_path).loop_from == -1
    del value["schedule"]
    assert load(value, tmp_path).schedule.tolist() == [0, 1]


def test_the_last_step_is_played_until_its_addresses_repeat(tmp_path):
    """A buffer made before the old one is given up moves to and fro, so two steps repeat."""
    value = example()
    sizes = {"a": 9, "b": 7, "c": 13}
    value["tensors"] |= {name: {"bytes": n * MIB} for name, n in sizes.items()}
    kernel = {"kernel": "k", "operands": [["a", "w"], ["w", "r"]]}
    value["steps"] = [[{"alloc": n} for n in "abc"] + [kernel] + [{"free": n} for n in "cab"]]
    trace = load(value, tmp_path)
    assert trace.schedule[-1] == trace.schedule[-2]
    assert trace.loop_from == trace.iterations - 1


def test_addresses(tmp_path):
    value = example()
    value["tensors"] = {
        "w": {"bytes": 100, "block_bytes": 512, "address": "0x400000"},
        "x": {"bytes": 100, "address": 512},
    }
    trace = load(value, tmp_path)
    assert trace.tensor_address.tolist() == [4 * MIB, 512]
    assert trace.tensor_block_bytes.tolist() == [512, 100]
    assert trace.segment_address.tolist() == [0, 4 * MIB]
    assert trace.schedule.tolist() == [0]
    value["segments"] = [[0, 8 * MIB]]
    assert load(value, tmp_path).segment_bytes.tolist() == [8 * MIB]


def change(path: str, value: object):
    """Return a function that changes one entry of the example, named by its path."""

    def apply(owner: dict) -> dict:
        *way, last = path.split(".")
        spot = owner
        for key in way:
            spot = spot[int(key)] if isinstance(spot, list) else spot[key]
        if isinstance(spot, list):
            spot[int(last)] = value
        elif value is KeyError:
            del spot[last]
        else:
            spot[last] = value
        return owner

    return apply


WRONG = [
    ("version", 2, "written by a newer deepum (JSON format 2); this one reads up to 1: upgrade"),
    ("version", KeyError, "the trace lacks 'version'"),
    ("version", True, "the trace: 'version' must be a whole number, not True"),
    ("stepz", [], "the trace has an unknown field 'stepz'"),
    ("name", 3, "the trace: 'name' must be a string, not 3"),
    ("meta", [], "the trace: 'meta' must be an object, not []"),
    ("meta", {"times": "guessed"}, 'meta "times" is neither "estimated" nor "measured"'),
    ("tensors", KeyError, "the trace lacks 'tensors'"),
    ("tensors.w", 5, "tensor 'w' must be an object, not 5"),
    ("tensors.w.size", 5, "tensor 'w' has an unknown field 'size'"),
    ("tensors.w.bytes", KeyError, "tensor 'w': 'bytes' must be a whole number, not None"),
    ("tensors.w.bytes", "many", "tensor 'w': 'bytes' must be a whole number, not 'many'"),
    ("tensors.w.bytes", 1.5, "tensor 'w': 'bytes' must be a whole number, not 1.5"),
    ("tensors.w.bytes", 0, "tensor 'w': cannot allocate 0 bytes"),
    (
        "tensors.w.kind",
        "weight",
        "tensor 'w': 'weight' is not a kind of tensor; choose from",
    ),
    ("tensors.w.address", 0, "either all tensors or none of them have an address"),
    ("segments", [[1]], "segments[0] must be [address, bytes]"),
    ("segments", [[1, 2]], "a segment of 2 bytes at 0x1 is not made of 2 MiB blocks"),
    ("initial", ["v"], "initial: there is no tensor 'v'"),
    ("initial", ["w", "w"], "initial: tensor 'w' is alive already"),
    ("initial", [1], "initial must be a string, not 1"),
    ("steps", KeyError, "the trace lacks 'steps'"),
    ("steps", [], "nothing to build: no step() was followed by a launch"),
    ("steps.0", {}, "steps[0] must be a list, not {}"),
    ("steps.0.0", [], "steps[0][0] must be an object, not []"),
    ("steps.0.0", {"x": 1}, "steps[0][0] must have one of 'kernel', 'alloc', 'free' and 'host'"),
    ("steps.0.0", {"alloc": "x", "host": 1}, "steps[0][0] must have one of"),
    ("steps.0.0", {"alloc": "x", "y": 1}, "steps[0][0] has an unknown field 'y'"),
    ("steps.0.0", {"alloc": "w"}, "steps[0][0]: tensor 'w' is alive already"),
    ("steps.0.0", {"free": "x"}, "steps[0][0]: tensor 'x' is not alive"),
    ("steps.0.0", {"free": "v"}, "steps[0][0]: tensor 'v' does not exist"),
    ("steps.0.0", {"free": 3}, "steps[0][0] must be a string, not 3"),
    ("steps.0.2", {"host": -1}, "steps[0][2]: ns: -1 is not a whole number"),
    ("steps.0.2", {"host": "x"}, "steps[0][2]: 'host' must be a whole number, not 'x'"),
    ("steps.0.1.kernel", 1, "steps[0][1]: 'kernel' must be a string, not 1"),
    ("steps.0.1.flops", "x", "steps[0][1]: 'flops' must be a number, not 'x'"),
    ("steps.0.1.flops", -1, "steps[0][1]: kernel 'k': -1 is not a number of operations"),
    ("steps.0.1.dtype", "fp8", "steps[0][1]: 'fp8' is not a dtype"),
    ("steps.0.1.operands", 1, "steps[0][1]: 'operands' must be a list, not 1"),
    ("steps.0.1.operands.0", ["w"], "steps[0][1].operands[0] must be [tensor, mode]"),
    ("steps.0.1.operands.0", ["w", 1], "steps[0][1].operands[0] must be a string, not 1"),
    ("steps.0.1.operands.0", ["w", "x"], "steps[0][1]: 'x' is not a mode"),
    ("steps.0.1.operands.0", 7, "steps[0][1].operands[0] must be an object, not 7"),
    ("steps.0.1.operands.1", {"tensor": "x"}, "steps[0][1].operands[1] lacks 'mode'"),
    ("steps.0.1.operands.1.size", 1, "steps[0][1].operands[1] has an unknown field 'size'"),
    ("steps.0.1.operands.1.offset", [], "steps[0][1].operands[1]: 'offset' must be a whole number"),
    ("steps.0.3", {"host": 1}, "steps[0][0]: tensor 'x' is alive already"),
    ("schedule", [1], "schedule names step 1, but there are 1"),
    ("schedule", ["a"], "schedule must be a whole number, not 'a'"),
    ("schedule", [0] * 2_000, "the schedule plays more than 5000 events"),
    ("loop", "yes", "'loop' must be a whole number, not 'yes'"),
    ("loop", 9, "a period of 9 steps does not fit the 9 recorded ones"),
    ("name", "x" * 100 + "\n", None),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG)
def test_wrong_values(path, value, text, tmp_path, monkeypatch):
    monkeypatch.setattr(json_form, "MAX_EVENTS", 5000)
    if text is None:
        assert load(change(path, value)(example()), tmp_path).name == value
        return
    if path == "loop" and value == 9:
        text = "a period of 9 steps does not fit the 2 recorded ones"
    with pytest.raises(TraceError) as error:
        load(change(path, value)(example()), tmp_path)
    assert text in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "some.json"))
    assert "\n" not in str(error.value)


def test_unwritable(trace, tmp_path):
    with pytest.raises(TraceError, match=r"cannot write .*: Is a directory"):
        json_form.write(trace, tmp_path)


TEXT = json.dumps(example())


@given(st.integers(0, len(TEXT) - 1), st.sampled_from(list('{}[]",:0129-eaxwn ')))
@examples(150)
def test_any_changed_character_is_an_error_or_a_trace(tmp_path_factory, at, character):
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(TEXT[:at] + character + TEXT[at + 1 :])
    try:
        assert Trace.load(path).iterations > 0
    except TraceError as error:
        assert "\n" not in str(error)


ALLOCATIONS = st.lists(
    st.tuples(st.integers(1, 40 * MIB), st.sampled_from(["activation", "gradient", "workspace"])),
    min_size=1,
    max_size=6,
)


@given(ALLOCATIONS, st.integers(0, 3), st.booleans())
@examples(40)
def test_any_built_trace_survives(tmp_path_factory, sizes, time_ns, loop):
    b = Trace.builder("any", note={"a": [1, None]})
    w = b.alloc(12345, "parameter")
    for i in range(3):
        b.step()
        held = [b.alloc(n, kind) for n, kind in sizes]
        half = Operand(held[0], "rw", length=(sizes[0][0] + 1) // 2)
        b.launch("k", [(w, "r"), half], time_ns=time_ns * i, flops=0.1)
        b.host(i)
        for handle in held:
            b.free(handle)
    trace = b.build(loop=loop)
    folder = tmp_path_factory.mktemp("any")
    json_form.write(trace, folder / "x")
    trace.save(folder / "y")
    assert load_foreign(folder / "x") == Trace.load(folder / "y") == trace

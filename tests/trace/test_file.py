# SPDX-License-Identifier: Apache-2.0
"""Trace files: what is written is read, and nothing else ever gets past the reader."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepum.errors import TraceError
from deepum.trace import Trace, file
from deepum.trace.columns import DTYPE_OF
from how_many import examples


@pytest.fixture(scope="module")
def saved(trace, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "small.trace"
    trace.save(path)
    return path.read_bytes()


def rewritten(saved: bytes, **members: bytes | None) -> bytes:
    """Return the file with some members exchanged (``a__b`` for ``a.b``) or left out."""
    parts = {}
    with zipfile.ZipFile(io.BytesIO(saved)) as old:
        for name in old.namelist():
            parts[name] = old.read(name)
    parts |= {name.replace("__", "."): data for name, data in members.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name, data in parts.items():
            if data is not None:
                new.writestr(name, data)
    return out.getvalue()


def npy(array: np.ndarray, **kwargs) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), **kwargs)
    return out.getvalue()


def refused(tmp_path, data: bytes) -> str:
    path = tmp_path / "bad.trace"
    path.write_bytes(data)
    with pytest.raises(TraceError) as error:
        Trace.load(path)
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    return text.replace(str(path), "FILE")


def test_round_trip(trace, saved, tmp_path):
    path = tmp_path / "again.trace"
    path.write_bytes(saved)
    again = Trace.load(path)
    assert again == trace
    assert again.columns()["tensor_address"].flags.aligned
    again.save(path)
    assert path.read_bytes() == saved  # nothing depends on the clock
    assert list(tmp_path.iterdir()) == [path]


def test_numpy_opens_it(trace, saved):
    with np.load(io.BytesIO(saved)) as columns:
        assert set(columns.files) == {*DTYPE_OF, "meta.json", "names.json"}
        assert columns["kernel_flops"].tolist() == trace.kernel_flops.tolist()


def test_other_zip_methods_and_members_are_read(trace, saved, tmp_path):
    path = tmp_path / "stored.trace"
    path.write_bytes(rewritten(saved, note__txt=b"by another program"))
    assert Trace.load(path) == trace


def test_a_large_trace_is_small_on_disk_and_quick_to_read(tmp_path):
    """7,500 kernels a step with three operands each: under 200 KB, and well under 0.5 s."""
    b = Trace.builder("large")
    layers = [b.alloc(7 << 20, "parameter") for _ in range(750)]
    for _ in range(2):
        b.step()
        kept = []
        x = b.alloc(9 << 20)
        for i in range(7500):
            y = b.alloc((9 + i % 7) << 20)
            b.launch(f"k{i % 50}", [(x, "r"), (layers[i % 750], "r"), (y, "w")], flops=i % 9)
            kept.append(x)
            x = y
            if i % 3 == 0:
                b.free(kept.pop(len(kept) // 2))
        for handle in [*kept, x]:
            b.free(handle)
    trace = b.build()
    trace.save(tmp_path / "large.trace")
    assert (tmp_path / "large.trace").stat().st_size < 200_000
    assert Trace.load(tmp_path / "large.trace") == trace


def test_names(tmp_path, trace, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = {"gpt2-xl-b3": tmp_path / "a", "gpt2-xl-b5": tmp_path / "b", "dlrm-b128k": tmp_path}
    monkeypatch.setattr(Trace, "shipped", classmethod(lambda cls: shipped))
    trace.save("a")
    assert Trace.load("gpt2-xl-b3") == trace
    for text, message in (
        (
            "gpt2-xl-b4",
            "no shipped trace named 'gpt2-xl-b4'; did you mean gpt2-xl-b5 or gpt2-xl-b3",
        ),
        ("xyzzy", "named 'xyzzy'; `deepum info` lists the shipped ones"),
        ("gpt2-xl-b4.trace", "there is no file gpt2-xl-b4.trace"),
        ("./gpt2-xl-b4", "there is no file ./gpt2-xl-b4"),
    ):
        with pytest.raises(TraceError) as error:
            Trace.load(text)
        # a bare "./" is normalised by pathlib, not by the message
        assert message in str(error.value)
    (tmp_path / "gpt2-xl-b3").mkdir()  # a folder is no trace
    assert Trace.load("gpt2-xl-b3") == trace
    (tmp_path / "gpt2-xl-b3").rmdir()
    (tmp_path / "gpt2-xl-b3").write_text("")  # a file goes before a shipped name
    with pytest.raises(TraceError, match="gpt2-xl-b3 is empty"):
        Trace.load("gpt2-xl-b3")


def test_shipped_traces_are_found():
    for name, path in Trace.shipped().items():
        assert path.name == f"{name}.trace"
        assert path.is_file()


def test_unreadable(tmp_path):
    with pytest.raises(TraceError, match=r"cannot read .*: Is a directory"):
        Trace.load(tmp_path)


def test_unwritable(trace, tmp_path):
    with pytest.raises(TraceError, match=r"cannot write .*/no/where: No such file or directory"):
        trace.save(tmp_path / "no" / "where")
    with pytest.raises(TraceError, match="meta cannot be written as JSON"):
        trace.replace(meta={"x": object()}).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trace(tmp_path, saved):
    assert refused(tmp_path, b"") == "FILE is empty"
    assert refused(tmp_path, b"\x7fELF and so on") == "FILE is not a deepum trace"
    assert refused(tmp_path, b"PK") == "FILE: truncated or corrupt: File is not a zip file"
    no_meta = rewritten(saved, meta__json=None)
    assert refused(tmp_path, no_meta) == "FILE: not a deepum trace: it has no meta.json"
    other = rewritten(saved, meta__json=b'{"format": "x"}')
    assert refused(tmp_path, other) == "FILE: not a deepum trace: meta.json does not say so"


def test_versions(tmp_path, saved):
    def version(value):
        meta = {"format": "deepum-trace", "version": value}
        return refused(tmp_path, rewritten(saved, meta__json=json.dumps(meta).encode()))

    assert version(2) == (
        "FILE: written by a newer deepum (format 2); this one reads up to 1: upgrade deepum"
    )
    for value in (0, "1", True, None, 1.0):
        assert version(value) == f"FILE: version {value!r} is not a format version"


META = b'{"format":"deepum-trace","version":1,"name":"x","times":"measured","loop_from":3}'
U8 = np.zeros(5, "<u8")


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"meta__json": b"{"}, "corrupt: meta.json is not JSON"),
        ({"meta__json": b"[" * 100_000}, "corrupt: meta.json is not JSON"),
        ({"meta__json": b"[]"}, "meta.json is not a JSON object"),
        ({"names__json": b"{}"}, "names.json is not a JSON array"),
        ({"names__json": b"[1]"}, "names.json is not a list of strings"),
        ({"names__json": b"[]"}, "kernel_name holds 3, but there are only 0 kernel names"),
        ({"schedule__npy": None}, "not a deepum trace: it has no schedule.npy"),
        ({"meta__json": META.replace(b"3}", b"9}")}, "loop_from is 9, but there are 4 iterations"),
        ({"tensor_bytes__npy": b""}, "column tensor_bytes is not a version 1.0 .npy array"),
        (
            {"tensor_bytes__npy": npy(U8, version=(2, 0))},
            "column tensor_bytes is not a version 1.0 .npy array in C order",
        ),
        (
            {"tensor_bytes__npy": npy(np.zeros((5, 2), "<u8", order="F"))},
            "column tensor_bytes is not a version 1.0 .npy array in C order",
        ),
        (
            {"tensor_bytes__npy": npy(np.array([{}] * 5), allow_pickle=True)},
            "column tensor_bytes is of type |O, not <u8",
        ),
        ({"tensor_bytes__npy": npy(U8.astype("<i8"))}, "is of type <i8, not <u8"),
        ({"tensor_bytes__npy": npy(U8.astype(">u8"))}, "is of type >u8, not <u8"),
        ({"tensor_bytes__npy": npy(U8)[:-1]}, "tensor_bytes has shape (5,) but 39 bytes"),
        ({"tensor_bytes__npy": npy(U8) + b"12345678"}, "has shape (5,) but 48 bytes"),
        ({"tensor_bytes__npy": npy(U8.reshape(5, 1))}, "has shape (5, 1) but 40 bytes"),
        (
            {"tensor_bytes__npy": npy(U8).replace(b"(5,)", b"(9,)")},
            "column tensor_bytes has shape (9,) but 40 bytes",
        ),
        ({"tensor_address__npy": npy(U8)}, "column tensor_address is of type <u8, not |u1"),
        (
            {"tensor_address__npy": npy(np.zeros((5, 8), "u1"))},
            "column tensor_address has shape (5, 8) but 40 bytes",
        ),
        (
            {"event_arg__npy": npy(np.zeros((8, 3), "u1"))},
            "the columns of the event table differ in length",
        ),
        (
            {"event_op__npy": npy(np.full(18, 9, "u1"))},
            "event_op holds 9, but there are only 4 ops",
        ),
        ({"event_op__npy": npy(np.zeros(0, "u1"))}, "the columns of the event table differ"),
        ({"tensor_bytes__npy": npy(U8[:4])}, "the columns of the tensor table differ in length"),
    ],
)
def test_wrong_members(tmp_path, saved, members, text):
    assert text in refused(tmp_path, rewritten(saved, **members))


def test_hostile_sizes(tmp_path, saved, monkeypatch):
    huge = bytearray(npy(U8))
    header = b"(999999999999,), }"
    start = huge.index(b"(5,)")
    huge[start : start + len(header)] = header
    text = refused(tmp_path, rewritten(saved, tensor_bytes__npy=bytes(huge)))
    assert "has shape (999999999999,) but 40 bytes" in text
    many = {f"x{i}": b"" for i in range(60)}
    assert "86 members are too many for a trace" in refused(tmp_path, rewritten(saved, **many))
    monkeypatch.setattr(file, "MAX_BYTES", 3000)
    assert "more than the 3000 allowed" in refused(tmp_path, saved)


def test_a_member_that_claims_more_than_it_holds(tmp_path, saved):
    """The directory of the zip says 5,000 bytes more than the compressed data give."""
    data = bytearray(saved)
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"schedule.npy"))
    size = int.from_bytes(data[at + 24 : at + 28], "little")
    data[at + 24 : at + 28] = (size + 5000).to_bytes(4, "little")
    assert f"truncated: schedule.npy holds {size} of {size + 5000}" in refused(
        tmp_path, bytes(data)
    )


def test_a_decompression_bomb_costs_little(tmp_path, saved):
    """A member that claims little and unpacks to much is cut off at what it claims."""
    path = tmp_path / "bomb.trace"
    path.write_bytes(rewritten(saved, schedule__npy=None))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as bomb:
        bomb.writestr("schedule.npy", bytes(96 << 20))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"schedule.npy"))
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")
    tracemalloc.start()
    text = refused(tmp_path, bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "truncated or corrupt: Bad CRC-32" in text
    assert peak < 80 << 20


@given(st.data())
@examples(400)
def test_any_flipped_byte_is_noticed_or_harmless(trace, saved, tmp_path_factory, data):
    at = data.draw(st.integers(0, len(saved) - 1))
    value = data.draw(st.integers(0, 255))
    changed = bytearray(saved)
    changed[at] = value
    check(trace, bytes(changed), tmp_path_factory)


@given(st.data())
@examples(100)
def test_any_truncation_is_noticed(saved, tmp_path_factory, data):
    check(None, saved[: data.draw(st.integers(0, len(saved) - 1))], tmp_path_factory)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=8)), min_size=2, max_size=6))
@examples(150)
def test_any_damage_inside_is_an_error_or_a_trace(trace, saved, tmp_path_factory, cuts):
    """Bytes exchanged inside a column, with the checksum made right again."""
    with zipfile.ZipFile(io.BytesIO(saved)) as members:
        names = members.namelist()
        parts = {}
        for where, new in cuts:
            name = names[where % len(names)]
            old = bytearray(parts.get(name, members.read(name)))
            at = (where // len(names)) % len(old)
            old[at : at + len(new)] = new
            parts[name] = bytes(old)
    damaged = rewritten(saved, **{n.replace(".", "__"): d for n, d in parts.items()})
    path = tmp_path_factory.mktemp("damage") / "x.trace"
    path.write_bytes(damaged)
    try:
        assert Trace.load(path).iterations > 0
    except TraceError as error:
        assert "\n" not in str(error)


def check(trace, data: bytes, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("flip") / "x.trace"
    path.write_bytes(data)
    try:
        assert Trace.load(path) == trace
    except TraceError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)

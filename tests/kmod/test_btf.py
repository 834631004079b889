# SPDX-License-Identifier: Apache-2.0
"""Type information is read as it is; a driver that is not known is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from deepum.backends.btf import Btf, uvm_layout
from deepum.errors import BackendError

INT, PTR, STRUCT, UNION, ENUM, TYPEDEF, CONST, FUNC, PROTO = 1, 2, 4, 5, 6, 8, 10, 12, 13


class Writer:
    """Writes type information, one type after the other."""

    def __init__(self, base: Writer | None = None) -> None:
        self.strings = bytearray(b"\0" if base is None else b"")
        self.first_string = 0 if base is None else base.first_string + len(base.strings)
        self.types = bytearray()
        self.next = 1 if base is None else base.next

    def text(self, name: str) -> int:
        if not name:
            return 0
        at = self.first_string + len(self.strings)
        self.strings += name.encode() + b"\0"
        return at

    def add(self, kind: int, name: str, size: int, parts: list[tuple[int, ...]] = (), flag=0):
        info = kind << 24 | len(parts) | flag << 31
        self.types += struct.pack("<III", self.text(name), info, size)
        for part in parts:
            self.types += struct.pack(f"<{len(part)}I", *part)
        self.next += 1
        return self.next - 1

    def integer(self, name: str, size: int) -> int:
        number = self.add(INT, name, size)
        self.types += struct.pack("<I", 8 * size)
        return number

    def members(self, *members: tuple[str, int, int], bits: int = 0) -> list[tuple[int, ...]]:
        return [(self.text(name), of, bit | bits << 24) for name, of, bit in members]

    def data(self) -> bytes:
        head = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return head + bytes(self.types) + bytes(self.strings)


def driver(change: Callable[[dict], None] = lambda d: None) -> tuple[bytes, bytes]:
    """Return a driver's type information and its kernel's. `change` may spoil its facts."""
    facts = {
        "function": "uvm_perf_event_notify", "address": "fault_address", "arguments": 3,
        "events": [("UVM_PERF_EVENT_FAULT", 5), ("UVM_PERF_EVENT_MIGRATION", 6)],
        "cause": "UVM_MAKE_RESIDENT_CAUSE_EVICTION", "write": "UVM_FAULT_ACCESS_TYPE_WRITE",
        "bytes": "u64", "pointer": True,
    }  # fmt: skip
    change(facts)
    kernel = Writer()
    u64, u32, flag = kernel.integer("u64", 8), kernel.integer("u32", 4), kernel.integer("bool", 1)
    numbers = {"u64": u64, "u32": u32}
    w = Writer(kernel)
    number = w.add(TYPEDEF, "NvU64", w.add(CONST, "", u64))
    access = w.add(ENUM, "", 4, [(w.text(facts["write"]), 2)])
    entry = w.add(
        STRUCT, "", 24,
        [
            *w.members((facts["address"], number, 0)),
            *w.members(("fault_access_type", access, 134), bits=4),
        ],
        flag=1,
    )  # fmt: skip
    entry_pointer = w.add(PTR, "", w.add(TYPEDEF, "uvm_fault_buffer_entry_t", entry))
    processor = w.add(STRUCT, "", 4, w.members(("val", u32, 0)))
    gpu = w.add(STRUCT, "", 16, w.members(("buffer_entry", entry_pointer, 0)))
    cpu = w.add(STRUCT, "", 24, w.members(("fault_va", number, 0), ("is_write", flag, 96)))
    which = w.add(UNION, "", 24, w.members(("gpu", gpu, 0), ("cpu", cpu, 0)))
    fault = w.add(STRUCT, "", 40, w.members(("proc_id", processor, 64), ("", which, 128)))
    cause = w.add(ENUM, "uvm_make_resident_cause_t", 4, [(w.text(facts["cause"]), 4)])
    migration = w.add(
        STRUCT, "", 48,
        w.members(
            ("dst", processor, 64), ("src", processor, 96), ("address", number, 128),
            ("bytes", numbers[facts["bytes"]], 192), ("cause", cause, 256),
        ),
    )  # fmt: skip
    data = w.add(UNION, "", 48, w.members(("fault", fault, 0), ("migration", migration, 0)))
    data = w.add(TYPEDEF, "uvm_perf_event_data_t", data)
    if facts["pointer"]:
        data = w.add(PTR, "", data)
    event = w.add(ENUM, "", 4, [(w.text(name), value) for name, value in facts["events"]])
    arguments = [entry_pointer, event, data][: facts["arguments"]]
    prototype = w.add(PROTO, "", 0, [(w.text("a"), argument) for argument in arguments])
    w.add(FUNC, facts["function"], prototype)
    return w.data(), kernel.data()


def test_a_layout_is_read() -> None:
    fields = struct.unpack("<5I14H", uvm_layout(*driver()))
    assert fields == (48, 0, 5, 6, 4, 8, 16, 16, 28, 0, 134, 4, 2, 8, 12, 16, 24, 32, 48)


@pytest.mark.parametrize(
    ("what", "value", "text"),
    [
        ("function", "uvm_other", "no uvm_perf_event_notify"),
        ("arguments", 2, "event function has changed"),
        ("address", "fault_place", "no field fault_address"),
        ("events", [("UVM_PERF_EVENT_FAULT", 5)], "no UVM_PERF_EVENT_MIGRATION"),
        ("cause", "SOMETHING", "no UVM_MAKE_RESIDENT_CAUSE_EVICTION"),
        ("write", "SOMETHING", "no UVM_FAULT_ACCESS_TYPE_WRITE"),
        ("bytes", "u32", "migration.bytes has 32 bits, not 64"),
        ("pointer", False, "passes no pointer"),
    ],
)
def test_another_layout_is_refused(what: str, value: object, text: str) -> None:
    def change(facts: dict) -> None:
        facts[what] = value

    with pytest.raises(BackendError, match=text) as caught:
        uvm_layout(*driver(change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xeb\x9f" + bytes(30), b"ELF!" + bytes(40)])
def test_what_is_no_type_information(data: bytes) -> None:
    with pytest.raises(BackendError, match="type information"):
        Btf(data)


def test_a_type_that_is_not_there() -> None:
    with pytest.raises(BackendError, match="type 7"):
        Btf(Writer().data()).head(7)

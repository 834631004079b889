# SPDX-License-Identifier: Apache-2.0
"""Where the fields of a kernel module's structures lie: its BTF type information.

NVIDIA's driver keeps the structures that the kernel module observes to itself, and they have
changed before. So their layout is read from the driver that is loaded, ``/sys/kernel/btf``, and
one that is not understood is refused.

Format: Documentation/bpf/btf.rst of Linux.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from deepum.errors import BackendError

SYS = Path("/sys/kernel/btf")
DRIVER = "nvidia_uvm"

_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 2, 3, 4, 5, 6
_TYPEDEF, _QUALIFIERS, _FUNC, _FUNC_PROTO, _ENUM64 = 8, (9, 10, 11, 18), 12, 13, 19
# Bytes after a type's head: a fixed number, and so many for each of its parts.
_FIXED = {_INT: 4, _ARRAY: 12, 14: 4, 17: 4}
_EACH = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, 15: 12, _ENUM64: 12}
_HEAD = struct.Struct("<III")


class Field(NamedTuple):
    """A member of a structure, as it lies in the outermost one."""

    bit: int
    bits: int
    type: int


class Btf:
    """Type information of a module, or of the kernel if `base` is None.

    Raises
    ------
    BackendError
        It is not what it should be.
    """

    first: int
    end: int
    first_string: int
    strings_end: int

    def __init__(self, data: bytes, base: Btf | None = None) -> None:
        try:
            magic, _, _, head, types, types_len, strings, strings_len = struct.unpack_from(
                "<HBBIIIII", data
            )
        except struct.error as error:
            raise BackendError("type information ends in its header") from error
        if magic != 0xEB9F:
            raise BackendError("type information (BTF) of another byte order, or none at all")
        self._data = data
        self._base = base
        self._strings = head + strings
        self.first = 1 if base is None else base.end
        self.first_string = 0 if base is None else base.strings_end
        self.strings_end = self.first_string + strings_len
        self._at: list[int] = []
        at, end = head + types, head + types + types_len
        while at < end:
            self._at.append(at)
            info = struct.unpack_from("<I", data, at + 4)[0]
            kind = info >> 24 & 31
            at += 12 + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * (info & 0xFFFF)
        self.end = self.first + len(self._at)
        self._names: dict[tuple[int, str], int] = {}
        for number in range(self.first, self.end):
            kind, _, name, _ = self.head(number)
            if name and base is not None:
                self._names.setdefault((kind, name), number)

    def head(self, number: int) -> tuple[int, int, str, int]:
        """Return (kind, number of parts, name, size or type) of a type."""
        if self._base is not None and number < self.first:
            return self._base.head(number)
        name, info, size = _HEAD.unpack_from(self._data, self._place(number))
        return info >> 24 & 31, info & 0xFFFF, self._text(name), size

    def _place(self, number: int) -> int:
        if not self.first <= number < self.end:
            raise BackendError(f"type information names a type {number} that it does not have")
        return self._at[number - self.first]

    def _text(self, offset: int) -> str:
        if offset < self.first_string:
            return self._base._text(offset) if self._base is not None else ""
        start = self._strings + offset - self.first_string
        return self._data[start : self._data.index(b"\0", start)].decode()

    def named(self, kind: int, name: str) -> int:
        """Return the type of a kind and name."""
        try:
            return self._names[kind, name]
        except KeyError:
            raise BackendError(f"the driver has no {name}: its version is not known") from None

    def plain(self, number: int) -> int:
        """Return the type behind names and qualifiers."""
        while True:
            kind, _, _, target = self.head(number)
            if kind != _TYPEDEF and kind not in _QUALIFIERS:
                return number
            number = target

    def size(self, number: int) -> int:
        """Return a type's size in bytes."""
        number = self.plain(number)
        kind, _, _, size = self.head(number)
        return 8 if kind == _PTR else size

    def _owner(self, number: int) -> Btf:
        owner = self
        while owner._base is not None and number < owner.first:
            owner = owner._base
        return owner

    def _members(self, number: int) -> list[tuple[str, Field]]:
        owner = self._owner(number)
        at = owner._place(number)
        info = struct.unpack_from("<I", owner._data, at + 4)[0]
        found = []
        for i in range(info & 0xFFFF):
            name, target, offset = _HEAD.unpack_from(owner._data, at + 12 + 12 * i)
            bit, bits = (offset & 0xFFFFFF, offset >> 24) if info >> 31 else (offset, 0)
            found.append((owner._text(name), Field(bit, bits or 8 * self.size(target), target)))
        return found

    def field(self, number: int, path: str) -> Field:
        """Return where the member ``a.b.c`` of a structure lies; unnamed ones are looked into."""
        at, place = self.plain(number), Field(0, 0, number)
        for name in path.split("."):
            found = self._member(at, name)
            if found is None:
                raise BackendError(
                    f"the driver's structure has no field {path}: its version is not known"
                )
            place = Field(place.bit + found.bit, found.bits, found.type)
            at = self.plain(found.type)
        return place

    def _member(self, number: int, wanted: str) -> Field | None:
        if self.head(number)[0] not in (_STRUCT, _UNION):
            return None
        for name, field in self._members(number):
            if name == wanted:
                return field
            if not name:
                inner = self._member(self.plain(field.type), wanted)
                if inner is not None:
                    return Field(field.bit + inner.bit, inner.bits, inner.type)
        return None

    def value(self, number: int, name: str) -> int:
        """Return the value of an enumeration's constant."""
        number = self.plain(number)
        owner = self._owner(number)
        at = owner._place(number)
        for i in range(self.head(number)[1]):
            text, value = struct.unpack_from("<II", owner._data, at + 12 + 8 * i)
            if owner._text(text) == name:
                return int(value)
        raise BackendError(f"the driver has no {name}: its version is not known")

    def arguments(self, function: str) -> list[int]:
        """Return the types of a function's arguments."""
        prototype = self.head(self.named(_FUNC, function))[3]
        owner = self._owner(prototype)
        at = owner._place(prototype)
        return [
            struct.unpack_from("<II", owner._data, at + 12 + 8 * i)[1]
            for i in range(self.head(prototype)[1])
        ]

    def pointed(self, number: int) -> int:
        """Return what a pointer points to."""
        kind, _, _, target = self.head(self.plain(number))
        if kind != _PTR:
            raise BackendError("the driver passes no pointer where one was: it is not known")
        return target


def uvm_layout(module: bytes, base: bytes) -> bytes:
    """Return ``struct deepum_uvm`` for NVIDIA's driver.

    Parameters
    ----------
    module, base
        The driver's type information and the kernel's.

    Raises
    ------
    BackendError
        The driver is not laid out in a way that the kernel module could read.
    """
    btf = Btf(module, Btf(base))
    arguments = btf.arguments("uvm_perf_event_notify")
    if len(arguments) != 3:
        raise BackendError("the driver's event function has changed: its version is not known")
    _, event, data = arguments
    data = btf.pointed(data)

    def at(path: str, size: int, of: int = data) -> int:
        field = btf.field(of, path)
        if field.bits != 8 * size or field.bit % 8:
            raise BackendError(
                f"the driver's field {path} has {field.bits} bits, not {8 * size}: "
                "its version is not known"
            )
        return field.bit // 8

    entry = btf.pointed(btf.field(data, "fault.gpu.buffer_entry").type)
    access = btf.field(entry, "fault_access_type")
    return struct.pack(
        "<5I14H",
        48,
        0,
        btf.value(event, "UVM_PERF_EVENT_FAULT"),
        btf.value(event, "UVM_PERF_EVENT_MIGRATION"),
        btf.value(btf.field(data, "migration.cause").type, "UVM_MAKE_RESIDENT_CAUSE_EVICTION"),
        at("fault.proc_id", 4),
        at("fault.gpu.buffer_entry", 8),
        at("fault.cpu.fault_va", 8),
        at("fault.cpu.is_write", 1),
        at("fault_address", 8, entry),
        access.bit,
        access.bits,
        btf.value(access.type, "UVM_FAULT_ACCESS_TYPE_WRITE"),
        at("migration.dst", 4),
        at("migration.src", 4),
        at("migration.address", 8),
        at("migration.bytes", 8),
        at("migration.cause", 4),
        btf.size(data),
    )


def driver_layout() -> bytes:
    """Return ``struct deepum_uvm`` for the driver that is loaded.

    Raises
    ------
    BackendError
        None is, it has no type information, or it is not known.
    """
    try:
        module, base = (SYS / DRIVER).read_bytes(), (SYS / "vmlinux").read_bytes()
    except FileNotFoundError as error:
        raise BackendError(
            f"no {error.filename}: nvidia-uvm is not loaded, or was built without type "
            "information (BTF)"
        ) from error
    return uvm_layout(module, base)

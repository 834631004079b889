# SPDX-License-Identifier: Apache-2.0
"""The records are those of the kernel module's header, and the header compiles anywhere."""

import shutil
import subprocess

import numpy as np
import pytest

from deepum._core.engine import (
    COMMAND_DEMAND,
    COMMAND_DTYPE,
    COMMAND_TYPES,
    EVENT_DTYPE,
    EVENT_TYPES,
)

HEADER = "uapi/linux/deepum.h"
RECORDS = {"deepum_event": EVENT_DTYPE, "deepum_command": COMMAND_DTYPE}


def compiler(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.skip(f"none of {', '.join(names)} is installed")


@pytest.fixture
def build(repo, tmp_path):
    """Compile a source and return what the program prints."""

    def run(source: str, name: str, *command: str) -> str:
        file, program = tmp_path / name, tmp_path / "program"
        file.write_text(source)
        include = f"-I{repo / 'kmod' / 'include'}"
        warnings = ("-Wall", "-Wextra", "-Werror", "-pedantic")
        subprocess.run([*command, *warnings, include, str(file), "-o", str(program)], check=True)
        return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout

    return run


def test_sizes_and_offsets(build):
    lines = [
        f'printf("{struct} {field} %zu %zu\\n", offsetof(struct {struct}, {field}),'
        f" sizeof(((struct {struct} *)0)->{field}));"
        for struct, dtype in RECORDS.items()
        for field in dtype.names
    ]
    lines += [f'printf("{struct} - 0 %zu\\n", sizeof(struct {struct}));' for struct in RECORDS]
    source = f"""
        #include <stddef.h>
        #include <stdio.h>
        #include <{HEADER}>
        int main(void) {{ {" ".join(lines)} return 0; }}
    """
    printed = build(source, "records.c", compiler("cc", "gcc", "clang"), "-std=c11")
    expected = [
        f"{struct} {field} {dtype.fields[field][1]} {dtype.fields[field][0].itemsize}"
        for struct, dtype in RECORDS.items()
        for field in dtype.names
    ]
    expected += [f"{struct} - 0 {dtype.itemsize}" for struct, dtype in RECORDS.items()]
    assert printed.splitlines() == expected


def test_constants(build):
    constants = {f"DEEPUM_EVENT_{name.upper()}": number for name, number in EVENT_TYPES.items()}
    constants |= {f"DEEPUM_COMMAND_{name.upper()}": n for name, n in COMMAND_TYPES.items()}
    constants |= {
        "DEEPUM_COMMAND_DEMAND": COMMAND_DEMAND,
        "DEEPUM_COMMAND_CLEAN": 2,
        "DEEPUM_BLOCK_SHIFT": 21,
        "DEEPUM_ADDRESS_BITS": 53,
        "DEEPUM_ACCESS_WRITE": 1,
    }
    prints = " ".join(f'printf("%d\\n", (int){name});' for name in constants)
    source = f"#include <stdio.h>\n#include <{HEADER}>\nint main(void) {{ {prints} return 0; }}"
    printed = build(source, "constants.c", compiler("cc", "gcc", "clang"), "-std=c11")
    assert [int(line) for line in printed.split()] == [*constants.values()]


def test_the_header_is_cpp_as_well(build):
    source = f"""
        #include <{HEADER}>
        #include <type_traits>
        static_assert(sizeof(deepum_event) == {EVENT_DTYPE.itemsize}, "event");
        static_assert(sizeof(deepum_command) == {COMMAND_DTYPE.itemsize}, "command");
        static_assert(std::is_trivially_copyable<deepum_event>::value, "plain");
        int main() {{ return 0; }}
    """
    build(source, "header.cpp", compiler("c++", "g++", "clang++"), "-std=c++17")


def test_the_header_needs_no_linux(build):
    source = f"#include <{HEADER}>\nint main(void) {{ return 0; }}"
    build(source, "plain.c", compiler("cc", "gcc", "clang"), "-std=c11", "-U__linux__")


def test_records_have_no_padding():
    for dtype in RECORDS.values():
        assert sum(dtype.fields[name][0].itemsize for name in dtype.names) == dtype.itemsize
        assert dtype.itemsize % 8 == 0
        assert dtype == np.dtype(dtype.descr)


def test_types_are_numbered_from_one():
    assert sorted(EVENT_TYPES.values()) == [*range(1, 11)]
    assert sorted(COMMAND_TYPES.values()) == [1, 2, 3]

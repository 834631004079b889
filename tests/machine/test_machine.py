# SPDX-License-Identifier: Apache-2.0
"""Hardware profiles: the shipped ones, wrong files, and the roofline."""

import dataclasses
import os

import numpy as np
import pytest

from deepum.errors import DeepUMError, MachineError
from deepum.machine import BLOCK_BYTES, Machine
from deepum.units import parse_bytes

SHIPPED = Machine.names()
FIGURES = [
    field.name
    for field in dataclasses.fields(Machine)
    if field.name not in ("name", "title", "sources", "vmm")
]


@pytest.fixture
def text():
    """Return a profile's text, changed: an entry set to a TOML value, or left out with None."""

    def change(**entries):
        machine = Machine.load("v100-pcie3-32g")
        values = {"name": '"mine"', "title": '"Mine"'}
        values |= {name: repr(getattr(machine, name)) for name in FIGURES}
        values |= entries
        return "".join(f"{name} = {value}\n" for name, value in values.items() if value is not None)

    return change


def test_names():
    assert {"a100-pcie4-40g", "h200-pcie5", "v100-pcie3-16g", "v100-pcie3-32g"} <= set(SHIPPED)
    assert sorted(SHIPPED) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles(name):
    machine = Machine.load(name)
    assert machine.name == name
    assert machine.title
    assert Machine.load(machine) is machine
    # Every figure says where it comes from, and nothing else is said.
    silent = set() if machine.fault_evict_ahead_blocks else {"fault_evict_ahead_blocks"}
    costs = {"vmm"} if machine.vmm else set()
    assert set(machine.sources) - silent == set(FIGURES) - silent | costs
    for figure, source in machine.sources.items():
        assert len(source) >= 10, f"{figure}: {source!r} is no source"
        assert "\n" not in source
    # The figures make sense together.
    assert machine.bus_in_bytes_s < machine.memory_bytes_s
    assert machine.bus_out_bytes_s < machine.memory_bytes_s
    assert machine.bus_both_bytes_s <= machine.bus_in_bytes_s + machine.bus_out_bytes_s
    assert machine.fp32_flops <= machine.tf32_flops <= machine.fp16_flops


def test_the_papers_two_cards_differ_in_memory_alone():
    large, small = (Machine.load(f"v100-pcie3-{size}g") for size in (32, 16))
    assert large.memory_bytes > small.memory_bytes
    changed = {"name", "title", "memory_bytes", "sources"}
    for field in dataclasses.fields(Machine):
        same = getattr(large, field.name) == getattr(small, field.name)
        assert same or field.name in changed, field.name


def test_a_file_of_ones_own(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text())
    machine = Machine.load(path)
    assert machine == dataclasses.replace(
        Machine.load("v100-pcie3-32g"), name="mine", title="Mine", sources={}
    )
    assert Machine.load(str(path)) == machine
    path.write_text(text() + '[sources]\nlaunch_s = "a guess"\n')
    assert Machine.load(path).sources == {"launch_s": "a guess"}
    path.write_text(text(max_run_blocks=4.0, memory_bytes=2 << 20, move_in_s=0, populate_s=0))
    machine = Machine.load(path)
    assert (machine.max_run_blocks, type(machine.max_run_blocks)) == (4, int)
    assert (machine.move_in_s, type(machine.move_in_s)) == (0.0, float)
    assert machine.memory_bytes == BLOCK_BYTES


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"fault_batchs": 1}, "unknown entry 'fault_batchs'; did you mean fault_batch_s?"),
        ({"zzz": 1}, "unknown entry 'zzz'"),
        ({"launch_s": None}, "missing launch_s"),
        ({"launch_s": None, "name": None}, "missing name, launch_s"),
        ({"launch_s": '"fast"'}, "launch_s must be a number"),
        ({"launch_s": "true"}, "launch_s must be a number"),
        ({"launch_s": "[1]"}, "launch_s must be a number"),
        ({"launch_s": "inf"}, "launch_s must be finite"),
        ({"launch_s": "nan"}, "launch_s must be finite"),
        ({"launch_s": "-1e-6"}, "launch_s must be above 0"),
        ({"name": "3"}, "name must be a text"),
        ({"title": "3"}, "title must be a text"),
        ({"max_run_blocks": "1.5"}, "max_run_blocks must be a whole number"),
        ({"max_run_blocks": "0"}, "max_run_blocks must be above 0"),
        ({"fault_window_blocks": "-4"}, "fault_window_blocks must be above 0"),
        ({"bus_in_bytes_s": "0"}, "bus_in_bytes_s must be above 0"),
        ({"bus_out_bytes_s": "0.0"}, "bus_out_bytes_s must be above 0"),
        ({"fp32_flops": "0"}, "fp32_flops must be above 0"),
        ({"compute_efficiency": "1.01"}, "compute_efficiency is a share, at most 1"),
        ({"memory_efficiency": "2"}, "memory_efficiency is a share, at most 1"),
        ({"conv_efficiency": "1.5"}, "conv_efficiency is a share, at most 1"),
        ({"fault_page_percent_strided": "101"}, "fault_page_percent_strided is at most 100"),
        ({"scattered_pages": "0"}, "scattered_pages must be above 0"),
        ({"compute_efficiency": "0"}, "compute_efficiency must be above 0"),
        ({"fault_page_percent": "100.5"}, "fault_page_percent is at most 100"),
        ({"memory_bytes": "2097151"}, "memory_bytes is below one 2 MiB block"),
        ({"sources": "3"}, "sources must be a table of texts"),
        ({"sources": "{ launch_s = 3 }"}, "sources must be a table of texts"),
    ],
)
def test_wrong_figures(tmp_path, text, entries, says):
    path = tmp_path / "mine.toml"
    path.write_text(text(**entries))
    with pytest.raises(MachineError) as error:
        Machine.load(path)
    assert str(error.value) == f"machine file {path}: {says}"


def test_limits_are_allowed(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text(compute_efficiency=1, memory_efficiency=1.0, fault_page_percent=100))
    assert Machine.load(path).compute_efficiency == 1.0


def test_wrong_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("launch_s = \n")
    with pytest.raises(MachineError, match=f"^machine file {path} is not valid TOML: .*line 1"):
        Machine.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MachineError, match=f"^cannot read machine file {path}: "):
        Machine.load(path)
    path.write_text("")
    with pytest.raises(MachineError, match=r"missing name, title, memory_bytes"):
        Machine.load(path)
    for missing in (tmp_path, tmp_path / "absent.toml", ""):
        with pytest.raises(MachineError, match=r"^no machine profile or file named"):
            Machine.load(missing)


def test_names_that_are_nearly_right():
    with pytest.raises(MachineError, match=r"named 'v100-pcie3-32'; did you mean v100-pcie3-32g"):
        Machine.load("v100-pcie3-32")
    with pytest.raises(MachineError, match=r"named 'tpu'; shipped: a100-pcie4-40g, .*, v100-"):
        Machine.load("tpu")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text())
    path.chmod(0)
    with pytest.raises(MachineError, match=r"cannot read machine file"):
        Machine.load(path)


def test_a_file_that_cannot_be_read(tmp_path, text, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text(text())

    def refuse(self, *args):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(path), "read_text", refuse)
    with pytest.raises(MachineError, match=r"^cannot read machine file .*Permission denied"):
        Machine.load(path)


def test_profiles_are_immutable_and_hashable():
    machine = Machine.load("h200-pcie5")
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.launch_s = 0.0
    assert hash(machine) == hash(Machine.load("h200-pcie5"))


# The roofline


@pytest.fixture
def round_machine():
    return dataclasses.replace(
        Machine.load("v100-pcie3-32g"),
        fp32_flops=10e12,
        tf32_flops=20e12,
        fp16_flops=40e12,
        compute_efficiency=0.5,
        conv_efficiency=0.25,
        memory_bytes_s=1000e9,
        memory_efficiency=0.8,
        launch_s=5e-6,
    )


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "seconds"),
    [
        (0, 0, 0, 5e-6),  # a launch takes a while
        (5e12, 0, 0, 1.0),
        (5e12, 0, 1, 0.5),
        (5e12, 0, 2, 0.25),
        (5e12, 0, 3, 1.0),  # anything else as fp32
        (5e12, 0, 200, 1.0),
        (0, 800e9, 0, 1.0),
        (5e12, 1600e9, 2, 2.0),  # what takes longer counts
        (5e12, 400e9, 0, 1.0),
        (2.4e7, 0, 0, 5e-6),
        (2.6e7, 0, 0, 5.2e-6),
    ],
)
def test_roofline(round_machine, flops, moved, dtype, seconds):
    assert float(round_machine.kernel_time_s(flops, moved, dtype)) == pytest.approx(seconds)


def test_roofline_of_many(round_machine):
    times = round_machine.kernel_time_s(
        np.array([0.0, 5e12, 5e12]), np.array([0, 0, 1600 * 10**9], dtype=np.uint64), [0, 1, 2]
    )
    assert times.tolist() == pytest.approx([5e-6, 0.5, 2.0])
    assert round_machine.kernel_time_s([], []).shape == (0,)
    assert float(round_machine.kernel_time_s(5e12, 0)) == pytest.approx(1.0)
    # Convolutions reach a share of their own.
    times = round_machine.kernel_time_s([5e12, 5e12], [0, 0], 0, [True, False])
    assert times.tolist() == pytest.approx([2.0, 1.0])


# Sizes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (12.9, 12),
        ("1", 1),
        ("2097152", 2097152),
        ("24GiB", 24 << 30),
        ("24 GiB", 24 << 30),
        ("  24gib  ", 24 << 30),
        ("24G", 24 << 30),
        ("24GB", 24 * 10**9),
        ("1.5 GB", 1_500_000_000),
        ("1.GiB", 1 << 30),
        (".5GiB", 1 << 29),
        ("3k", 3 << 10),
        ("3kb", 3000),
        ("3KiB", 3 << 10),
        ("7m", 7 << 20),
        ("7MB", 7_000_000),
        ("7 mib", 7 << 20),
        ("2t", 2 << 40),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 << 40),
        ("17b", 17),
        ("17 B", 17),
    ],
)
def test_sizes(size, expected):
    assert parse_bytes(size) == expected
    assert type(parse_bytes(size)) is int


@pytest.mark.parametrize(
    "size",
    ["", " ", "GiB", "24 gigs", "24 Gi B", "-3GiB", "+3", "1e9", "0x10", "1,5GB", "1.2.3", ".",
     "3 4", "24GiB!", "inf", "nan"],
)  # fmt: skip
def test_what_is_no_size(size):
    with pytest.raises(DeepUMError, match=r"is not a size; write it as 24GiB or 24GB"):
        parse_bytes(size)


@pytest.mark.parametrize(
    "size", [0, -1, 0.5, float("inf"), float("nan"), "0", "0GiB", "0.4", "9" * 400]
)
def test_sizes_that_cannot_be(size):
    with pytest.raises(DeepUMError, match=r"a size must be above zero"):
        parse_bytes(size)


VMM = """
[vmm]
bus_in_bytes_s = 55e9
bus_out_bytes_s = 54e9
bus_both_bytes_s = 101e9
remap_bytes = [2097152, 33554432]
remap_s = [57e-6, 44e-6]
zero_copy_bytes_s = 41e9
"""


def test_costs_of_remapped_memory(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text() + VMM)
    machine = Machine.load(path)
    assert machine.costs_of_vmm().bus_out_bytes_s == 54e9
    assert machine.costs_of_vmm().remap_bytes == (2097152.0, 33554432.0)
    path.write_text(text())
    with pytest.raises(MachineError, match=r"mine has no \[vmm\] section.*take h200-pcie5"):
        Machine.load(path).costs_of_vmm()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("zero_copy_bytes_s = 41e9", "", "missing zero_copy_bytes_s"),
        ("zero_copy_bytes_s", "zero_kopy", "unknown entry zero_kopy"),
        ("55e9", "0", "bus_in_bytes_s must be a number above 0"),
        ("55e9", "[55e9]", "bus_in_bytes_s must be a number above 0"),
        ("55e9", "true", "bus_in_bytes_s must be a number above 0"),
        ("[57e-6, 44e-6]", "44e-6", "remap_s must be a list of numbers above 0"),
        ("[57e-6, 44e-6]", "[57e-6, nan]", "remap_s must be a list of numbers above 0"),
        ("[57e-6, 44e-6]", "[44e-6]", "must rise and have a remap_s for each"),
        ("[2097152, 33554432]", "[33554432, 2097152]", "must rise"),
        (VMM, "vmm = 3", "vmm must be a table"),
    ],
)
def test_wrong_costs_of_remapped_memory(text, tmp_path, old, new, says):
    path = tmp_path / "mine.toml"
    path.write_text(text() + VMM.replace(old, new))
    with pytest.raises(MachineError) as error:
        Machine.load(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)

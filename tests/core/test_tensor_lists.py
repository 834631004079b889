# SPDX-License-Identifier: Apache-2.0
"""A multi-tensor kernel's parameter, filled as PyTorch fills it: what of it is a tensor."""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepum._core.tensor_lists import addresses, layout

LOW, HIGH = 1 << 40, 1 << 41
KERNEL = "_ZN2at6native25multi_tensor_apply_kernelINS0_{}NS0_7FunctorEJEEEvT_T0_DpT1_"
CHUNK = 65536

ROOM = {  # by the number of lists, less one: parameters of up to 4 KB, and of up to 32 KB
    "plain": ((110, 64, 48, 36, 30), (770, 448, 336, 252, 210)),
    "scalars": ((96, 64, 48, 36, 30), (672, 448, 336, 252, 210)),
    "complex": ((72, 60, 48, 36, 30), (504, 420, 336, 252, 210)),
}
SCALARS: dict[str, tuple[str, Any]] = {  # how a type is mangled
    "float": ("f", ctypes.c_float),
    "int": ("i", ctypes.c_int32),
    "double": ("d", ctypes.c_double),
    "long": ("l", ctypes.c_int64),
    "complex-float": ("N3c107complexIfEE", ctypes.c_float * 2),
    "complex": ("N3c107complexIdEE", ctypes.c_double * 2),
}
BLOCKS = (320, 2240)
INDEX = (ctypes.c_uint8, ctypes.c_uint16)


def struct_of(kind: str, lists: int, large: int) -> tuple[str, type[ctypes.Structure]]:
    """Return a kernel's name and the struct that it takes, laid out by ctypes."""
    mangled, scalar = SCALARS.get(kind, ("", None))
    table = kind if kind == "complex" else "scalars" if scalar else "plain"
    room = ROOM[table][large][lists - 1]
    fields: list[Any] = [
        ("addresses", (ctypes.c_uint64 * room) * lists),
        ("numel", ctypes.c_int64 * room),
    ]
    name = f"18TensorListMetadataILi{lists}EEE"
    if kind == "fused":
        fields.append(("steps", ctypes.c_uint64 * room))
        name = f"32FusedOptimizerTensorListMetadataILi{lists}EEE"
    elif scalar is not None:
        fields.append(("scalars", scalar * room))
        name = f"28TensorListScalarListMetadataI{mangled}Li{lists}EEE"
    fields += [
        ("block_to_tensor", INDEX[large] * BLOCKS[large]),
        ("block_to_chunk", ctypes.c_int * BLOCKS[large]),
    ]
    if scalar is None:
        fields.append(("start", ctypes.c_int))
    struct = type("Lists", (ctypes.Structure,), {"_fields_": fields})
    if kind == "complex" and ctypes.sizeof(struct) % 16:  # c10::complex<double> begins at 16 bytes
        fields.append(("padding", ctypes.c_uint8 * 8))
        struct = type("Lists", (ctypes.Structure,), {"_fields_": fields})
    return KERNEL.format(name), struct


def launches(struct: Any, sizes: list[int]) -> Any:
    """Fill one struct again and again as PyTorch does; yield it, its blocks, what it works on."""
    room, most = len(struct.numel), len(struct.block_to_tensor)
    rows = [*struct.addresses, *([struct.steps] if hasattr(struct, "steps") else [])]
    count = blocks = 0
    here: list[int] = []
    for tensor, size in enumerate(sizes):
        named = [LOW + ((tensor * 8 + k) << 20) for k in range(len(rows))]
        for row, address in zip(rows, named, strict=True):
            row[count] = address
        struct.numel[count] = size
        count += 1
        here += named
        left = -(-size // CHUNK)
        while left:
            some = min(left, most - blocks)
            struct.block_to_tensor[blocks : blocks + some] = [count - 1] * some
            blocks += some
            left -= some
            if blocks < most and (left or count < room):
                continue
            yield struct, blocks, here
            blocks = 0
            if not left:
                count, here = 0, []
                continue
            struct.numel[0] = struct.numel[count - 1]
            for row in rows:
                row[0] = row[count - 1]
            count, here = 1, named
    if blocks:
        yield struct, blocks, here


def found(name: str, struct: Any, grid: tuple[int, int, int]) -> list[int] | None:
    return addresses(name, bytes(struct), grid, LOW, HIGH)


KINDS = ["plain", "fused", *SCALARS]
SIZES = st.lists(st.integers(1, 40 * CHUNK) | st.integers(1, 900), min_size=1, max_size=150)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 5),
    st.booleans(),
    SIZES,
    st.randoms(use_true_random=False),
)
def test_just_what_a_launch_works_on_is_named(kind, lists, large, sizes, random):
    name, kept = struct_of(kind, lists, large)
    noise = bytearray(random.randbytes(ctypes.sizeof(kept)))  # as a stack is
    old = b"".join((LOW + i).to_bytes(8, "little") for i in range(lists * len(kept().numel)))
    noise[: len(old)] = old  # tensors of before
    struct = kept.from_buffer(noise)
    for filled, blocks, used in launches(struct, sizes):
        assert sorted(found(name, filled, (blocks, 1, 1)) or []) == sorted(used)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("lists", range(1, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_each_struct_is_told_by_its_name_and_size(kind, lists, large):
    name, kept = struct_of(kind, lists, large)
    size = ctypes.sizeof(kept)
    assert layout(name, size) == {
        "lists": lists,
        "room": len(kept().numel),
        "sizes": kept.numel.offset,
        "steps": kept.steps.offset if kind == "fused" else 0,
        "blocks": kept.block_to_tensor.offset,
        "block_room": BLOCKS[large],
        "width": 1 + large,
    }
    assert layout(name.replace("EEE", "ELb1EEE", 1), size) == layout(name, size)
    assert layout(name, size + 8) is layout(name, size - 8) is None
    assert layout(name.replace("apply_kernel", "apply_nothing"), size) is None
    assert layout(name.replace("List", "Lisp"), size) is None


@pytest.mark.parametrize("scalar", ["s", "b", "N3c104HalfE", "N3c107complexINS_4HalfEEE", "ff"])
def test_a_scalar_of_another_type_is_not_known(scalar):
    name, kept = struct_of("float", 2, True)
    assert layout(name.replace("IfLi", f"I{scalar}Li"), ctypes.sizeof(kept)) is None


@pytest.mark.parametrize("depth", ["0", "6", "12", "n"])
def test_no_struct_has_so_many_lists(depth):
    name, kept = struct_of("plain", 1, True)
    assert layout(name.replace("ILi1E", f"ILi{depth}E"), ctypes.sizeof(kept)) is None


@pytest.mark.parametrize("large", [False, True])
def test_what_cannot_be_is_scanned_whole(large):
    name, kept = struct_of("plain", 2, large)
    room, blocks = ROOM["plain"][large][1], BLOCKS[large]

    def filled() -> Any:
        struct = kept()
        for i in range(3):
            struct.addresses[0][i] = struct.addresses[1][i] = LOW
            struct.numel[i] = 5
            struct.block_to_tensor[i] = i
        return struct

    assert found(name, filled(), (3, 1, 1)) == [LOW] * 6
    assert found(name, filled(), (2, 1, 1)) == [LOW] * 4
    for grid in ((0, 1, 1), (blocks + 1, 1, 1), (3, 2, 1), (3, 1, 2), (3, 0, 1)):
        assert found(name, filled(), grid) is None
    for place, tensor in ((0, 1), (2, 0), (1, 2), (2, 3)):
        struct = filled()
        struct.block_to_tensor[place] = tensor
        assert found(name, struct, (3, 1, 1)) is None
    for size in (0, -1):
        struct = filled()
        struct.numel[2] = size
        assert found(name, struct, (3, 1, 1)) is None
        assert found(name, struct, (2, 1, 1)) == [LOW] * 4  # the third is not used
    struct = kept()
    for i in range(blocks):
        struct.block_to_tensor[i] = min(i, 255)
    for i in range(room):
        struct.numel[i] = 1
    assert found(name, struct, (room, 1, 1)) == []  # null, all of them
    if not large:
        assert found(name, struct, (room + 1, 1, 1)) is None


@pytest.mark.torch
def test_the_installed_pytorch_declares_it_so():
    torch = pytest.importorskip("torch")
    include = Path(torch.__file__).parent / "include"
    header = include / "ATen" / "native" / "cuda" / "MultiTensorApply.cuh"
    if not header.exists():
        pytest.skip("this PyTorch comes without its CUDA headers")
    text = header.read_text("utf-8")

    def numbers(name: str) -> list[tuple[int, ...]]:
        rows = re.findall(name + r"\[\d\]\s*=\s*\{([^}]*)\}", text)
        return sorted(tuple(int(number) for number in re.findall(r"\d+", row)) for row in rows)

    assert numbers("depth_to_max_tensors") == sorted(ROOM["plain"])
    assert numbers("depth_to_max_blocks") == sorted((blocks,) * 5 for blocks in BLOCKS)
    assert numbers("depth_to_max_tensors_scalarlist") == sorted(ROOM["scalars"])
    wide = sorted(room[:2] for room in ROOM["complex"])
    assert numbers("depth_to_max_tensors_scalarlist_of_complex_double") == wide
    declared = r"template <[^>]*int n[^>]*>\s*struct (\w+) \{(.*?)\n\};"
    structs = {
        name: re.findall(r"(\w+)(?:\s*\[|;)", re.sub(r"\[[^\]]*\]", "[", body))
        for name, body in re.findall(declared, text, re.DOTALL)
    }
    rows = ["addresses", "numel_for_tensor"]
    blocks = ["block_to_tensor", "block_to_chunk"]
    assert structs == {
        "TensorListMetadata": [*rows, *blocks, "start_tensor_this_launch"],
        "TensorListScalarListMetadata": [*rows, "scalar_vals", *blocks],
        "FusedOptimizerTensorListMetadata": [
            *rows, "state_steps_addresses", *blocks, "start_tensor_this_launch",
        ],
    }  # fmt: skip

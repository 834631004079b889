# SPDX-License-Identifier: Apache-2.0
"""Copies and fills of the fake that are not one row: planes, batches, between peers."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p

import numpy as np
import pytest

from .harness import on_fake
from .steer import MIB, Array, Driver

CHUNK = 2 * MIB
INVALID = 1
ON_HOST, ON_DEVICE = 1, 2


class End2(ctypes.Structure):
    """Half of CUDA_MEMCPY2D."""

    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("type", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("pitch", c_size_t),
    )


class Copy2(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (("source", End2), ("to", End2), ("width", c_size_t), ("height", c_size_t))


class End3(ctypes.Structure):
    """Half of CUDA_MEMCPY3D."""

    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("level", c_size_t),
        ("type", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class Copy3(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (
        ("source", End3),
        ("to", End3),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


def seen(array: Array) -> np.ndarray:
    """Return an array's bytes."""
    return np.frombuffer(array.words, "u1").copy()


def numbered(driver: Driver, size: int) -> Array:
    """Return device memory whose bytes are numbered."""
    array = driver.memory(size // 4)
    np.frombuffer(array.words, "u1")[:] = np.arange(size, dtype="u1")
    return array


@on_fake()
@pytest.mark.parametrize("how", ["2D", "2DUnaligned", "2DAsync"])
def test_rows_are_copied(driver: Driver, how: str) -> None:
    source, to = numbered(driver, 64), driver.memory(16)
    copy = Copy2(
        End2(x=2, y=1, type=ON_DEVICE, device=source.address, pitch=8),
        End2(x=1, y=0, type=ON_DEVICE, device=to.address, pitch=16),
        width=4,
        height=3,
    )
    stream = (c_void_p(),) if how.endswith("Async") else ()
    driver.call(f"cuMemcpy{how}_v2", byref(copy), *stream)
    driver.sync()
    right = np.zeros((4, 16), "u1")
    right[:3, 1:5] = seen(source).reshape(8, 8)[1:4, 2:6]
    assert (seen(to).reshape(4, 16) == right).all()
    assert driver.get("bytes_dtod") == 12
    copy.source.pitch = 3
    assert driver.raw(f"cuMemcpy{how}_v2", byref(copy), *stream) == INVALID


@on_fake()
@pytest.mark.parametrize("how", ["3D", "3DAsync"])
def test_planes_are_copied_from_the_host(driver: Driver, how: str) -> None:
    source = np.arange(4 * 4 * 8, dtype="u1")
    to = driver.memory(4 * 4 * 8 // 4)
    copy = Copy3(
        End3(x=1, y=1, z=1, type=ON_HOST, host=source.ctypes.data, pitch=8, height=4),
        End3(type=ON_DEVICE, device=to.address, pitch=8, height=4),
        width=5,
        height=2,
        depth=3,
    )
    stream = (c_void_p(),) if how.endswith("Async") else ()
    driver.call(f"cuMemcpy{how}_v2", byref(copy), *stream)
    source[:] = 0  # pageable: it was taken when the call was made
    driver.sync()
    right = np.zeros((4, 4, 8), "u1")
    right[:3, :2, :5] = np.arange(4 * 4 * 8, dtype="u1").reshape(4, 4, 8)[1:4, 1:3, 1:6]
    assert (seen(to).reshape(4, 4, 8) == right).all()
    assert driver.get("bytes_htod") == 30


@on_fake()
@pytest.mark.parametrize("version", ["", "_v2"])
def test_a_batch_of_copies(driver: Driver, version: str) -> None:
    stream, source = driver.stream(), numbered(driver, 64)
    ends = [driver.memory(4) for _ in range(3)]
    failed = () if version else (c_void_p(),)
    driver.call(
        f"cuMemcpyBatchAsync{version}",
        (c_uint64 * 3)(*(end.address for end in ends)),
        (c_uint64 * 3)(*(source.address + 16 * k for k in range(3))),
        (c_size_t * 3)(16, 8, 4),
        c_size_t(3),
        c_void_p(),
        c_void_p(),
        c_size_t(1),
        *failed,
        stream,
    )
    driver.sync(stream)
    for k, size in enumerate((16, 8, 4)):
        assert (seen(ends[k])[:size] == seen(source)[16 * k : 16 * k + size]).all()
        assert not seen(ends[k])[size:].any()


@on_fake()
@pytest.mark.parametrize("sync", [False, True])
def test_the_device_is_its_own_peer(driver: Driver, sync: bool) -> None:
    source, to, context = numbered(driver, 16), driver.memory(4), driver.context
    words = (to.address, context, source.address, context, c_size_t(16))
    if sync:
        driver.call("cuMemcpyPeer", *words)
    else:
        driver.call("cuMemcpyPeerAsync", *words, c_void_p())
        driver.sync()
    assert (seen(to) == seen(source)).all()


@on_fake()
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_rows_are_filled(driver: Driver, bits: int, sync: bool) -> None:
    kind = {8: c_ubyte, 16: c_ushort, 32: c_uint}[bits]
    to, width = driver.memory(64), bits // 8
    right = np.zeros((4, 64), "u1")
    right[:3, : 5 * width] = 7 if bits == 8 else np.frombuffer(bytes(kind(7)) * 5, "u1")
    words = (to.address, c_size_t(64), kind(7), c_size_t(5), c_size_t(3))
    if sync:
        driver.call(f"cuMemsetD2D{bits}_v2", *words)
    else:
        driver.call(f"cuMemsetD2D{bits}Async", *words, c_void_p())
        driver.sync()
    assert (seen(to).reshape(4, 64) == right).all()
    wrong = (to.address, c_size_t(width), kind(7), c_size_t(5), c_size_t(3))
    assert driver.raw(f"cuMemsetD2D{bits}_v2", *wrong) == INVALID


@on_fake()
def test_shapes_check_what_is_mapped_when_called(driver: Driver) -> None:
    base = driver.reserve(2 * CHUNK)
    driver.map(base, driver.frame(CHUNK), CHUNK)
    other, none = driver.memory(CHUNK // 2), c_void_p()
    row = (base + CHUNK - 8, c_size_t(64), c_uint(1), c_size_t(2), c_size_t(1))
    driver.call("cuMemsetD2D32Async", *row, none)
    over = (base + CHUNK - 8, c_size_t(64), c_uint(1), c_size_t(2), c_size_t(2))
    assert driver.raw("cuMemsetD2D32Async", *over, none) == INVALID
    assert driver.raw("cuMemsetD16Async", base + CHUNK, c_ushort(1), c_size_t(1), none) == INVALID
    copy = Copy2(
        End2(type=ON_DEVICE, device=base + CHUNK - 64, pitch=64),
        End2(type=ON_DEVICE, device=other.address, pitch=64),
        width=64,
        height=1,
    )
    driver.call("cuMemcpy2DAsync_v2", byref(copy), none)
    copy.height = 2
    assert driver.raw("cuMemcpy2DAsync_v2", byref(copy), none) == INVALID
    context = driver.context
    peer = (other.address, context, base + CHUNK, context, c_size_t(4))
    assert driver.raw("cuMemcpyPeerAsync", *peer, none) == INVALID
    driver.sync()
    assert driver.get("lost") == 0

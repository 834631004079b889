# SPDX-License-Identifier: Apache-2.0
"""Virtual memory of the fake: reservations, frames, mappings, and what a touch of them does."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..how_many import examples
from .harness import on_fake
from .steer import (
    MIB,
    NO_ACCESS,
    OF_NODE,
    READ_ONLY,
    READ_WRITE,
    TO_DEVICE,
    Array,
    CudaError,
    Driver,
    FrameProperties,
    wait_until,
)

CHUNK = 2 * MIB
WORDS = CHUNK // 4
POISON = 0xDBDBDBDB
INVALID, OUT_OF_MEMORY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 1, 2, 700, 801
GAUGES = (
    "frames",
    "frame_bytes",
    "host_frame_bytes",
    "mappings",
    "mapped_bytes",
    "reserved_bytes",
)


def gauges(driver: Driver) -> dict[str, int]:
    return {name: driver.get(name) for name in GAUGES}


@on_fake()
def test_two_mappings_of_a_frame_show_the_same_bytes(driver: Driver) -> None:
    base, frame = driver.reserve(2 * CHUNK), driver.frame(CHUNK)
    user, alias = driver.map(base, frame, CHUNK), driver.map(base + CHUNK, frame, CHUNK)
    assert set(alias.words) == {POISON}  # a new frame holds nothing to rely on
    driver.fill(user, 7)
    driver.sync()
    assert set(alias.words) == {7}
    driver.unmap(user.address, CHUNK)
    driver.fill(alias, 8)
    driver.sync()
    assert set(driver.map(base, frame, CHUNK).words) == {8}
    assert driver.get("illegal_touches") == driver.get("unmapped_in_use") == 0


@on_fake()
def test_content_goes_out_and_comes_back_in_another_frame(driver: Driver) -> None:
    base, stream, host = driver.reserve(3 * CHUNK), driver.stream(), driver.pinned(WORDS)
    first, second = driver.frame(CHUNK), driver.frame(CHUNK)
    one = driver.map(base + CHUNK, first, CHUNK)
    two = driver.map(base + 2 * CHUNK, second, CHUNK)
    user = driver.map(base, first, CHUNK)
    driver.fill(user, 5, stream)
    driver.sync(stream)
    driver.unmap(base, CHUNK)
    driver.call("cuMemcpyDtoHAsync_v2", host.address, one.address, c_size_t(CHUNK), stream)
    driver.call("cuMemcpyHtoDAsync_v2", two.address, host.address, c_size_t(CHUNK), stream)
    driver.sync(stream)
    driver.map(base, second, CHUNK)
    total = driver.managed(2)
    driver.launch("reduce", total.address, user.address, user.count)
    driver.sync()
    assert total.words[0] == 5 * WORDS
    assert (driver.get("bytes_dtoh"), driver.get("bytes_htod")) == (CHUNK, CHUNK)


@on_fake()
def test_gauges_follow_what_is_alive(driver: Driver) -> None:
    base = driver.reserve(4 * CHUNK, 8 * CHUNK)
    assert base % (8 * CHUNK) == 0
    small, large = driver.frame(CHUNK), driver.frame(2 * CHUNK)
    host = driver.frame(CHUNK, OF_NODE)
    driver.map(base, small, CHUNK)
    driver.map(base + CHUNK, large, 2 * CHUNK)
    driver.map(base + 3 * CHUNK, large, CHUNK)
    full = dict(zip(GAUGES, (3, 3 * CHUNK, CHUNK, 3, 4 * CHUNK, 4 * CHUNK), strict=True))
    assert gauges(driver) == full
    free, total = c_size_t(), c_size_t()
    driver.call("cuMemGetInfo_v2", byref(free), byref(total))
    assert total.value - free.value == 3 * CHUNK
    for frame in (small, large, host):
        driver.release(frame)
    assert gauges(driver) == {**full, "frames": 2, "host_frame_bytes": 0}  # while they are mapped
    assert driver.raw("cuMemAddressFree", base, 4 * CHUNK) == INVALID
    driver.unmap(base, 4 * CHUNK)
    driver.unreserve(base, 4 * CHUNK)
    assert set(gauges(driver).values()) == {0}
    assert driver.get("peak_frame_bytes") == 3 * CHUNK


@on_fake()
def test_what_the_driver_refuses(driver: Driver) -> None:
    base, frame = driver.reserve(4 * CHUNK), driver.frame(2 * CHUNK)
    driver.map(base, frame, 2 * CHUNK)
    other = driver.frame(CHUNK)
    for wrong in (
        ("cuMemMap", base + CHUNK, CHUNK, 0, other, 0),  # mapped already
        ("cuMemMap", base + 3 * CHUNK, 2 * CHUNK, 0, frame, 0),  # beyond the reservation
        ("cuMemMap", base + 2 * CHUNK, 2 * CHUNK, 0, other, 0),  # beyond the frame
        ("cuMemMap", base + 2 * CHUNK + 4096, CHUNK, 0, other, 0),
        ("cuMemMap", base + 2 * CHUNK, CHUNK, 0, 12345, 0),
        ("cuMemUnmap", base, CHUNK),  # half a mapping
        ("cuMemUnmap", base, 3 * CHUNK),  # more than is mapped
        ("cuMemUnmap", base + 2 * CHUNK, CHUNK),
        ("cuMemRelease", 12345),
        ("cuMemAddressFree", base, CHUNK),
        ("cuMemAddressReserve", byref(c_uint64()), 4096, 0, 0, 0),
        ("cuMemFree_v2", base),
    ):
        assert driver.raw(*wrong) == INVALID, wrong
    size = c_size_t()
    wanted = FrameProperties(1, 0, TO_DEVICE)
    driver.call("cuMemGetAllocationGranularity", byref(size), byref(wanted), c_int(0))
    assert size.value == CHUNK
    with pytest.raises(CudaError, match="cuMemCreate: 1"):
        driver.frame(4096)


@on_fake(memory_bytes=6 * MIB, host_bytes=CHUNK)
def test_frames_end_where_memory_does(driver: Driver) -> None:
    for place, count in ((TO_DEVICE, 3), (OF_NODE, 1)):
        frames = [driver.frame(CHUNK, place) for _ in range(count)]
        with pytest.raises(CudaError, match=f"cuMemCreate: {OUT_OF_MEMORY}"):
            driver.frame(CHUNK, place)
        driver.release(frames[0])
        driver.frame(CHUNK, place)


@on_fake(memory_bytes=4 * MIB)
def test_a_frame_drives_managed_memory_out(driver: Driver) -> None:
    driver.fill(driver.managed(WORDS * 2), 1)
    driver.sync()
    driver.frame(CHUNK)
    assert driver.get("bytes_out_evicted") == CHUNK


@on_fake(host_vmm=0)
def test_a_host_without_frames(driver: Driver) -> None:
    with pytest.raises(CudaError, match=f"cuMemCreate: {NOT_SUPPORTED}"):
        driver.frame(CHUNK, OF_NODE)
    value = c_int()
    for attribute, expected in ((102, 1), (141, 0)):
        driver.call("cuDeviceGetAttribute", byref(value), c_int(attribute), c_int(0))
        assert value.value == expected


@on_fake()
def test_a_frame_of_the_host_is_used_by_a_kernel(driver: Driver) -> None:
    base = driver.reserve(CHUNK)
    array = driver.map(base, driver.frame(CHUNK, OF_NODE), CHUNK)
    driver.fill(array, 3)
    driver.sync()
    assert array.words[WORDS - 1] == 3
    assert driver.get("frame_bytes") == 0


def unmapped_start(driver: Driver) -> tuple[int, Array]:
    """Return a reservation of two chunks, of which the first is mapped."""
    base = driver.reserve(2 * CHUNK)
    return base, driver.map(base, driver.frame(CHUNK), CHUNK)


@on_fake()
def test_a_kernel_beyond_a_mapping_loses_the_context(driver: Driver) -> None:
    base, _ = unmapped_start(driver)
    driver.launch("fill", base, WORDS + 1, 7)
    assert driver.raw("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert driver.get("illegal_touches") == 1
    assert driver.raw("cuMemUnmap", base, CHUNK) == ILLEGAL_ADDRESS  # as every call from now on


@on_fake()
def test_a_kernel_reaches_over_the_border_of_two_mappings(driver: Driver) -> None:
    base, first = unmapped_start(driver)
    second = driver.map(base + CHUNK, driver.frame(CHUNK), CHUNK)
    both = Array(base, 2 * WORDS)
    driver.fill(both, 7)
    driver.call("cuMemsetD32Async", first.at(WORDS - 1), ctypes.c_uint(9), 2, c_void_p())
    driver.sync()
    assert (first.words[WORDS - 2], first.words[WORDS - 1]) == (7, 9)
    assert (second.words[0], second.words[1]) == (9, 7)


@on_fake()
@pytest.mark.parametrize("access", [NO_ACCESS, READ_ONLY])
def test_access_is_a_thing_of_its_own(driver: Driver, access: int) -> None:
    base, array = unmapped_start(driver)
    assert driver.access(base) == READ_WRITE
    assert driver.access(base + CHUNK) == -1
    driver.let(base, CHUNK, access)
    assert driver.access(base) == access
    total = driver.managed(2)
    driver.launch("reduce", total.address, array.address, array.count)
    assert driver.raw("cuCtxSynchronize") == (0 if access else ILLEGAL_ADDRESS)
    if access:  # to read, which is not to write
        driver.fill(array, 1)
        assert driver.raw("cuCtxSynchronize") == ILLEGAL_ADDRESS


@on_fake()
def test_fills_and_copies_check_their_memory_when_called(driver: Driver) -> None:
    base, array = unmapped_start(driver)
    host, none = driver.pinned(WORDS * 2), c_void_p()
    size = c_size_t(2 * CHUNK)
    for wrong in (
        ("cuMemsetD8Async", base + CHUNK, ctypes.c_ubyte(1), c_size_t(4), none),
        ("cuMemsetD32_v2", base, ctypes.c_uint(1), c_size_t(WORDS + 1)),
        ("cuMemcpyHtoDAsync_v2", base, host.address, size, none),
        ("cuMemcpyDtoHAsync_v2", host.address, base, size, none),
        ("cuMemcpyAsync", base + CHUNK, base, c_size_t(4), none),
        ("cuMemcpyDtoH_v2", host.address, base + CHUNK, c_size_t(4)),
    ):
        assert driver.raw(*wrong) == INVALID, wrong
    driver.call("cuMemsetD8_v2", base, ctypes.c_ubyte(1), c_size_t(CHUNK))
    assert array.words[0] == 0x01010101
    assert driver.get("lost") == 0


@on_fake()
def test_a_copy_whose_memory_went_before_its_turn_loses_the_context(driver: Driver) -> None:
    base, _ = unmapped_start(driver)
    stream, host, gate = driver.stream(), driver.pinned(WORDS), driver.pinned(1)
    gate.words[0] = 0
    one = ctypes.c_uint32(1)
    driver.call("cuStreamWaitValue32_v2", stream, gate.address, one, ctypes.c_uint(1))
    driver.call("cuMemcpyDtoHAsync_v2", host.address, base, c_size_t(CHUNK), stream)
    driver.unmap(base, CHUNK)
    assert driver.get("unmapped_in_use") == 0  # it had not begun
    gate.words[0] = 1
    assert driver.raw("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS


@on_fake()
@pytest.mark.parametrize("work", ["kernel", "copy", "fill"])
def test_taking_a_mapping_from_running_work_is_counted(driver: Driver, work: str) -> None:
    base, array = unmapped_start(driver)
    stream = driver.stream()
    kept = driver.map(base + CHUNK, driver.frame(CHUNK), CHUNK)
    driver.delay(f"exec:{work}_end", 300_000_000)
    if work == "kernel":
        driver.fill(array, 1, stream)
    elif work == "fill":
        driver.call("cuMemsetD8Async", base, ctypes.c_ubyte(1), c_size_t(CHUNK), stream)
    else:
        host = driver.pinned(WORDS)
        driver.call("cuMemcpyHtoDAsync_v2", base, host.address, c_size_t(CHUNK), stream)
    wait_until(lambda: array.words[WORDS - 1] != POISON)
    driver.unmap(kept.address, CHUNK)  # which nothing uses
    assert driver.get("unmapped_in_use") == 0
    driver.unmap(base, CHUNK)
    assert driver.get("unmapped_in_use") == 1
    assert driver.raw("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS


@on_fake()
@pytest.mark.parametrize(("alias_writes", "conflicts"), [(False, 0), (True, 1)])
def test_an_alias_used_beside_a_kernel_is_counted(
    driver: Driver, alias_writes: bool, conflicts: int
) -> None:
    base, frame = driver.reserve(2 * CHUNK), driver.frame(CHUNK)
    user, alias = driver.map(base, frame, CHUNK), driver.map(base + CHUNK, frame, CHUNK)
    total, moves, compute = driver.managed(2), driver.stream(), driver.stream()
    total.words[0] = 0
    driver.delay("exec:kernel_end", 300_000_000)
    driver.launch("reduce", total.address, user.address, user.count, stream=compute)
    wait_until(lambda: total.words[0] != 0)
    host = driver.pinned(WORDS)
    way = "cuMemcpyHtoDAsync_v2" if alias_writes else "cuMemcpyDtoHAsync_v2"
    ends = (alias.address, host.address) if alias_writes else (host.address, alias.address)
    driver.call(way, *ends, c_size_t(CHUNK), moves)
    driver.sync()
    assert driver.get("alias_conflicts") == conflicts
    driver.call(way, *ends, c_size_t(CHUNK), moves)
    driver.sync()
    assert driver.get("alias_conflicts") == conflicts  # one after the other is no conflict


@on_fake()
def test_calls_fail_by_plan_and_are_found_by_name(driver: Driver) -> None:
    base, frame = driver.reserve(CHUNK), driver.frame(CHUNK)
    driver.fail("cuMemMap", 1, OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="cuMemMap: 2"):
        driver.map(base, frame, CHUNK)
    assert driver.failed() == "cuMemMap"
    driver.map(base, frame, CHUNK)
    assert driver.calls("cuMemMap") == 2
    found, status = c_void_p(), c_int()
    for name in (
        "AddressReserve",
        "AddressFree",
        "Create",
        "Release",
        "Map",
        "Unmap",
        "SetAccess",
        "GetAllocationGranularity",
    ):
        driver.call(
            "cuGetProcAddress_v2",
            f"cuMem{name}".encode(),
            byref(found),
            c_int(13000),
            0,
            byref(status),
        )
        assert found.value == ctypes.cast(getattr(driver.library, f"cuMem{name}"), c_void_p).value


@on_fake(timeout=600)
def test_any_mix_of_maps_shows_what_a_dictionary_does(driver: Driver) -> None:
    """Frames of one and two chunks in a range of eight; the model keeps each frame's value."""
    slots, sizes = 8, (1, 1, 2, 2)
    frames = [driver.frame(size * CHUNK) for size in sizes]
    step = st.tuples(st.sampled_from("mmmuf"), st.integers(0, slots - 1), st.integers(0, 3))

    @examples(30, deadline=None)
    @given(st.lists(step, max_size=30))
    def check(steps: list[tuple[str, int, int]]) -> None:
        base = driver.reserve(slots * CHUNK)
        mapped: dict[int, int] = {}  # the first slot, the frame
        values: dict[int, int] = {}
        before = driver.get("mappings")
        for value, (what, slot, which) in enumerate(steps):
            size = sizes[which]
            taken = {s + k for s, frame in mapped.items() for k in range(sizes[frame])}
            address = base + slot * CHUNK
            if what == "m":
                fits = slot + size <= slots and not taken & set(range(slot, slot + size))
                result = driver.raw("cuMemMap", address, size * CHUNK, 0, frames[which], 0)
                assert result == (0 if fits else INVALID)
                if fits:
                    driver.let(address, size * CHUNK, READ_WRITE)
                    mapped[slot] = which
            elif what == "u":
                whole = [s for s in mapped if slot <= s and s + sizes[mapped[s]] <= slot + size]
                fits = sum(sizes[mapped[s]] for s in whole) == size
                driver.sync()  # what is being filled must not be unmapped
                assert driver.raw("cuMemUnmap", address, size * CHUNK) == (0 if fits else INVALID)
                if fits:
                    mapped = {s: frame for s, frame in mapped.items() if s not in whole}
            elif slot in mapped:
                length = sizes[mapped[slot]] * WORDS
                driver.fill(Array(address, length), value)
                values[mapped[slot]] = value
        driver.sync()
        for slot, frame in mapped.items():
            words = Array(base + slot * CHUNK, sizes[frame] * WORDS).words
            if frame in values:
                assert words[0] == words[len(words) - 1] == values[frame]
        assert driver.get("mappings") - before == len(mapped)
        for slot, frame in mapped.items():
            driver.unmap(base + slot * CHUNK, sizes[frame] * CHUNK)

    check()

# SPDX-License-Identifier: Apache-2.0
"""Managed memory of the fake: residency, faults, prefetch, discard, eviction, advice."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64

import pytest

from .harness import on_fake
from .steer import (
    ATOMIC,
    DEVICE,
    HOST,
    MIB,
    NOWHERE,
    PAGE,
    READ,
    TO_DEVICE,
    TO_HOST,
    WRITE,
    CudaError,
    Driver,
    Location,
    wait_until,
)

WORDS = PAGE // 4
POISON = 0xDBDBDBDB


@on_fake()
def test_a_kernel_faults_in_the_pages_it_touches_and_no_other(driver: Driver) -> None:
    array = driver.managed(8 * WORDS)
    driver.launch("fill", array.at(WORDS), 2 * WORDS, 7)
    driver.sync()
    assert [driver.where(array.at(i * WORDS)) for i in range(4)] == [
        NOWHERE,
        DEVICE,
        DEVICE,
        NOWHERE,
    ]
    faults = driver.faults()
    assert [fault.address for fault in faults] == [array.at(WORDS), array.at(2 * WORDS)]
    assert {fault.access for fault in faults} == {WRITE}
    assert faults[0].time_ns > 0
    assert driver.get("faults") == 2
    assert driver.get("fault_services") == 1
    assert driver.get("bytes_in_fault") == 0  # nothing was there to be moved
    assert driver.resident(array.address, array.bytes) == 2 * PAGE == driver.get("resident_bytes")
    driver.launch("fill", array.at(WORDS), 2 * WORDS, 8)
    driver.sync()
    assert not driver.faults()
    assert array.words[WORDS] == 8
    assert array.words[0] == 0


@on_fake()
def test_what_the_host_wrote_is_moved_in_and_back(driver: Driver) -> None:
    array, total = driver.managed(4 * WORDS), driver.managed(2)
    driver.host_touch(array.address, array.bytes, WRITE)
    array.words[:] = [3] * array.count
    driver.launch("reduce", total.address, array.address, array.count)
    driver.sync()
    assert driver.get("bytes_in_fault") == array.bytes
    assert [fault.access for fault in driver.faults()] == [READ] * 4 + [WRITE]
    assert total.words[0] == 3 * array.count
    driver.host_touch(array.address, array.bytes)
    assert driver.get("bytes_out_host") == array.bytes
    assert driver.where(array.address) == HOST


@on_fake(page_bytes=4096)
def test_pages_of_4_kib(driver: Driver) -> None:
    array = driver.managed(WORDS)
    driver.launch("fill", array.at(1024), 1025, 1)
    driver.sync()
    assert [fault.address for fault in driver.faults()] == [array.at(1024), array.at(2048)]
    assert driver.resident(array.address, array.bytes) == 8192


@on_fake()
def test_faults_are_served_block_by_block(driver: Driver) -> None:
    array = driver.managed(2 * MIB // 4 * 2)
    driver.fill(array, 1)
    driver.sync()
    assert driver.get("fault_services") == 2
    assert driver.get("faults") == 64


@on_fake(fault_ring=3)
def test_faults_beyond_the_ring_are_counted_as_dropped(driver: Driver) -> None:
    driver.fill(driver.managed(5 * WORDS), 1)
    driver.sync()
    assert len(driver.faults()) == 3
    assert driver.get("faults_dropped") == 2
    assert driver.get("faults") == 5


@on_fake()
def test_prefetch_spares_the_faults(driver: Driver) -> None:
    array, stream = driver.managed(4 * WORDS), driver.stream()
    driver.host_touch(array.address, array.bytes, WRITE)
    driver.prefetch(array, TO_DEVICE, stream)
    driver.sync(stream)
    assert driver.get("bytes_in_prefetch") == array.bytes
    driver.fill(array, 5, stream)
    driver.sync(stream)
    assert driver.get("faults") == 0
    driver.prefetch(array, TO_HOST, stream)
    driver.sync(stream)
    assert driver.get("bytes_out_prefetch") == array.bytes
    assert driver.get("resident_bytes") == 0
    assert array.words[array.count - 1] == 5


@on_fake()
def test_a_batch_of_prefetches_goes_to_several_places(driver: Driver) -> None:
    arrays, stream = [driver.managed(WORDS) for _ in range(3)], driver.stream()
    driver.fill(arrays[2], 1)
    driver.sync()
    places = (Location * 2)(TO_DEVICE, TO_HOST)
    driver.call(
        "cuMemPrefetchBatchAsync",
        (c_uint64 * 3)(*(a.address for a in arrays)),
        (c_size_t * 3)(*(a.bytes for a in arrays)),
        c_size_t(3),
        places,
        (c_size_t * 2)(0, 2),
        c_size_t(2),
        c_uint64(0),
        stream,
    )
    driver.sync(stream)
    assert [driver.where(a.address) for a in arrays] == [DEVICE, DEVICE, HOST]


@on_fake()
def test_discard_poisons_when_it_runs_and_not_before(driver: Driver) -> None:
    array, gate, stream = driver.managed(2 * WORDS), driver.pinned(1), driver.stream()
    driver.fill(array, 1, stream)
    driver.sync(stream)
    driver.call("cuStreamWaitValue32_v2", stream, gate.address, c_uint(1), c_uint(0))
    driver.discard(array, stream=stream)
    assert array.words[0] == 1
    assert driver.where(array.address) == DEVICE
    gate.words[0] = 1
    driver.sync(stream)
    assert set(array.words) == {POISON}
    assert driver.where(array.address) == NOWHERE
    assert driver.discarded(array.address)
    assert driver.get("bytes_discarded") == array.bytes
    assert driver.get("resident_bytes") == 0


@on_fake()
def test_discarded_memory_moves_nothing_and_a_read_of_it_is_noticed(driver: Driver) -> None:
    array, stream, total = driver.managed(WORDS), driver.stream(), driver.managed(2)
    driver.fill(array, 1, stream)
    driver.discard(array, stream=stream)
    driver.launch("reduce", total.address, array.address, array.count, stream=stream)
    driver.sync(stream)
    assert total.words[0] == (POISON * array.count) & 0xFFFFFFFF
    assert driver.get("discarded_reads") == 1
    assert driver.get("bytes_in_fault") == 0
    assert driver.discarded(array.address)
    driver.prefetch(array, TO_HOST, stream)
    driver.sync(stream)
    assert driver.get("bytes_out_prefetch") == 0


@on_fake()
def test_a_write_and_a_prefetch_each_revive(driver: Driver) -> None:
    written, sent, stream = driver.managed(WORDS), driver.managed(WORDS), driver.stream()
    driver.discard(written, sent, stream=stream)
    driver.fill(written, 1, stream)
    driver.prefetch(sent, TO_DEVICE, stream)
    driver.sync(stream)
    assert not driver.discarded(written.address)
    assert not driver.discarded(sent.address)
    assert set(sent.words) == {POISON}  # revived, not restored
    driver.prefetch(sent, TO_HOST, stream)
    driver.sync(stream)
    assert driver.get("bytes_out_prefetch") == PAGE  # it counts again
    assert driver.get("bytes_in_prefetch") == 0


@on_fake(poison=0x11)
def test_a_part_of_a_page_is_poisoned_but_stays(driver: Driver) -> None:
    array, stream = driver.managed(WORDS), driver.stream()
    driver.fill(array, 1, stream)
    driver.call(
        "cuMemDiscardBatchAsync",
        (c_uint64 * 1)(array.at(8)),
        (c_size_t * 1)(16),
        c_size_t(1),
        c_uint64(0),
        stream,
    )
    driver.sync(stream)
    assert list(array.words[7:13]) == [1, *[0x11111111] * 4, 1]
    assert driver.where(array.address) == DEVICE
    assert not driver.discarded(array.address)


@on_fake()
def test_discard_and_prefetch_in_one(driver: Driver) -> None:
    array, stream = driver.managed(WORDS), driver.stream()
    driver.host_touch(array.address, array.bytes, WRITE)
    driver.call(
        "cuMemDiscardAndPrefetchBatchAsync",
        (c_uint64 * 1)(array.address),
        (c_size_t * 1)(array.bytes),
        c_size_t(1),
        (Location * 1)(TO_DEVICE),
        (c_size_t * 1)(0),
        c_size_t(1),
        c_uint64(0),
        stream,
    )
    driver.sync(stream)
    assert driver.where(array.address) == DEVICE
    assert not driver.discarded(array.address)
    assert driver.get("bytes_in_prefetch") == 0
    assert array.words[0] == POISON


@on_fake()
@pytest.mark.parametrize("stream", [0, 1])
def test_batches_refuse_the_legacy_stream(driver: Driver, stream: int) -> None:
    array = driver.managed(WORDS)
    with pytest.raises(CudaError, match=r"cuMemDiscardBatchAsync: 1$"):
        driver.discard(array, stream=ctypes.c_void_p(stream))


@on_fake(memory_bytes=4 * MIB)
def test_a_full_card_evicts_the_block_moved_least_recently(driver: Driver) -> None:
    first, second, third = (driver.managed(2 * MIB // 4) for _ in range(3))
    for array in (first, second):
        driver.fill(array, 1)
    driver.sync()
    driver.prefetch(first)  # it is there already: only its age changes
    driver.fill(third, 3)
    driver.sync()
    assert [driver.resident(a.address, a.bytes) for a in (first, second, third)] == [
        2 * MIB,
        0,
        2 * MIB,
    ]
    assert driver.get("bytes_out_evicted") == 2 * MIB
    assert driver.get("peak_resident_bytes") == 4 * MIB
    assert second.words[0] == 1


@on_fake(memory_bytes=4 * MIB, other_bytes=MIB)
def test_memory_is_counted_and_runs_out(driver: Driver) -> None:
    free, total = c_size_t(), c_size_t()

    def look() -> tuple[int, int]:
        driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    assert look() == (3 * MIB, 4 * MIB)
    device, managed = driver.memory(MIB // 4), driver.managed(MIB // 4)
    assert look() == (2 * MIB, 4 * MIB)
    driver.fill(managed, 1)
    driver.sync()
    assert look() == (MIB, 4 * MIB)
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2: 2$"):
        driver.memory(2 * MIB // 4 + 1)
    assert driver.get("resident_bytes") == 0  # it tried
    driver.memory(2 * MIB // 4)
    driver.fill(managed, 2)  # no room: over the bus
    driver.sync()
    assert driver.get("resident_bytes") == 0
    assert driver.get("remote_pages") == MIB // PAGE
    assert managed.words[0] == 2
    driver.free(device)
    driver.free(managed)
    assert driver.get("device_bytes") == 2 * MIB
    assert driver.get("managed_bytes") == 0
    assert driver.get("allocations") == 1


@on_fake(host_bytes=MIB)
def test_host_memory_runs_out(driver: Driver) -> None:
    driver.managed(MIB // 8)
    driver.pinned(MIB // 8)
    for allocate in (driver.managed, driver.pinned):
        with pytest.raises(CudaError, match=r": 2$"):
            allocate(1)


@on_fake()
def test_advice_lets_the_device_read_over_the_bus(driver: Driver) -> None:
    array, total = driver.managed(WORDS), driver.managed(2)
    driver.host_touch(array.address, array.bytes, WRITE)
    driver.fill(total, 0)
    driver.sync()
    driver.reset()
    size = c_size_t(array.bytes)
    driver.call("cuMemAdvise_v2", array.address, size, c_int(3), TO_HOST)
    driver.call("cuMemAdvise_v2", array.address, size, c_int(5), TO_DEVICE)
    driver.launch("reduce", total.address, array.address, array.count)
    driver.sync()
    assert driver.get("faults") == 0
    assert driver.get("remote_pages") == 1
    assert driver.where(array.address) == HOST
    driver.call("cuMemAdvise_v2", array.address, size, c_int(6), TO_DEVICE)
    driver.launch("reduce", total.address, array.address, array.count)
    driver.sync()
    assert driver.get("faults") == 1


def attribute(driver: Driver, which: int, address: int, size: int) -> int:
    value = c_int()
    driver.call("cuMemRangeGetAttribute", byref(value), c_size_t(4), c_int(which), address, size)
    return value.value


@on_fake()
def test_range_attributes_are_what_all_pages_agree_on(driver: Driver) -> None:
    array, half = driver.managed(2 * WORDS), PAGE
    size = c_size_t(half)
    driver.call("cuMemAdvise_v2", array.address, size, c_int(1), TO_DEVICE)
    driver.call("cuMemAdvise_v2", array.address, size, c_int(3), TO_DEVICE)
    driver.call("cuMemPrefetchAsync_v2", array.address, size, TO_HOST, c_uint(0), driver.stream())
    driver.sync()
    assert [attribute(driver, which, array.address, half) for which in (1, 2, 3, 4)] == [
        1,
        0,
        -2,
        -1,
    ]
    assert [attribute(driver, which, array.address, half) for which in (5, 6, 7, 8)] == [
        1,
        0,
        2,
        -1,
    ]
    assert [attribute(driver, w, array.address, array.bytes) for w in (1, 2, 3, 4)] == [
        0,
        -2,
        -2,
        -2,
    ]


@on_fake(concurrent_managed=0)
def test_without_concurrent_access_nothing_can_be_prefetched(driver: Driver) -> None:
    value = c_int()
    driver.call("cuDeviceGetAttribute", byref(value), c_int(89), c_int(0))
    assert value.value == 0
    array, stream = driver.managed(WORDS), driver.stream()
    for refused in (lambda: driver.prefetch(array), lambda: driver.discard(array, stream=stream)):
        with pytest.raises(CudaError, match=r": 101$"):
            refused()


@on_fake()
def test_ranges_must_be_managed_memory(driver: Driver) -> None:
    array, device = driver.managed(WORDS), driver.memory(WORDS)
    for address, size in (
        (device.address, 4),
        (array.address, 2 * PAGE),
        (array.address - 1, 2),
        (array.address, 0),
    ):
        code = driver.raw(
            "cuMemPrefetchAsync_v2", address, c_size_t(size), TO_DEVICE, c_uint(0), driver.stream()
        )
        assert code == 1, (address, size)


@on_fake()
def test_pointers_say_what_they_are(driver: Driver) -> None:
    managed, device, pinned = driver.managed(8), driver.memory(8), driver.pinned(8)
    here = ctypes.create_string_buffer(64)

    def ask(which: int, address: int, kind: type) -> int:
        value = kind()
        driver.call("cuPointerGetAttribute", byref(value), c_int(which), address)
        return value.value

    assert [ask(8, a.at(1), ctypes.c_bool) for a in (managed, device, pinned)] == [
        True,
        False,
        False,
    ]
    assert [ask(2, a.at(1), c_uint) for a in (managed, device, pinned)] == [2, 2, 1]
    assert ask(11, managed.at(3), c_uint64) == managed.address
    assert ask(12, managed.at(3), c_size_t) == 32
    assert (
        driver.raw("cuPointerGetAttribute", byref(c_uint()), c_int(2), ctypes.addressof(here)) == 1
    )
    kind, flag = c_uint(9), ctypes.c_bool(True)
    driver.call(
        "cuPointerGetAttributes",
        c_uint(2),
        (c_int * 2)(2, 8),
        (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(flag)),
        ctypes.addressof(here),
    )
    assert (kind.value, flag.value) == (0, False)


@on_fake()
def test_a_kernel_outside_memory_loses_the_context(driver: Driver) -> None:
    array = driver.managed(8)
    driver.launch("fill", array.address, 9, 1)
    wait_until(lambda: driver.get("lost") == 700)
    for again in (driver.sync, lambda: driver.managed(8)):
        with pytest.raises(CudaError, match=r": 700$"):
            again()
    assert set(array.words) == {0}


@on_fake()
def test_copies_and_fills_touch_what_they_name(driver: Driver) -> None:
    array, stream = driver.managed(2 * WORDS), driver.stream()
    driver.call("cuMemsetD32Async", array.address, c_uint(9), c_size_t(WORDS), stream)
    driver.call("cuMemcpyDtoDAsync_v2", array.at(WORDS), array.address, c_size_t(PAGE), stream)
    driver.call("cuMemsetD8Async", array.address, ctypes.c_ubyte(1), c_size_t(5), stream)
    driver.sync(stream)
    assert array.words[0] == 0x01010101
    assert array.words[1] == 1
    assert array.words[WORDS] == 9
    assert driver.get("bytes_dtod") == PAGE
    assert driver.get("faults") == 2
    source = (ctypes.c_uint32 * 4)(1, 2, 3, 4)
    driver.call("cuMemcpyHtoDAsync_v2", array.address, source, c_size_t(16), stream)
    source[0] = 77  # pageable memory was read by the call
    back = (ctypes.c_uint32 * 4)()
    driver.call("cuMemcpyDtoHAsync_v2", back, array.address, c_size_t(16), stream)
    assert list(back) == [1, 2, 3, 4]  # and is written before it returns
    assert driver.get("bytes_htod") == driver.get("bytes_dtoh") == 16
    assert (
        driver.raw("cuMemsetD8Async", ctypes.addressof(back), c_uint(0), c_size_t(1), stream) == 1
    )


@on_fake()
def test_an_access_that_is_atomic_revives_too(driver: Driver) -> None:
    array, stream = driver.managed(WORDS), driver.stream()
    driver.discard(array, stream=stream)
    driver.sync(stream)
    assert driver.library.fake_touch(c_uint64(array.address), c_uint64(4), ATOMIC)
    assert [fault.access for fault in driver.faults()] == [ATOMIC]
    assert not driver.discarded(array.address)

# SPDX-License-Identifier: Apache-2.0
"""The fake CUPTI: callbacks around driver calls, unified-memory records."""

import ctypes
import os
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_void_p
from ctypes import c_uint64 as u64

import pytest

from .harness import on_fake
from .steer import PAGE, TO_DEVICE, WRITE, Driver

LAUNCH, LAUNCH_EX, GRAPH, PREFETCH, MEMSET32, BEGIN, END = 307, 652, 514, 716, 220, 539, 497


class CallbackData(Structure):
    _fields_ = (
        ("site", c_uint32),
        ("function", c_char_p),
        ("params", c_void_p),
        ("result", POINTER(c_int)),
        ("symbol", c_char_p),
        ("context", c_void_p),
        ("context_uid", c_uint32),
        ("correlation_data", POINTER(u64)),
        ("correlation_id", c_uint32),
    )


class LaunchParams(Structure):
    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("params", POINTER(c_void_p)),
        ("extra", c_void_p),
    )


class Record(Structure):
    _pack_ = 1
    _fields_ = (
        ("kind", c_uint32),
        ("counter", c_uint32),
        ("value", u64),
        ("start", u64),
        ("end", u64),
        ("address", u64),
        *((name, c_uint32) for name in ("source", "to", "stream", "process", "flags", "pad")),
        ("processors", u64 * 5),
    )


CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_uint32, POINTER(CallbackData))
REQUEST = ctypes.CFUNCTYPE(None, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_size_t))
COMPLETE = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_size_t, c_size_t)


KEPT: list = []  # a callback must outlive its subscription, which nothing here ends


class Cupti:
    def __init__(self, callback: ctypes._CFuncPtr | None = None) -> None:
        self.library = ctypes.CDLL(os.environ["DEEPUM_CUPTI"])
        self.subscriber = c_void_p()
        KEPT.append(callback)
        if callback:
            assert self.library.cuptiSubscribe(byref(self.subscriber), callback, c_void_p(77)) == 0

    def enable(self, *cbids: int, on: int = 1) -> None:
        for cbid in cbids:
            assert self.library.cuptiEnableCallback(c_uint(on), self.subscriber, 1, cbid) == 0


def recorder(seen: list) -> ctypes._CFuncPtr:
    @CALLBACK
    def callback(user: int, domain: int, cbid: int, data: object) -> None:
        one = data.contents
        seen.append((user, domain, cbid, one.site, one.function, one.result[0], one.correlation_id))

    return callback


def test_the_layouts_are_the_ones_of_cupti() -> None:
    assert ctypes.sizeof(CallbackData) == 72
    assert ctypes.sizeof(LaunchParams) == 64
    assert ctypes.sizeof(Record) == 104


@on_fake()
def test_enabled_functions_are_seen_on_their_way_in_and_out(driver: Driver) -> None:
    seen: list = []
    cupti = Cupti(recorder(seen))
    cupti.enable(LAUNCH, GRAPH, PREFETCH, MEMSET32, BEGIN, END)
    stream, array, graph, exe = driver.stream(), driver.managed(4), c_void_p(), c_void_p()
    driver.fill(array, 1, stream)
    driver.prefetch(array, TO_DEVICE, stream)
    driver.call("cuStreamBeginCapture_v2", stream, c_int(0))
    driver.call("cuMemsetD32Async", array.address, c_uint(1), c_size_t(1), stream)
    driver.call("cuStreamEndCapture", stream, byref(graph))
    driver.call("cuGraphInstantiateWithFlags", byref(exe), graph, u64(0))
    driver.call("cuGraphLaunch", exe, stream)
    driver.launch("nothing", 1, form="ex")  # not enabled
    driver.sync()
    assert [cbid for _, _, cbid, site, *_ in seen if site == 0] == [
        LAUNCH, PREFETCH, BEGIN, MEMSET32, END, GRAPH,
    ]  # fmt: skip
    assert [one[3] for one in seen] == [0, 1] * 6
    assert {(user, domain) for user, domain, *_ in seen} == {(77, 1)}
    assert seen[0][4] == b"cuLaunchKernel"
    assert seen[2][4] == b"cuMemPrefetchAsync_v2"
    assert len({one[6] for one in seen}) == 6
    assert seen[0][6] == seen[1][6]
    cupti.enable(LAUNCH, on=0)
    driver.fill(array, 1, stream)
    assert cupti.library.cuptiUnsubscribe(cupti.subscriber) == 0
    driver.prefetch(array, TO_DEVICE, stream)
    assert len(seen) == 12


@on_fake()
def test_a_callback_sees_the_arguments_of_a_launch(driver: Driver) -> None:
    seen: list = []

    @CALLBACK
    def callback(_user: int, _domain: int, _cbid: int, data: object) -> None:
        one = data.contents
        launch = ctypes.cast(one.params, POINTER(LaunchParams)).contents
        to = ctypes.cast(launch.params[0], POINTER(u64))[0]
        if one.site == 0:
            one.correlation_data[0] = 5
        seen.append((one.symbol, tuple(launch.grid), launch.block[0], launch.stream, to))
        seen.append((one.correlation_data[0], one.context, launch.function))

    Cupti(callback).enable(LAUNCH)
    stream, array, function = driver.stream(), driver.managed(4), driver.function("fill")
    driver.launch("fill", array.address, 4, 1, stream=stream, grid=(2, 3, 4), block=(64, 1, 1))
    assert (
        seen
        == [
            (b"fill", (2, 3, 4), 64, stream.value, array.address),
            (5, driver.context.value, function.value),
        ]
        * 2
    )


@on_fake()
def test_a_callback_may_call_the_driver_and_change_what_happens_first(driver: Driver) -> None:
    """A callback at the entry of a launch closes a gate before it."""
    gate, stream, array, depth = driver.pinned(1), driver.stream(), driver.managed(4), []

    @CALLBACK
    def callback(_user: int, _domain: int, _cbid: int, data: object) -> None:
        if data.contents.site == 0:
            depth.append(
                driver.raw("cuStreamWaitValue32_v2", stream, gate.address, c_uint(1), c_uint(0))
            )

    Cupti(callback).enable(LAUNCH)
    driver.fill(array, 1, stream)
    assert depth == [0]
    assert driver.raw("cuStreamQuery", stream) == 600
    assert array.words[0] == 0
    gate.words[0] = 1
    driver.sync(stream)
    assert array.words[0] == 1


@on_fake()
def test_a_failed_call_is_seen_with_its_result(driver: Driver) -> None:
    seen: list = []
    Cupti(recorder(seen)).enable(LAUNCH)
    driver.fail("cuLaunchKernel", 1, 719)
    with pytest.raises(Exception, match="719"):
        driver.fill(driver.managed(4), 1)
    assert [(site, result) for _, _, _, site, _, result, _ in seen] == [(0, 0), (1, 719)]


@on_fake()
def test_callbacks_come_from_every_thread(driver: Driver) -> None:
    threads_seen = set()

    @CALLBACK
    def callback(*_: object) -> None:
        threads_seen.add(threading.get_ident())

    cupti = Cupti(callback)
    assert cupti.library.cuptiEnableDomain(c_uint(1), cupti.subscriber, 1) == 0

    both = threading.Barrier(2)

    def work() -> None:
        driver.enter()
        driver.launch("nothing", 1)
        both.wait()  # so that the two are there at once, with names of their own

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(threads_seen) == 2


@on_fake()
def test_there_is_one_subscriber(driver: Driver) -> None:
    callback = CALLBACK(lambda *_: None)
    first, second = Cupti(callback), c_void_p()
    subscribe = first.library.cuptiSubscribe
    assert subscribe(byref(second), callback, c_void_p()) == 39
    assert first.library.cuptiEnableCallback(c_uint(1), c_void_p(1), 1, LAUNCH) == 1
    assert first.library.cuptiUnsubscribe(first.subscriber) == 0
    assert first.library.cuptiUnsubscribe(first.subscriber) == 1
    assert subscribe(byref(second), callback, c_void_p()) == 0
    assert first.library.cuptiUnsubscribe(second) == 0
    driver.set("cupti_refuse", 39)
    assert subscribe(byref(second), callback, c_void_p()) == 39
    version = c_uint32()
    assert first.library.cuptiGetVersion(byref(version)) == 0
    assert version.value == 130000


@on_fake()
def test_unified_memory_records_come_in_buffers_at_a_flush(driver: Driver) -> None:
    library = Cupti().library
    storage = (ctypes.c_uint8 * 220)()  # two records
    got: list = []

    @REQUEST
    def request(buffer: object, size: object, most: object) -> None:
        buffer[0], size[0], most[0] = ctypes.addressof(storage), len(storage), 0

    @COMPLETE
    def complete(_context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        batch, record = [], c_void_p()
        while not library.cuptiActivityGetNextRecord(
            c_void_p(buffer), c_size_t(valid), byref(record)
        ):
            one = Record.from_address(record.value)
            batch.append((one.kind, one.counter, one.value, one.address, one.flags))
            assert 0 < one.start <= one.end
            assert one.process == os.getpid()
        got.append(batch)

    config = (c_uint32 * 8)(1, 4, 0, 1, 1, 1, 0, 1)  # GPU faults, bytes in
    assert library.cuptiActivityRegisterCallbacks(request, complete) == 0
    assert library.cuptiActivityConfigureUnifiedMemoryCounter(config, c_uint(2)) == 0
    assert library.cuptiActivityEnable(c_uint(10)) == 21
    assert library.cuptiActivityEnable(c_uint(25)) == 0
    array = driver.managed(3 * PAGE // 4)
    driver.host_touch(array.address, array.bytes, WRITE)
    driver.fill(array, 1)
    driver.prefetch(other := driver.managed(4), TO_DEVICE)  # nothing to move
    driver.fill(other, 1)
    driver.launch("fill", (last := driver.managed(4)).address, 4, 1)
    driver.sync()
    assert not got
    assert library.cuptiActivityFlushAll(c_uint(0)) == 0
    assert got == [
        [(25, 4, 3, array.address, WRITE), (25, 1, array.bytes, array.address, 2)],
        [(25, 4, 1, last.address, WRITE)],
    ]
    assert library.cuptiActivityDisable(c_uint(25)) == 0
    driver.fill(driver.managed(4), 1)
    driver.sync()
    assert library.cuptiActivityFlushAll(c_uint(0)) == 0
    assert len(got) == 2

# SPDX-License-Identifier: Apache-2.0
"""Streams, events, gates, host functions and captures of the fake."""

import ctypes
import threading
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

import pytest

from .harness import on_fake
from .steer import HOST_FUNCTION, PAGE, CudaError, Driver, wait_until

SUCCESS, NOT_READY = 0, 600


def close_gate(driver: Driver, stream: c_void_p, gate: int, value: int = 1) -> None:
    driver.call("cuStreamWaitValue32_v2", stream, gate, c_uint(value), c_uint(0))


@on_fake()
def test_a_stream_is_first_in_first_out_and_streams_are_apart(driver: Driver) -> None:
    gate, one, two = driver.pinned(1), driver.stream(), driver.stream()
    a, b = driver.managed(4), driver.managed(4)
    close_gate(driver, one, gate.address)
    for value in (1, 2, 3):
        driver.fill(a, value, one)
    driver.fill(b, 9, two)
    driver.sync(two)
    assert (a.words[0], b.words[0]) == (0, 9)
    assert driver.raw("cuStreamQuery", one) == NOT_READY
    assert driver.raw("cuStreamQuery", two) == SUCCESS
    gate.words[0] = 1
    driver.sync(one)
    assert a.words[0] == 3
    assert driver.raw("cuStreamQuery", one) == SUCCESS


@on_fake()
def test_the_legacy_stream_takes_turns_with_blocking_streams_only(driver: Driver) -> None:
    gate, blocking, free = driver.pinned(1), driver.stream(0), driver.stream()
    a, b, c = driver.managed(4), driver.managed(4), driver.managed(4)
    close_gate(driver, blocking, gate.address)
    driver.fill(a, 1, blocking)
    driver.launch("copy", b.address, a.address, 4)  # legacy: behind `blocking`
    driver.launch("copy", c.address, b.address, 4, stream=blocking)  # and this behind legacy
    driver.fill(driver.managed(4), 1, free)
    driver.sync(free)
    assert (a.words[0], b.words[0], c.words[0]) == (0, 0, 0)
    gate.words[0] = 1
    driver.sync()
    assert (a.words[0], b.words[0], c.words[0]) == (1, 1, 1)


@on_fake()
def test_events_order_streams_and_tell_what_is_done(driver: Driver) -> None:
    gate, one, two = driver.pinned(1), driver.stream(), driver.stream()
    a, b, event = driver.managed(4), driver.managed(4), driver.event()
    assert driver.raw("cuEventQuery", event) == SUCCESS  # never recorded
    close_gate(driver, one, gate.address)
    driver.fill(a, 5, one)
    driver.call("cuEventRecord", event, one)
    driver.call("cuStreamWaitEvent", two, event, c_uint(0))
    driver.launch("copy", b.address, a.address, 4, stream=two)
    assert driver.raw("cuEventQuery", event) == NOT_READY
    gate.words[0] = 1
    driver.call("cuEventSynchronize", event)
    assert driver.raw("cuEventQuery", event) == SUCCESS
    driver.sync(two)
    assert b.words[0] == 5


@on_fake()
def test_a_wait_is_for_the_record_before_it(driver: Driver) -> None:
    gate, one, two, event = driver.pinned(1), driver.stream(), driver.stream(), driver.event()
    driver.call("cuEventRecord", event, one)
    driver.call("cuStreamWaitEvent", two, event, c_uint(0))
    close_gate(driver, one, gate.address)
    driver.call("cuEventRecord", event, one)  # a later record holds nobody up
    driver.sync(two)
    gate.words[0] = 1
    driver.sync(one)


@on_fake()
def test_events_measure_time(driver: Driver) -> None:
    stream, first, second = driver.stream(), driver.event(0), driver.event(0)
    driver.delay("exec:kernel", 2_000_000)
    driver.call("cuEventRecord", first, stream)
    driver.launch("nothing", 1, stream=stream)
    driver.call("cuEventRecord", second, stream)
    driver.sync(stream)
    ms = c_float()
    driver.call("cuEventElapsedTime", byref(ms), first, second)
    assert ms.value >= 2
    assert driver.raw("cuEventElapsedTime", byref(ms), first, driver.event()) == 400


@on_fake()
def test_gates_open_by_value_from_another_stream(driver: Driver) -> None:
    gate, one, two = driver.pinned(2), driver.stream(), driver.stream()
    array = driver.managed(4)
    close_gate(driver, one, gate.at(1), 5)
    driver.fill(array, 1, one)
    for value, done in ((4, False), (6, True)):  # at least 5
        driver.call("cuStreamWriteValue32_v2", two, gate.at(1), c_uint(value), c_uint(0))
        driver.sync(two)
        if done:
            driver.sync(one)
        assert array.words[0] == int(done)
    assert driver.raw("cuStreamWaitValue32_v2", one, gate.address + 2, c_uint(1), c_uint(0)) == 1


@on_fake(queue_entries=4, queue_holds_lock=0)
def test_a_full_queue_holds_its_submitter(driver: Driver) -> None:
    gate, stream, other = driver.pinned(1), driver.stream(), driver.stream()
    array = driver.managed(4)
    close_gate(driver, stream, gate.address)
    sent = []

    def submit() -> None:
        driver.enter()
        for i in range(6):
            driver.fill(array, i, stream)
            sent.append(i)

    thread = threading.Thread(target=submit)
    thread.start()
    wait_until(lambda: driver.get("queue_waits") == 1)
    assert sent == [0, 1, 2]  # the gate is the fourth
    driver.fill(driver.managed(4), 1, other)  # other streams have room
    driver.sync(other)
    gate.words[0] = 1
    thread.join()
    driver.sync(stream)
    assert array.words[0] == 5


@on_fake(queue_entries=2)
def test_a_full_queue_keeps_the_drivers_lock(driver: Driver) -> None:
    gate, stream, other = driver.pinned(1), driver.stream(), driver.stream()
    array = driver.managed(4)
    close_gate(driver, stream, gate.address)

    def submit() -> None:
        driver.enter()
        for i in range(3):
            driver.fill(array, i, stream)

    def submit_elsewhere() -> None:
        driver.enter()
        driver.fill(driver.managed(4), 1, other)
        done.set()

    done = threading.Event()
    threads = [threading.Thread(target=submit)]
    threads[0].start()
    wait_until(lambda: driver.get("queue_waits") == 1)
    threads.append(threading.Thread(target=submit_elsewhere))
    threads[1].start()
    wait_until(lambda: driver.calls("cuLaunchKernel") == 3)
    assert not done.wait(0.05)
    gate.words[0] = 1
    for thread in threads:
        thread.join()
    driver.sync()


@on_fake()
def test_the_queue_takes_1020_entries(driver: Driver) -> None:
    gate, stream = driver.pinned(1), driver.stream()
    close_gate(driver, stream, gate.address)
    function, value = driver.function("nothing"), c_uint(1)
    params = (c_void_p * 1)(ctypes.addressof(value))
    shape = [c_uint(1)] * 6
    for _ in range(1019):
        driver.call("cuLaunchKernel", function, *shape, c_uint(0), stream, params, c_void_p())
    assert driver.get("queue_waits") == 0
    gate.words[0] = 1
    driver.sync(stream)
    assert driver.get("kernels") == 1019


@on_fake(lazy_loading=1)
@pytest.mark.parametrize("load_first", [False, True])
def test_lazy_loading_waits_for_the_device(driver: Driver, load_first: bool) -> None:
    gate, one, two = driver.pinned(1), driver.stream(), driver.stream()
    function, value = driver.function("nothing"), c_uint(1)
    if load_first:
        driver.call("cuFuncLoad", function)
    state = c_int(9)
    driver.call("cuFuncIsLoaded", byref(state), function)
    assert state.value == int(load_first)
    close_gate(driver, one, gate.address)
    launched = threading.Event()

    def launch() -> None:
        driver.enter()
        driver.launch("nothing", value.value, stream=two)
        launched.set()

    thread = threading.Thread(target=launch)
    thread.start()
    if load_first:
        assert launched.wait(60)
    else:
        wait_until(lambda: driver.calls("cuLaunchKernel") == 1)
        assert not launched.wait(0.05)
    gate.words[0] = 1
    thread.join()
    driver.sync()


@on_fake()
def test_freeing_waits_for_the_device(driver: Driver) -> None:
    gate, stream, array = driver.pinned(1), driver.stream(), driver.managed(4)
    close_gate(driver, stream, gate.address)
    driver.fill(array, 1, stream)
    freed = threading.Event()

    def free() -> None:
        driver.enter()
        driver.free(array)
        freed.set()

    thread = threading.Thread(target=free)
    thread.start()
    wait_until(lambda: driver.calls("cuMemFree") == 1)
    assert not freed.wait(0.05)
    gate.words[0] = 1
    thread.join()
    driver.sync()
    assert driver.get("lost") == 0


@on_fake()
def test_host_functions_run_in_order_and_may_not_call_the_driver(driver: Driver) -> None:
    stream, array, seen = driver.stream(), driver.managed(4), []

    @HOST_FUNCTION
    def note(_data: int) -> None:
        seen.append((array.words[0], driver.raw("cuStreamQuery", stream)))

    driver.fill(array, 3, stream)
    driver.call("cuLaunchHostFunc", stream, note, c_void_p())
    driver.fill(array, 4, stream)
    driver.sync(stream)
    assert seen == [(3, 800)]
    assert driver.get("host_functions") == 1


@on_fake()
def test_a_destroyed_stream_still_does_its_work(driver: Driver) -> None:
    stream, array, event = driver.stream(), driver.managed(4), driver.event()
    driver.delay("exec:kernel", 1_000_000)
    driver.fill(array, 1, stream)
    driver.call("cuEventRecord", event, stream)
    driver.call("cuStreamDestroy_v2", stream)
    driver.call("cuEventSynchronize", event)
    assert array.words[0] == 1
    assert driver.raw("cuStreamQuery", stream) == 400
    driver.call("cuEventDestroy_v2", event)
    assert driver.raw("cuEventQuery", event) == 400
    assert driver.get("streams") == driver.get("events") == 0


# Captures -----------------------------------------------------------------------------------------


def capture(driver: Driver, stream: c_void_p, mode: int = 0) -> None:
    driver.call("cuStreamBeginCapture_v2", stream, c_int(mode))


def finish(driver: Driver, stream: c_void_p) -> c_void_p:
    graph, launchable = c_void_p(), c_void_p()
    driver.call("cuStreamEndCapture", stream, byref(graph))
    driver.call("cuGraphInstantiateWithFlags", byref(launchable), graph, c_uint64(0))
    driver.call("cuGraphDestroy", graph)
    return launchable


@on_fake()
def test_a_capture_records_and_its_graph_runs_each_time(driver: Driver) -> None:
    stream, x, y = driver.stream(), driver.managed(4), driver.managed(4)
    driver.fill(x, 2, stream)
    driver.sync(stream)
    status = c_int(9)
    capture(driver, stream)
    driver.call("cuStreamIsCapturing", stream, byref(status))
    assert status.value == 1
    driver.launch("axpy", y.address, x.address, 4, 10, stream=stream)
    driver.call("cuMemsetD32Async", x.address, c_uint(1), c_size_t(1), stream)
    graph = finish(driver, stream)
    driver.call("cuStreamIsCapturing", stream, byref(status))
    assert status.value == 0
    assert y.words[0] == 0
    for _ in range(3):
        driver.call("cuGraphLaunch", graph, stream)
    driver.sync(stream)
    assert list(y.words) == [20 + 10 + 10, 60, 60, 60]
    assert driver.get("graphs") == 3
    assert driver.get("kernels") == 4
    driver.call("cuGraphExecDestroy", graph)
    assert driver.raw("cuGraphLaunch", graph, stream) == 400


@on_fake()
def test_a_capture_spreads_through_events(driver: Driver) -> None:
    one, two = driver.stream(), driver.stream()
    fork, join, array = driver.event(), driver.event(), driver.managed(4)
    capture(driver, one)
    driver.call("cuEventRecord", fork, one)
    driver.call("cuStreamWaitEvent", two, fork, c_uint(0))
    driver.fill(array, 1, two)
    driver.call("cuEventRecord", join, two)
    driver.call("cuStreamWaitEvent", one, join, c_uint(0))
    graph = c_void_p()
    assert driver.raw("cuStreamEndCapture", two, byref(graph)) == 903
    launchable = finish(driver, one)
    driver.fill(driver.managed(4), 1, two)  # no longer captured
    driver.sync(two)
    assert driver.get("kernels") == 1
    driver.call("cuGraphLaunch", launchable, one)
    driver.sync(one)
    assert array.words[0] == 1


@on_fake()
@pytest.mark.parametrize(
    ("function", "mode", "refused"),
    [
        ("cuMemAllocManaged", 0, True),
        ("cuStreamSynchronize", 0, True),
        ("cuEventQuery", 0, True),
        ("cuMemAllocManaged", 1, False),  # thread-local: another thread may
        ("cuMemAllocManaged", 2, False),
    ],
)
def test_waiting_calls_of_another_thread_spoil_a_global_capture(
    driver: Driver, function: str, mode: int, refused: bool
) -> None:
    stream, other, event, codes = driver.stream(), driver.stream(), driver.event(), []
    capture(driver, stream, mode)
    args = {
        "cuMemAllocManaged": (byref(c_uint64()), c_size_t(PAGE), c_uint(1)),
        "cuStreamSynchronize": (other,),
        "cuEventQuery": (event,),
    }[function]

    def ask() -> None:
        driver.enter()
        codes.append(driver.raw(function, *args))
        relaxed = c_int(2)
        driver.call("cuThreadExchangeStreamCaptureMode", byref(relaxed))
        assert relaxed.value == 0
        codes.append(driver.raw(function, *args))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert codes == [900 if refused else 0, 0]
    assert driver.raw("cuStreamEndCapture", stream, byref(c_void_p())) == (901 if refused else 0)


@on_fake()
def test_what_cannot_be_captured(driver: Driver) -> None:
    blocking, event, outside = driver.stream(0), driver.event(), driver.stream()
    array = driver.managed(4)
    assert driver.raw("cuStreamBeginCapture_v2", c_void_p(), c_int(0)) == 900
    driver.call("cuEventRecord", event, outside)
    capture(driver, blocking)
    assert driver.raw("cuStreamBeginCapture_v2", blocking, c_int(0)) == 401
    with pytest.raises(CudaError, match="900"):
        driver.prefetch(array, stream=blocking)
    with pytest.raises(CudaError, match="906"):
        driver.fill(array, 1)  # the legacy stream would have to wait for it
    assert driver.raw("cuStreamEndCapture", blocking, byref(c_void_p())) == 901
    capture(driver, blocking)
    assert driver.raw("cuStreamWaitEvent", blocking, event, c_uint(0)) == 905
    assert driver.raw("cuStreamEndCapture", blocking, byref(c_void_p())) == 901

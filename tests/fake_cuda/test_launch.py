# SPDX-License-Identifier: Apache-2.0
"""Kernels of the fake: every way to launch them, and what can be asked of them."""

import ctypes
import threading
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_void_p

import pytest

from .harness import on_fake
from .steer import READ, CudaError, Driver, Many

FORMS = ("params", "extra", "ex", "kernel")


@on_fake()
@pytest.mark.parametrize("form", FORMS)
def test_every_kernel_in_every_form(driver: Driver, form: str) -> None:
    x, y, index, total = (driver.managed(64) for _ in range(4))

    def launch(name: str, *args: object) -> None:
        driver.launch(name, *args, form=form)

    launch("fill", x.address, 64, 3)
    launch("copy", y.address, x.address, 32)
    launch("axpy", y.address, x.address, 64, 2)
    launch("reduce", total.address, y.address, 64)
    many = Many(add=1, used=2, each=4)
    many.pointers[0], many.pointers[1] = x.address, index.at(8)
    launch("add_many", many, 10)
    launch("nothing", 1)
    driver.sync()
    assert total.words[0] == 32 * 9 + 32 * 6
    assert list(x.words[:5]) == [14, 14, 14, 14, 3]
    assert list(index.words[7:13]) == [0, 11, 11, 11, 11, 0]
    index.words[:3] = [2, 5, 2]
    launch("gather", total.address, x.address, index.address, 3)
    driver.sync()
    assert list(total.words[:3]) == [14, 3, 14]
    assert driver.get("kernels") == 7


@on_fake()
def test_arguments_are_copied_by_the_launch(driver: Driver) -> None:
    gate, stream, array = driver.pinned(1), driver.stream(), driver.managed(4)
    driver.call("cuStreamWaitValue32_v2", stream, gate.address, c_uint32(1), c_uint32(0))
    value = c_uint32(6)
    address, count = ctypes.c_uint64(array.address), ctypes.c_uint64(4)
    params = (c_void_p * 3)(*(ctypes.addressof(one) for one in (address, count, value)))
    ones = [c_uint32(1)] * 6
    driver.call(
        "cuLaunchKernel", driver.function("fill"), *ones, c_uint32(0), stream, params, c_void_p()
    )
    value.value = 7
    gate.words[0] = 1
    driver.sync(stream)
    assert array.words[0] == 6


@on_fake()
def test_gather_touches_the_rows_it_reads_alone(driver: Driver) -> None:
    words = 1 << 14
    table, index, to = driver.managed(8 * words), driver.managed(2), driver.managed(2)
    index.words[:] = [5, 3 * words]
    driver.launch("gather", to.address, table.address, index.address, 2)
    driver.sync()
    reads = [fault.address for fault in driver.faults() if fault.access == READ]
    assert reads == [index.address, table.address, table.at(3 * words)]


def layout(driver: Driver, function: str, handle: c_void_p) -> list[tuple[int, int]] | int:
    found = []
    for index in range(10):
        offset, size = c_size_t(), c_size_t()
        if code := driver.raw(function, handle, c_size_t(index), byref(offset), byref(size)):
            return found if code == 1 else code
        found.append((offset.value, size.value))
    raise AssertionError


@on_fake()
def test_a_function_and_a_kernel_answer_their_own_questions_only(driver: Driver) -> None:
    function, kernel, name = driver.function("add_many"), driver.kernel("add_many"), c_char_p()
    expected = [(0, ctypes.sizeof(Many)), (ctypes.sizeof(Many), 4)]
    assert layout(driver, "cuFuncGetParamInfo", function) == expected
    assert layout(driver, "cuKernelGetParamInfo", kernel) == expected
    assert layout(driver, "cuFuncGetParamInfo", kernel) == 400
    assert layout(driver, "cuKernelGetParamInfo", function) == 400
    driver.call("cuFuncGetName", byref(name), function)
    assert name.value == b"add_many"
    driver.call("cuKernelGetName", byref(name), kernel)
    assert name.value == b"add_many"
    assert driver.raw("cuFuncGetName", byref(name), kernel) == 400
    plain, module = c_void_p(), c_void_p()
    driver.call("cuKernelGetFunction", byref(plain), kernel)
    assert layout(driver, "cuFuncGetParamInfo", plain) == expected
    driver.call("cuFuncGetModule", byref(module), function)
    assert module.value == driver.module.value


@on_fake()
def test_bad_launches_are_refused(driver: Driver) -> None:
    array = driver.managed(4)
    for grid, block in (((0, 1, 1), (1, 1, 1)), ((1, 1, 1), (1, 0, 1)), ((1, 1, 1), (2048, 1, 1))):
        with pytest.raises(CudaError, match=r"cuLaunchKernel: 1$"):
            driver.launch("fill", array.address, 4, 1, grid=grid, block=block)
    ones = [c_uint32(1)] * 6
    none = c_void_p()
    for handle, code in ((c_void_p(array.address), 400), (driver.function("fill"), 1)):
        assert driver.raw("cuLaunchKernel", handle, *ones, c_uint32(0), none, none, none) == code
    with pytest.raises(CudaError, match=r"cuModuleGetFunction: 500$"):
        driver.function("no such kernel")
    assert driver.get("kernels") == 0


@on_fake()
def test_a_kernel_of_the_tests_own(driver: Driver) -> None:
    ran = threading.Event()
    driver.register("mine", (c_uint32, ctypes.c_uint64), ran.set)
    driver.launch("mine", 1, 2)
    driver.sync()
    assert ran.is_set()
    assert layout(driver, "cuFuncGetParamInfo", driver.function("mine")) == [(0, 4), (8, 8)]


@on_fake()
def test_threads_launch_into_their_own_streams(driver: Driver) -> None:
    arrays, errors = [driver.managed(4096) for _ in range(4)], []

    def work(k: int) -> None:
        try:
            driver.enter()
            stream = driver.stream()
            driver.fill(arrays[k], k, stream)
            for _ in range(20):
                driver.launch("axpy", arrays[k].address, arrays[k].address, 4096, 1, stream=stream)
            driver.sync(stream)
        except CudaError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [array.words[4095] for array in arrays] == [k << 20 for k in range(4)]
    assert driver.get("kernels") == 84

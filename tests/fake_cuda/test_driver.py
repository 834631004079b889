# SPDX-License-Identifier: Apache-2.0
"""The fake as a whole: how it is found, started, delayed, made to fail, and left."""

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import pytest

from .build import ROOT, environment
from .harness import on_fake
from .steer import MIB, PAGE, TO_DEVICE, CudaError, Driver, wait_until


def python(text: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_bindings_find_it() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
    out = python("""
        from cuda.bindings import driver as d
        ok = lambda got: (got[0] == d.CUresult.CUDA_SUCCESS or exit(str(got))) and got[1]
        assert d.cuInit(0)[0] == d.CUresult.CUDA_SUCCESS
        print(ok(d.cuDriverGetVersion()), ok(d.cuDeviceGetName(32, 0)).split(b"\\0")[0].decode())
        ok((d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))[0], 1))
        stream = ok(d.cuStreamCreate(1))
        memory = ok(d.cuMemAllocManaged(1 << 20, 1))
        place = d.CUmemLocation()
        place.type, place.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
        ok((d.cuMemPrefetchAsync(memory, 1 << 20, place, 0, stream)[0], 1))
        ok((d.cuMemDiscardBatchAsync([memory], [1 << 16], 1, 0, stream)[0], 1))
        ok((d.cuMemAdvise(memory, 1 << 20, d.CUmem_advise(3), place)[0], 1))
        ok((d.cuStreamSynchronize(stream)[0], 1))
        free, total = d.cuMemGetInfo()[1:]
        print(total - free)
    """)
    assert out.splitlines() == ["13000 Fake GPU for tests", str(MIB - PAGE)]


def test_settings_come_from_the_environment() -> None:
    out = python(
        """
        from tests.fake_cuda.steer import Driver, CudaError
        driver = Driver()
        driver.start()
        print(driver.get("memory_bytes"), driver.get("other_bytes"))
        for _ in range(3):
            try:
                print(driver.managed(4).count)
            except CudaError as error:
                print(error)
        """,
        FAKE_CUDA="memory_bytes=4096; other_bytes=7;fail:cuMemAllocManaged=2,2; delay:cuInit=1+1",
    )
    assert out.splitlines() == ["4096 7", "4", "cuMemAllocManaged: 2", "4"]


def test_a_setting_that_is_not_known_ends_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"],
        env=environment(FAKE_CUDA="memory=1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode < 0
    assert "FAKE_CUDA: cannot read 'memory=1'" in done.stderr


def test_nothing_that_is_shipped_knows_of_it() -> None:
    shipped = [*(ROOT / "src").rglob("*.py*"), *(ROOT / "policies").rglob("*.py")]
    assert len(shipped) > 50
    for path in shipped:
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi"):
            assert "tests.fake_cuda" not in path.read_text("utf-8"), path


@on_fake(devices=0)
def test_without_a_device_there_is_nothing_to_initialize(driver: Driver) -> None:
    count = c_int(9)
    assert driver.raw("cuInit", c_uint(0)) == 100
    assert driver.raw("cuDeviceGetCount", byref(count)) == 3


@on_fake()
def test_a_context_is_needed_and_one_for_each_thread(driver: Driver) -> None:
    codes = []

    def other() -> None:
        codes.append(driver.raw("cuCtxSynchronize"))
        driver.enter()
        codes.append(driver.raw("cuCtxSynchronize"))
        context = c_void_p()
        driver.call("cuCtxPopCurrent_v2", byref(context))
        assert context.value == driver.context.value
        codes.append(driver.raw("cuCtxSynchronize"))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [201, 0, 201]
    driver.call("cuDevicePrimaryCtxRelease_v2", c_int(0))
    assert driver.raw("cuCtxSynchronize") == 709


@on_fake(driver_version=12080)
def test_an_older_driver_lacks_the_newer_functions(driver: Driver) -> None:
    def ask(name: str, version: int, flags: int = 0) -> tuple[int, int | None, int]:
        address, status = c_void_p(), c_int(9)
        code = driver.raw(
            "cuGetProcAddress_v2",
            name.encode(),
            byref(address),
            c_int(version),
            flags,
            byref(status),
        )
        return code, address.value, status.value

    def exported(name: str) -> int | None:
        return ctypes.cast(getattr(driver.library, name), c_void_p).value

    assert ask("cuMemDiscardBatchAsync", 13000) == (500, None, 2)
    assert ask("cuNoSuchThing", 13000) == (500, None, 1)
    assert ask("cuMemPrefetchAsync", 12020) == (0, exported("cuMemPrefetchAsync_v2"), 0)
    assert ask("cuMemPrefetchAsync", 8000) == (0, exported("cuMemPrefetchAsync"), 0)
    assert ask("cuLaunchKernel", 12020, 2) == (0, exported("cuLaunchKernel_ptsz"), 0)
    assert ask("cuMemAlloc", 12020, 2) == (0, exported("cuMemAlloc_v2"), 0)


@on_fake()
def test_the_nth_call_fails_and_does_nothing(driver: Driver) -> None:
    driver.fail("cuMemAllocManaged", 2, 2, times=2)
    outcomes = []
    for _ in range(4):
        try:
            outcomes.append(driver.managed(4).count)
        except CudaError as error:
            outcomes.append(error.code)
    assert outcomes == [4, 2, 2, 4]
    assert driver.calls("cuMemAllocManaged") == 4
    assert driver.get("allocations") == 2


@on_fake()
def test_any_call_can_be_made_to_fail(driver: Driver) -> None:
    array = driver.managed(4)
    before = driver.calls("*")
    assert not driver.failed()
    driver.fail("*", 2, 999)
    with pytest.raises(CudaError, match=r"cuLaunchKernel: 999$"):
        driver.fill(array, 1)  # the function is looked up first
    assert driver.calls("*") == before + 2
    assert driver.failed() == "cuLaunchKernel"
    driver.fill(array, 1)
    driver.sync()
    assert array.words[0] == 1
    driver.reset()
    assert driver.calls("*") == 0


@on_fake()
def test_work_can_fail_after_its_call_succeeded(driver: Driver) -> None:
    array, stream = driver.managed(4), driver.stream()
    driver.fail("exec:prefetch", 1, 719)
    driver.prefetch(array, TO_DEVICE, stream)
    wait_until(lambda: driver.get("lost") == 719)
    with pytest.raises(CudaError, match=r": 719$"):
        driver.sync(stream)


@on_fake()
def test_calls_and_work_can_be_delayed(driver: Driver) -> None:
    stream, first, second = driver.stream(), driver.event(0), driver.event(0)
    driver.delay("exec:prefetch", 1_000_000, 1_000_000)
    driver.delay("cuMemPrefetchAsync", 1_000_000, 10)
    driver.set("prefetch_call_ns", 1_000_000)
    driver.set("prefetch_ns_per_mib", 500_000)
    driver.set("fault_ns", 1_000_000)
    array, elapsed = driver.managed(MIB // 2), ctypes.c_float()
    driver.call("cuEventRecord", first, stream)
    driver.sync(stream)
    driver.prefetch(array, TO_DEVICE, stream)
    driver.call("cuEventRecord", second, stream)
    driver.fill(driver.managed(4), 1, stream)
    driver.call("cuEventRecord", third := driver.event(0), stream)
    driver.sync(stream)
    driver.call("cuEventElapsedTime", byref(elapsed), first, second)
    assert elapsed.value > 2.9  # 1 before the call, 1 + 2 * 0.5 in it (two clocks: not quite 3)
    driver.call("cuEventElapsedTime", byref(elapsed), second, third)
    assert elapsed.value > 0.9  # the fault


@on_fake()
def test_a_forked_child_has_no_driver(driver: Driver) -> None:
    array = driver.managed(4)
    pid = os.fork()
    if pid == 0:
        os._exit(driver.raw("cuMemFree_v2", array.address))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    driver.free(array)


@on_fake()
def test_errors_have_names(driver: Driver) -> None:
    text = c_char_p()
    assert driver.raw("cuGetErrorName", c_int(700), byref(text)) == 0
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert driver.raw("cuGetErrorString", c_int(2), byref(text)) == 0
    assert text.value == b"out of memory"
    assert driver.raw("cuGetErrorName", c_int(12345), byref(text)) == 1
    assert text.value is None


@on_fake()
def test_memory_is_told_apart_when_it_is_freed(driver: Driver) -> None:
    pinned, device = driver.pinned(4), driver.memory(4)
    assert driver.raw("cuMemFree_v2", pinned.address) == 1
    assert driver.raw("cuMemFree_v2", device.at(1)) == 1
    assert driver.raw("cuMemFreeHost", device.address) == 1
    driver.call("cuMemFreeHost", pinned.address)
    driver.call("cuMemFree_v2", c_uint64(0))
    driver.free(device)
    assert driver.raw("cuMemFree_v2", device.address) == 1
    here = ctypes.create_string_buffer(PAGE)
    driver.call("cuMemHostRegister_v2", here, c_size_t(PAGE), c_uint(0))
    assert driver.raw("cuMemHostRegister_v2", here, c_size_t(PAGE), c_uint(0)) == 712
    driver.call("cuMemHostUnregister", here)
    assert driver.raw("cuMemHostUnregister", here) == 713


def test_after_the_end_of_the_program_the_driver_is_gone() -> None:
    text = """
        import ctypes, os
        from tests.fake_cuda.steer import Driver
        # Registered before the driver is loaded, so that it runs after the driver's own end.
        ask = lambda: os.write(1, str(driver.raw("cuCtxSynchronize")).encode())
        end = ctypes.CFUNCTYPE(None)(ask)
        ctypes.CDLL(None)["__cxa_atexit"](end, None, None)
        driver = Driver()
        driver.start()
        driver.sync()
        exit_now = ctypes.CDLL(None).exit
        exit_now(0)
    """
    assert python(text) == "4"

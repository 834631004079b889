# SPDX-License-Identifier: Apache-2.0
"""`deepum doctor` where there is a driver: each line when it works and when it does not."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

GIB = 1 << 30
CARD = 4 * GIB


def lines() -> dict[str, Any]:
    """Make every check; return them by name."""
    pytest.importorskip(
        "deepum._core.cuda_mover", reason="the core was built without CUDA: build again with it"
    )
    from deepum.doctor import run_checks

    found = run_checks()
    assert all(check.todo for check in found if check.state != "ok")
    return {check.name: check for check in found}


@contextmanager
def queue_that_opens() -> Iterator[None]:
    """Put a source in the place of the UVM driver's queue, which the stand-in does not have."""
    from deepum.cuda import faults

    real = faults.FaultSource

    class Open:
        def __init__(self, feed: Any) -> None:
            pass

        def close(self) -> None:
            pass

    faults.FaultSource = Open  # type: ignore[misc,assignment]
    yield
    faults.FaultSource = real  # type: ignore[misc]


@on_fake(memory_bytes=CARD)
def test_where_all_is_well(driver: Driver) -> None:
    from deepum.doctor import gpu

    gpu.host_available = lambda: 8 * GIB
    with queue_that_opens():
        found = lines()
    assert found["CUDA driver"].state == "ok"
    assert found["CUDA driver"].found.startswith("CUDA 13")
    assert found["GPU 0"].found.endswith("4 GiB, concurrent managed access")
    assert found["CUPTI"].state == "ok"
    assert found["CUPTI"].found.endswith("takes a subscriber")
    assert found["GPU faults"].state == "ok"
    assert "as they happen" in found["GPU faults"].found
    assert found["host memory"].state == "ok"
    assert "12.0 GiB" in found["host memory"].found
    assert found["GPU device files"].state == "missing"  # the stand-in has none
    # Nothing stays behind: a session may start in this process.
    driver.launch("nothing", 1)
    driver.sync()


@on_fake(memory_bytes=CARD)
def test_a_queue_that_does_not_open(driver: Driver) -> None:
    found = lines()["GPU faults"]
    assert found.state == "missing"
    assert "/dev/nvidia-uvm-tools cannot be opened (No such file or directory)" in found.found
    assert "CUPTI counts them instead" in found.found
    driver.set("cupti_counters_refuse", 35)
    found = lines()["GPU faults"]
    assert "not seen" in found.found
    assert "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in found.found


@on_fake(memory_bytes=CARD)
def test_another_profiler(driver: Driver) -> None:
    import os

    cupti = ctypes.CDLL(os.environ["DEEPUM_CUPTI"])
    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    assert cupti.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), callback, None) == 0
    found = lines()["CUPTI"]
    assert found.state == "missing"
    assert "another profiler" in found.found
    assert "torch.profiler" in found.todo


@on_fake(memory_bytes=CARD)
def test_a_profiler_that_refuses(driver: Driver) -> None:
    import tempfile
    from pathlib import Path

    from deepum.doctor import sensing

    driver.set("cupti_refuse", 35)
    assert "pip install nvidia-cuda-cupti" in lines()["CUPTI"].todo
    sensing._PARAMETERS = Path(tempfile.mkdtemp()) / "params"
    sensing._PARAMETERS.write_text("RmProfilingAdminOnly: 1\n")
    assert "RestrictProfilingToAdminUsers" in lines()["CUPTI"].todo


@on_fake(memory_bytes=CARD)
def test_no_cupti(driver: Driver) -> None:
    import os

    os.environ["DEEPUM_CUPTI"] = "/nowhere/libcupti.so"
    found = lines()
    assert found["CUPTI"].state == "missing"
    assert "pip install nvidia-cuda-cupti" in found["CUPTI"].todo
    assert "no CUPTI library" in found["GPU faults"].found


@on_fake(memory_bytes=CARD, driver_version=12080, concurrent_managed=0)
def test_an_old_driver_and_a_card_that_does_not_migrate(driver: Driver) -> None:
    found = lines()
    assert found["CUDA driver"].state == found["GPU 0"].state == "missing"
    assert "CUDA 12.8" in found["CUDA driver"].found
    assert "driver 580" in found["CUDA driver"].todo
    assert "no concurrent managed access" in found["GPU 0"].found


@on_fake(devices=0)
def test_no_gpu(driver: Driver) -> None:
    found = lines()
    assert found["CUDA driver"].state == "missing"
    assert "GPU 0" not in found
    assert "no GPU to try on" in found["CUPTI"].found
    assert found["GPU faults"].state == "missing"


@on_fake(memory_bytes=CARD)
def test_bindings_older_than_the_driver(driver: Driver) -> None:
    from cuda.bindings import driver as bindings

    del bindings.cuMemDiscardBatchAsync
    found = lines()["CUDA driver"]
    assert "no cuMemDiscardBatchAsync" in found.found
    assert "deepum[cu13]" in found.todo

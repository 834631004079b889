# SPDX-License-Identifier: Apache-2.0
"""Functions are not loaded behind a closed gate: the driver would wait for the device meanwhile."""

from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, session
from .stand_in import Program


@on_fake(memory_bytes=CARD, lazy_loading=1)
def test_a_function_is_known_before_a_call_loads_it(driver: Driver) -> None:
    """PyTorch sets attributes of a kernel of attention's between two launches."""
    with session(driver, "chained"):
        from deepum._core import cuda_launches

        function = driver.function("reduce")
        assert "reduce" not in cuda_launches.names()
        driver.call("cuFuncLoad", function)
        assert "reduce" in cuda_launches.names()


@on_fake(memory_bytes=CARD)
def test_each_of_thousands_of_kernels_is_learnt_once(driver: Driver) -> None:
    for k in range(3000):
        driver.register(f"k{k}", (), lambda: None)
    with session(driver, "chained") as (_, machine):
        from deepum._core import cuda_launches

        stream = Program(machine).stream
        learnt = []
        for _ in range(2):
            before = driver.calls("cuFuncGetName")
            for k in range(3000):
                driver.launch(f"k{k}", stream=stream)
            learnt.append(driver.calls("cuFuncGetName") - before)
        driver.sync(stream)
        assert learnt == [3000, 0]
        assert {f"k{k}" for k in range(3000)} <= set(cuda_launches.names())

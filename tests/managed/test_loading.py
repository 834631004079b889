# SPDX-License-Identifier: Apache-2.0
"""Functions are not loaded behind a closed gate: the driver would wait for the device meanwhile."""

from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import Driver

from .live import CARD, session


@on_fake(memory_bytes=CARD, lazy_loading=1)
def test_a_function_is_known_before_a_call_loads_it(driver: Driver) -> None:
    """PyTorch sets attributes of a kernel of attention's between two launches."""
    with session(driver, "chained"):
        from deepum._core import cuda_launches

        function = driver.function("reduce")
        assert "reduce" not in cuda_launches.names()
        driver.call("cuFuncLoad", function)
        assert "reduce" in cuda_launches.names()

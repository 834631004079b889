# SPDX-License-Identifier: Apache-2.0
from typing import final

import numpy as np
import numpy.typing as npt

from deepum._core.engine import NativePolicy
from deepum._core.simulator import Simulator

@final
class OraclePolicy(NativePolicy):
    def __init__(self, horizon: int = ...) -> None: ...
    def foresee(self, simulator: Simulator, kernels: npt.NDArray[np.uint64]) -> None: ...

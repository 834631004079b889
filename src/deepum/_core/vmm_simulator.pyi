# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from deepum._core.engine import Engine
from deepum._core.lowering import Program
from deepum._core.simulator import Simulator

@final
class VmmSimulator(Simulator):
    def __init__(
        self,
        engine: Engine,
        program: Program,
        columns: dict[str, npt.NDArray[Any]],
        kernel_time: npt.NDArray[np.float64],
        touch_faults: npt.NDArray[np.uint16],
        rates: Mapping[str, float],
        *,
        chunk: int,
        ahead: int,
        remap: Sequence[float],
        zero_copy_bytes_s: float,
    ) -> None: ...
    def name_chunks(
        self, columns: dict[str, npt.NDArray[Any]], crossing: npt.NDArray[np.uint32]
    ) -> None: ...

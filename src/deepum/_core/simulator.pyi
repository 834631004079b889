# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from deepum._core.engine import Engine
from deepum._core.lowering import Program

class Simulator:
    def __init__(
        self,
        engine: Engine,
        program: Program,
        columns: dict[str, npt.NDArray[Any]],
        kernel_time: npt.NDArray[np.float64],
        touch_faults: npt.NDArray[np.uint16],
        rates: Mapping[str, float],
        *,
        names_ranges: bool = False,
        chunk: int = 1,
        **options: Any,
    ) -> None: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def program(self) -> Program: ...
    @property
    def now(self) -> float: ...
    def run(
        self, start: int, stop: int, *, sampling: bool = False, through: bool = True
    ) -> dict[str, Any]: ...
    def take_samples(self) -> npt.NDArray[np.float64]: ...

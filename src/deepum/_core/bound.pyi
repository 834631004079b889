# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepum._core.lowering import Program

def least_traffic(
    program: Program, columns: dict[str, npt.NDArray[Any]], steps: Sequence[int], budget: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...

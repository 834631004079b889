# SPDX-License-Identifier: Apache-2.0
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

MARK_DTYPE: Final[np.dtype[np.void]]
MARKS: Final[dict[str, int]]

@final
class Marks:
    def __init__(self, size: int = ...) -> None: ...
    def take(self) -> npt.NDArray[Any]: ...
    def close(self) -> None: ...
    @property
    def lost(self) -> int: ...
    def add(
        self,
        kind: str,
        *,
        time: int = 0,
        until: int = 0,
        what: int = 0,
        amount: int = 0,
        seq: int = 0,
        name: int = 0,
    ) -> None: ...

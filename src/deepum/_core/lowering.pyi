# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any, final

import numpy as np
import numpy.typing as npt

def exec_id(words: Iterable[int]) -> int: ...

@final
class Program:
    def __init__(
        self,
        columns: dict[str, npt.NDArray[Any]],
        *,
        pointers: bool = True,
        scattered: int = 16,
        strided: npt.NDArray[Any] | None = None,
    ) -> None: ...
    @property
    def exec_id(self) -> npt.NDArray[np.uint64]: ...
    @property
    def touch_start(self) -> npt.NDArray[np.int64]: ...
    @property
    def touch_block(self) -> npt.NDArray[np.uint32]: ...
    @property
    def touch_pages(self) -> npt.NDArray[np.uint16]: ...
    @property
    def touch_moved(self) -> npt.NDArray[np.uint16]: ...
    @property
    def touch_flags(self) -> npt.NDArray[np.uint8]: ...
    @property
    def gather_share(self) -> npt.NDArray[np.float64]: ...
    @property
    def working_set(self) -> npt.NDArray[np.int64]: ...

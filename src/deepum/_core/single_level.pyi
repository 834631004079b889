# SPDX-License-Identifier: Apache-2.0
from typing import final

from deepum._core.engine import NativePolicy

@final
class SingleLevelPolicy(NativePolicy):
    def __init__(
        self, rows: int = 65536, ways: int = 2, successors: int = 4, levels: int = 1
    ) -> None: ...

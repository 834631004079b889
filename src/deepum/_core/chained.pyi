# SPDX-License-Identifier: Apache-2.0
from typing import final

from deepum._core.engine import NativePolicy

@final
class ChainedPolicy(NativePolicy):
    def __init__(self, next_use: bool = False, gate: bool = True) -> None: ...
    @property
    def forgotten(self) -> int: ...

# SPDX-License-Identifier: Apache-2.0
# The rest is for compiled code only: see residency.pxd, and `Engine` for what Python may ask.
from typing import final

@final
class Residency:
    def __init__(self, budget: int) -> None: ...
    @property
    def budget(self) -> int: ...

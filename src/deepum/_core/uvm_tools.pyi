# SPDX-License-Identifier: Apache-2.0
from typing import final

from deepum._core.feed import Feed

@final
class FaultQueue:
    def __init__(
        self, feed: Feed, descriptor: int, records: int, control: int, entries: int
    ) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def dropped(self) -> int: ...

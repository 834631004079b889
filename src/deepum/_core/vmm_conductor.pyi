# SPDX-License-Identifier: Apache-2.0
from deepum._core.conductor import Conductor, Mover
from deepum._core.engine import Engine
from deepum._core.feed import Feed

class ExactMover(Mover): ...

class VmmConductor(Conductor):
    def __init__(
        self,
        engine: Engine,
        feed: Feed,
        mover: ExactMover,
        *,
        gated: bool,
        names: bool,
        strict: bool = True,
    ) -> None: ...
    def finish(self, seconds: float) -> bool: ...
    @property
    def lent_blocks(self) -> int: ...

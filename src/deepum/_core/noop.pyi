# SPDX-License-Identifier: Apache-2.0
from typing import final

from deepum._core.engine import NativePolicy

@final
class NoopPolicy(NativePolicy): ...

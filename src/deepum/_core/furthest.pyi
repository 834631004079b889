# SPDX-License-Identifier: Apache-2.0
# For compiled code only: see furthest.pxd.
from typing import final

@final
class Furthest: ...

# SPDX-License-Identifier: Apache-2.0
# For compiled code only: see foresight.pxd.
from typing import final

@final
class Foresight: ...

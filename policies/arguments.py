# SPDX-License-Identifier: Apache-2.0
"""What launches name."""

from deepum.policy import Policy


class Arguments(Policy):
    """Prefetches the memory that the arguments of submitted launches point to.

    There is nothing to learn: it works from the first iteration on. It sees as far ahead as the
    program runs ahead of the device, and no further.
    """

    name = "arguments"
    native = "arguments"
    learns = False
    wants_ranges = True

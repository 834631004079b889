# SPDX-License-Identifier: Apache-2.0
"""Plain demand paging."""

from deepum.policy import Policy


class Noop(Policy):
    """Plain demand paging: a fault moves a block in, the least recently migrated one goes out.

    What unified memory does by itself, and the baseline of every comparison.
    """

    name = "noop"
    native = "noop"
    learns = False
    pre_evicts = False
    invalidates = False

# SPDX-License-Identifier: Apache-2.0
"""The bound."""

from deepum.policy import Policy


class Oracle(Policy):
    """Knows the trace: prefetches in order of need, evicts what is needed last (Belady).

    Works in the simulator only, where it shows what a policy could reach at best. `horizon` is
    how many launches it prefetches ahead.
    """

    name = "oracle"
    native = "oracle"
    learns = False
    defaults = {"horizon": 1024}  # noqa: RUF012

# SPDX-License-Identifier: Apache-2.0
"""Classic pair correlation."""

from deepum.policy import Policy


class SingleLevel(Policy):
    """Pair correlation on faults: one table of which block faulted after which, no kernels.

    After Joseph and Grunwald's Markov prefetcher (ISCA 1997); with `levels` above 1, Solihin et
    al.'s replicated table (ISCA 2002). A prefetch that hits hides the fault that would have
    started the next one, so the chain breaks where it works.
    """

    name = "single-level"
    native = "single_level"
    learns = False
    defaults = {"rows": 65536, "ways": 2, "successors": 4, "levels": 1}  # noqa: RUF012

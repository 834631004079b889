# SPDX-License-Identifier: Apache-2.0
"""The paper's policy."""

from deepum.policy import Policy


class Chained(Policy):
    """Chained prefetching over the execution-ID table and a block table for each kernel.

    The policy of DeepUM (ASPLOS 2023): it walks the running kernel's block table, goes on in the
    table of the kernel predicted to follow, and pauses when it is `depth` kernels ahead. The
    options are the geometry of the UM-block tables; the defaults are the paper's. With `next_use`
    the blocks that the predicted sequence needs last go first, and with `gate` nothing is fetched
    in place of what is needed sooner; neither is in the paper.
    """

    name = "chained"
    native = "chained"
    defaults = {  # noqa: RUF012
        "rows": 2048,
        "ways": 2,
        "successors": 4,
        "levels": 1,
        "next_use": False,
        "gate": True,
    }

# SPDX-License-Identifier: Apache-2.0
"""What a session leaves to the child of a fork: nothing.

A data loader's workers are such children. They have none of our threads, and a GPU's context does
not survive a fork; but they free the tensors that they inherited, and that must go on in silence.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepum._core.feed import Feed


def guard(feed: Feed, forget: Callable[[], None]) -> None:
    """See to it that a child does not wait for a thread that it does not have.

    Parameters
    ----------
    feed
        The process's feed; its lock may be held by another thread when a fork comes.
    forget
        Called in the child: the session is its parent's.
    """

    def in_child() -> None:
        from deepum._core import cuda_launches

        feed.after_fork(True)
        cuda_launches.switch_off()
        forget()

    os.register_at_fork(
        before=feed.before_fork,
        after_in_parent=lambda: feed.after_fork(False),
        after_in_child=in_child,
    )

# SPDX-License-Identifier: Apache-2.0
"""What an engine keeps for a policy that is told later."""

from __future__ import annotations

from typing import Any

from deepum import Policy
from deepum._core.deferred import DeferredPolicy
from deepum.policy import make_native

from .harness import BLOCK, engine


class Listening(Policy):
    def on_alloc(self, view: Any, allocation: Any) -> None:
        """Have something to be told."""


def test_it_is_idle_when_everything_was_told_and_not_when_it_was_only_taken() -> None:
    deferred = make_native(Listening(), None, DeferredPolicy)
    assert isinstance(deferred, DeferredPolicy)
    e = engine(4, deferred)
    e.event("manage", address=0, bytes=4 * BLOCK)
    idle = [deferred.idle]
    e.event("alloc", address=0, bytes=BLOCK)
    idle.append(deferred.idle)  # its thread has not woken up yet
    assert deferred.take(0) == [("on_alloc", 0, 0, 0, BLOCK)]
    idle.append(deferred.idle)  # the hook runs
    e.event("alloc", address=BLOCK, bytes=BLOCK)
    assert len(deferred.take(0) or ()) == 1
    idle.append(deferred.idle)
    assert deferred.take(0) == []
    idle.append(deferred.idle)
    assert idle == [True, False, False, False, True]


def test_it_is_idle_when_nobody_is_told_any_more() -> None:
    deferred = make_native(Listening(), None, DeferredPolicy)
    assert isinstance(deferred, DeferredPolicy)
    e = engine(4, deferred)
    e.event("manage", address=0, bytes=4 * BLOCK)
    e.event("alloc", address=0, bytes=BLOCK)
    deferred.close()
    assert deferred.idle
    assert deferred.take(0) is None

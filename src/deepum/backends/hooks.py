# SPDX-License-Identifier: Apache-2.0
"""Policies written in Python beside a running program: their hooks run in a thread of their own.

A page fault is served before the policy hears of it. What a hook asks for becomes a command when
the hook returns.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from deepum._core.python_policy import MAX_COMMANDS, Allocation, Fault, Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepum._core.deferred import DeferredPolicy
    from deepum._core.live import LiveEngine
    from deepum.policy import Policy

MAX_REFUSED = 100_000
"""Requests refused in a row before a policy counts as broken."""


class LiveView:
    """What a policy sees of a running engine, and what it may ask of it.

    The same as the `View` of a simulation, but things move while one looks: a block that was
    resident a moment ago may be gone.
    """

    def __init__(self, live: LiveEngine, options: dict[str, Any]) -> None:
        self._live = live
        self._asked = 0
        self._closed = False
        self.options = options

    def _charge(self, count: int) -> None:
        if self._closed:
            raise RuntimeError("this policy was set aside")
        # Once over, always over: a hook may catch the error and ask again.
        if count > MAX_COMMANDS - self._asked:
            self._asked = MAX_COMMANDS
            raise RuntimeError(f"one hook asked for more than {MAX_COMMANDS} blocks")
        self._asked += count

    def prefetch(self, block: int, count: int = 1) -> int:
        """Ask for `count` neighbouring blocks; returns how many were accepted."""
        self._charge(count)
        return self._live.want(block, count)

    def evict(self, block: int, count: int = 1) -> int:
        """Free the frames of `count` neighbouring blocks; returns how many were accepted."""
        self._charge(count)
        return self._live.evict(block, count)

    def wait_for_evictions(self) -> None:
        """Let no prefetch begin before the evictions asked for have ended."""
        self._charge(0)
        self._live.hold_prefetches()

    def wait_for_kernels(self) -> None:
        """Do nothing: the program does not run ahead of its kernels."""

    def is_resident(self, block: int) -> bool:
        """Tell whether the block is on the device now."""
        with self._live.held() as engine:
            return engine.is_resident(block)

    def predict(self, exec_id: int, depth: int = 1) -> list[int]:
        """Return up to `depth` execution IDs expected after a kernel, nearest first."""
        with self._live.held() as engine:
            return engine.correlator.predict(exec_id, depth)

    def blocks_of(self, exec_id: int) -> list[int]:
        """Return the blocks learnt for a kernel, in the order it faulted on them."""
        with self._live.held() as engine:
            return engine.correlator.blocks_of(exec_id)

    @property
    def budget_blocks(self) -> int:
        """Frames that may be in use."""
        return self._live.engine.budget

    @property
    def free_blocks(self) -> int:
        """Frames not in use now."""
        with self._live.held() as engine:
            return engine.free_frames

    @property
    def resident_blocks(self) -> list[int]:
        """Blocks on the device, least recently migrated first; those wholly inactive first."""
        with self._live.held() as engine:
            return engine.resident_blocks()

    @property
    def running(self) -> Launch | None:
        """The running kernel, a `Launch`, or None."""
        with self._live.held() as engine:
            seq, exec_id = engine.running, engine.running_exec_id
        return None if seq is None or exec_id is None else Launch(exec_id, seq)


class PolicyThread:
    """Calls the hooks of one policy.

    Parameters
    ----------
    deferred
        What the engine has to tell the policy.
    live
        The engine.
    poke
        Called after each hook, so that what it asked for is carried out.
    depth
        Prefetch distance, for ``view.options``.
    """

    def __init__(
        self,
        deferred: DeferredPolicy,
        live: LiveEngine,
        poke: Callable[[], None],
        depth: int,
    ) -> None:
        self.policy: Policy = deferred.policy
        self.reason: object = None
        """Why the policy cannot go on: an exception or a text."""
        self._deferred = deferred
        self._live = live
        self._poke = poke
        self._view = LiveView(live, {**self.policy.options, "depth": depth})
        self._ranges: list[tuple[int, int]] = []
        self._began = 0.0
        self._refused_run = 0
        self._thread = threading.Thread(target=self._run, name="deepum policy", daemon=True)
        self._thread.start()

    def overdue(self, patience_s: float) -> bool:
        """Tell whether a hook has been running for longer than that."""
        began = self._began
        return began > 0 and time.monotonic() - began > patience_s

    def idle(self) -> bool:
        """Tell whether the policy has heard of everything."""
        return self._deferred.idle

    def close(self) -> None:
        """Call no hook any more. One that is running is not waited for."""
        self._view._closed = True
        self._deferred.close()

    def join(self, seconds: float) -> None:
        """Wait for a hook that is running, but not for ever."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (batch := self._deferred.take(500)) is not None:
            for notice in batch:
                try:
                    self._tell(*notice)
                except BaseException as error:
                    self.reason = error
                finally:
                    self._began = 0.0
                if self.reason is not None or self._view._closed:
                    self._deferred.close()
                    return
            if self._deferred.overflowed:
                self.reason = "it could not keep up with the program"
                return

    def _tell(self, hook: str, seq: int, exec_id: int, address: int, size: int) -> None:
        if hook == "range":
            self._ranges.append((address, size))
            return
        view, policy = self._view, self.policy
        before = self._live.stats["refused"]
        view._asked = 0
        self._began = time.monotonic()
        if hook == "on_launch":
            ranges, self._ranges = tuple(self._ranges), []
            policy.on_launch(view, Launch(exec_id, seq, ranges))  # type: ignore[arg-type]
        elif hook == "on_complete":
            policy.on_complete(view, Launch(exec_id, seq))  # type: ignore[arg-type]
        elif hook == "on_fault":
            policy.on_fault(view, Fault(address, exec_id, seq))  # type: ignore[arg-type]
        elif hook == "on_alloc":
            policy.on_alloc(view, Allocation(address, size))  # type: ignore[arg-type]
        elif hook == "on_free":
            policy.on_free(view, Allocation(address, size))  # type: ignore[arg-type]
        else:
            # For `victims`, `seq` says how many are wanted. More are kept, for the next time.
            wanted = max(seq, 16)
            answer = policy.victims(view, wanted)  # type: ignore[arg-type]
            self._deferred.choose([] if answer is None else itertools.islice(answer, wanted))
        self._poke()
        refused = self._live.stats["refused"] - before
        self._refused_run = self._refused_run + refused if refused else 0
        if self._refused_run > MAX_REFUSED:
            raise RuntimeError(f"more than {MAX_REFUSED} requests in a row were refused")

# SPDX-License-Identifier: Apache-2.0
"""The caching allocator model with a limit."""

from __future__ import annotations

import pytest

from deepum.errors import TraceError
from deepum.record.allocator import CachingAllocator

MIB = 1 << 20


def test_the_two_sources_and_the_limit() -> None:
    device = CachingAllocator(limit=100 * MIB)
    assert device.from_cache(20 * MIB) is None
    a = device.from_driver(60 * MIB)
    assert a is not None
    assert device.from_driver(60 * MIB) is None
    assert device.largest_free == 40 * MIB
    device.free(a.address)
    assert device.largest_free == 60 * MIB
    b = device.from_cache(20 * MIB)
    assert b is not None
    assert b.address == a.address
    assert device.reach(b.address) == 60 * MIB
    assert device.segment_of(b.address) == 60 * MIB
    with pytest.raises(TraceError, match="do not fit below a limit"):
        device.alloc(70 * MIB)


def test_only_wholly_free_segments_go_back() -> None:
    device = CachingAllocator(limit=100 * MIB)
    a, b = device.alloc(40 * MIB), device.alloc(40 * MIB)
    device.free(a.address)
    device.free(b.address)
    kept = device.alloc(10 * MIB)
    assert device.release_cached() == 40 * MIB
    assert device.reserved_bytes == 40 * MIB
    assert device.segments == [(kept.address, 40 * MIB)]
    assert device.release_cached() == 0
    device.free(kept.address)
    assert device.release_cached() == 40 * MIB
    assert device.largest_free == 100 * MIB


def test_without_a_limit_nothing_is_refused() -> None:
    device = CachingAllocator()
    assert device.largest_free == 0
    block = device.from_driver(MIB)
    assert block is not None
    device.free(block.address)
    assert device.largest_free == 2 * MIB

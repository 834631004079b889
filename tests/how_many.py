# SPDX-License-Identifier: Apache-2.0
"""How many examples a property is tried on, in proportion to the hypothesis profile in use."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """Return settings for `count` examples in the usual profile, in others in proportion."""
    return settings(max_examples=max(1, settings.default.max_examples * count // 100), **options)

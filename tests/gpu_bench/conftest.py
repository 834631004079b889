# SPDX-License-Identifier: Apache-2.0
"""For all tests of the scripts of bench/gpu."""

import sys
from collections.abc import Iterator

import pytest

from .scripts import forget


@pytest.fixture(autouse=True)
def forget_scripts() -> Iterator[None]:
    """Import the scripts anew for each test."""
    before = set(sys.modules)
    yield
    forget(before)

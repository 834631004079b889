# SPDX-License-Identifier: Apache-2.0
"""What a digest is: deepum/cuda/digest.py, in numpy."""

import numpy as np


def model(words: np.ndarray) -> tuple[int, int]:
    """Return the digest as deepum/cuda/digest.py defines it."""
    place = np.arange(1, len(words) + 1, dtype=np.uint64)
    x = words + place * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    by = np.uint64(0xD6E8FEB86659FD93)
    y = words ^ place * by
    y = (y ^ y >> np.uint64(32)) * by
    y = (y ^ y >> np.uint64(32)) * by
    y ^= y >> np.uint64(32)
    return int(x.sum(dtype=np.uint64)), int(y.sum(dtype=np.uint64))

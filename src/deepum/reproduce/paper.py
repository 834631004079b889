# SPDX-License-Identifier: Apache-2.0
"""What the paper reports, as data.

J. Jung, J. Kim, J. Lee: DeepUM: Tensor Migration and Prefetching in Unified Memory, ASPLOS 2023,
pp. 207-221. Seconds are for 100 iterations, faults are 4 KiB page faults in one iteration, energy
is the whole machine's at the wall relative to naive UM. Figures that the paper shows only as bars
were measured off its drawings and are good to about three digits.
"""

from __future__ import annotations

from dataclasses import dataclass

PER = 100
"""Iterations that the paper's seconds are for."""


@dataclass(frozen=True)
class Row:
    """One model at one batch size on the 32 GB card. None: it ran out of memory, or no bar."""

    model: str
    batch: int
    um_s: float
    lms_s: float | None
    lms_mod_s: float | None
    chained_s: float
    ideal_speedup: float | None
    energy: float
    faults_um: int
    faults_chained: int
    table_mb: float


_K = 1024

# fmt: off
ROWS = (
    Row("GPT-2 XL", 3, 4597, 1747, 1990, 1429, None, .365, 7437122, 687, 308),
    Row("GPT-2 XL", 5, 7706, None, 3020, 2332, None, .341, 12395173, 7612, 344),
    Row("GPT-2 XL", 7, 10981, None, 3997, 3163, None, .343, 17210705, 2549, 348),
    Row("GPT-2 L", 3, 1865, 885, 927, 605, 8.02, .396, 2948920, 235, 169),
    Row("GPT-2 L", 5, 3839, None, 1672, 1163, 9.90, .361, 6055304, 476, 213),
    Row("GPT-2 L", 7, 5727, None, None, 1695, 10.55, .349, 8974631, 884, 232),
    Row("BERT Large", 14, 978, 611, 665, 290, 5.91, .321, 1171717, 2913, 78),
    Row("BERT Large", 16, 1307, None, 786, 403, 6.90, .392, 1777710, 84, 75),
    Row("BERT Large", 18, 1430, None, None, 438, 6.71, .386, 1834746, 1355, 74),
    Row("BERT Base", 29, 135, 450, 456, 129, 1.07, 1.106, 88459, 1595, 19),
    Row("BERT Base", 30, 273, None, None, 158, 2.09, .717, 349106, 4536, 27),
    Row("BERT Base", 31, 578, None, None, 222, 4.28, .490, 1077223, 5531, 33),
    Row("DLRM", 96 * _K, 1203, 1291, 1153, 1005, 1.43, .88, 1263865, 3706, 13),
    Row("DLRM", 128 * _K, 1657, 1789, 1602, 1363, 1.47, .892, 1712886, 6912, 19),
    Row("DLRM", 160 * _K, 2123, None, None, 1682, 1.51, .837, 2583610, 22624, 30),
    Row("DLRM", 192 * _K, 2894, None, None, 2201, 1.72, .779, 3471958, 32139, 31),
    Row("DLRM", 224 * _K, 3318, None, None, 2507, 1.69, .797, 4278593, 38437, 35),
    Row("ResNet-152", 1280, 31002, 3926, 3992, 3922, 9.52, .112, 121380940, 34323, 115),
    Row("ResNet-152", 1536, 38173, 4754, 4972, 4767, 9.77, .116, 144893625, 72598, 128),
    Row("ResNet-152", 1792, 49283, None, 6340, 5965, 10.80, .112, 182230994, 144455, 130),
    Row("ResNet-200", 1024, 32420, 4560, 6124, 4585, 9.23, .12, 126734315, 107093, 144),
    Row("ResNet-200", 1280, 44900, 5470, 5571, 5835, 10.23, .11, 173517031, 68039, 151),
    Row("ResNet-200", 1536, 57302, 7187, 8407, 7235, 10.88, .112, 207933814, 118472, 169),
)
# fmt: on

GMEAN = {"chained": 3.066, "lms": 2.752, "lms_mod": 2.701, "ideal": 4.635}
"""Geometric-mean speedups over naive UM: 23 rows for DeepUM, those that ran for the others."""

ENERGY = {"lms": 0.317, "lms_mod": 0.323, "chained": 0.351}
"""Energy relative to naive UM, geometric means."""

LARGEST_32GB = {
    "GPT-2 XL": (3, 16),
    "GPT-2 L": (3, 24),
    "BERT Large": (14, 192),
    "BERT Base": (29, 256),
    "DLRM": (128 * _K, 512 * _K),
    "ResNet-200": (1536, 2304),
    "ResNet-152": (1536, 1792),
}
"""Largest batch on the 32 GB card with 512 GB of host memory: (LMS, DeepUM)."""

HOST_BYTES = {"32 GB": 512 << 30, "16 GB": 128 << 30}
"""Host memory of the machine with each card."""

SWAPPERS = ("vDNN", "AutoTM", "SwapAdvisor", "Capuchin", "Sentinel", "DeepUM")

LARGEST_16GB: dict[str, tuple[int | None, ...]] = {
    "ResNet-200 CIFAR-10": (4200, 5600, 5400, 5900, 5700, 6400),
    "BERT Large CoLA": (None, 27, 25, 27, 28, 64),
    "DCGAN": (1400, 2500, 2400, 2700, 2500, 3500),
    "MobileNet": (1200, 3200, 3100, 3200, 3200, 5100),
}
"""Largest batch on the 16 GB card with 128 GB of host memory, in the order of `SWAPPERS`.

The five rivals' figures are the Sentinel paper's, not rerun. None: it cannot run the model.
"""

GMEAN_16GB = {
    "vDNN": 1.98,
    "AutoTM": 3.56,
    "SwapAdvisor": 1.99,
    "Capuchin": 3.87,
    "Sentinel": 4.53,
    "DeepUM": 4.48,
    "Ideal": 8.73,
}
"""Geometric-mean speedups over naive UM on the 16 GB card."""

STAGES = ("prefetch", "pre_evict", "invalidate")

ABLATION = {"prefetch": 0.544, "pre_evict": 0.364, "invalidate": 0.333}
"""Time relative to naive UM as mechanisms are added, geometric means."""

ABLATION_ROWS = {
    ("GPT-2 XL", 3): (0.632, 0.373, 0.324),
    ("ResNet-152", 1280): (0.237, 0.138, 0.124),
    ("DLRM", 96 * _K): (0.998, 0.861, 0.835),
    ("BERT Base", 29): (0.964, 0.957, 0.957),
}
"""The same for the four rows of which it is known."""

DEPTH_BASE = 8

DEPTH = {16: 1.100, 32: 1.194, 64: 1.142, 128: 1.119, 256: 1.124}
"""Prefetch distance N -> speedup over N = 8, geometric mean."""

GEOMETRY_BASE = (2, 4, 128)
GEOMETRY_USED = (2, 4, 2048)

GEOMETRY = {
    (2, 4, 128): 1.0,
    (2, 8, 128): 1.002,
    (4, 4, 128): 1.019,
    (2, 4, 512): 1.022,
    (2, 8, 512): 1.027,
    (4, 4, 512): 1.022,
    (2, 4, 1024): 1.025,
    (2, 8, 1024): 1.021,
    (4, 4, 1024): 1.057,
    (2, 4, 2048): 1.058,
    (2, 8, 2048): 1.032,
    (4, 4, 2048): 1.055,
    (2, 4, 4096): 1.033,
}
"""(associativity, successors, rows) of the UM-block tables -> speedup over (2, 4, 128)."""

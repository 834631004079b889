# SPDX-License-Identifier: Apache-2.0
"""What every GPU memory mode needs of CUDA: the device, its launches, its faults."""

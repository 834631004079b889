# SPDX-License-Identifier: Apache-2.0
"""Making traces: from PyTorch programs without a GPU, and from other people's formats."""

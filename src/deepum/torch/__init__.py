# SPDX-License-Identifier: Apache-2.0
"""PyTorch's memory: its caching allocator over managed memory, and a feed of what it does."""

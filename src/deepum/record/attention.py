# SPDX-License-Identifier: Apache-2.0
"""Fused attention on the fake device.

A PyTorch that sees no GPU takes `scaled_dot_product_attention` apart into its mathematics, and the
scores of a whole sequence would stay in memory. A GPU never makes them. While recording, the
function is replaced by one that calls the memory-efficient operator, which has the same results and
keeps the same tensors for the backward pass as the other fused ones.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def fused(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for PyTorch's `scaled_dot_product_attention` (`original`)."""

    @functools.wraps(original)
    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        inputs = (query, key, value)
        if enable_gqa or any(x.dim() != 4 or x.device.type != "cuda" for x in inputs):
            return original(
                *inputs, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        bias = attn_mask
        if bias is not None:
            if bias.dtype is torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -torch.inf)
            bias = bias.expand(*query.shape[:3], key.shape[2])
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            *inputs, bias, keeps, dropout_p, is_causal, scale=scale
        )[0]

    return attention

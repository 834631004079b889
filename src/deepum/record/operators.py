# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's operators do to memory, where their schema does not say it.

The tracer asks the schema of an operator which arguments it writes. The tables here hold the rest:
which operators launch nothing, which overwrite without reading, which look rows up at random, and
which consist of several kernels.
"""

from __future__ import annotations

NO_KERNEL = frozenset(
    {
        "aten::_unsafe_view",
        "aten::_reshape_alias",
        "aten::alias",
        "aten::detach",
        "aten::empty",
        "aten::empty_like",
        "aten::empty_permuted",
        "aten::empty_strided",
        "aten::lift",
        "aten::lift_fresh",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::record_stream",
        "aten::resize_",
        "aten::set_",
        "aten::_coalesced_",
        "aten::_sparse_coo_tensor_with_dims",
        "aten::_sparse_coo_tensor_with_dims_and_tensors",
        "aten::_values",
        "aten::_indices",
        "aten::values",
        "aten::indices",
    }
)
"""Operators that only make a tensor, or a view of one."""

OVERWRITES = frozenset(
    {
        "aten::bernoulli_",
        "aten::copy_",
        "aten::exponential_",
        "aten::fill_",
        "aten::log_normal_",
        "aten::normal_",
        "aten::random_",
        "aten::uniform_",
        "aten::zero_",
    }
)
"""In-place operators whose result does not depend on what was there."""

SHAPE_ONLY = frozenset(
    {
        "aten::full_like",
        "aten::new_full",
        "aten::new_ones",
        "aten::new_zeros",
        "aten::ones_like",
        "aten::rand_like",
        "aten::randint_like",
        "aten::randn_like",
        "aten::zeros_like",
    }
)
"""Operators that take a tensor for its shape and do not read it."""

RANDOM = frozenset({"aten::rand", "aten::randn", "aten::randint", "aten::randperm"})
"""Operators whose result, made inside a step, is an input of the step."""

STATISTICS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm"})
"""Operators that update arguments 3 and 4, the running statistics, although the schema does not
say so; only in training, which argument 5 tells."""

LOOKUPS = {
    # operator: (argument with the table, argument whose elements are the rows looked up)
    "aten::embedding": (0, 1),
    "aten::_embedding_bag": (0, 1),
    "aten::_embedding_bag_forward_only": (0, 1),
    "aten::index_select": (0, 2),
    "aten::gather": (0, 2),
    "aten::nll_loss_forward": (0, 1),
    "aten::nll_loss2d_forward": (0, 1),
    "aten::index_add_": (0, 2),
    "aten::scatter_": (0, 2),
    "aten::scatter_add_": (0, 2),
}
"""Operators that read, or write, rows of one argument at random."""

SCATTERS = {
    # operator: argument whose elements are the rows written
    "aten::embedding_dense_backward": 1,
    "aten::_embedding_bag_backward": 1,
    "aten::_embedding_bag_dense_backward": 1,
    "aten::nll_loss_backward": 2,
    "aten::nll_loss2d_backward": 2,
}
"""Operators that clear their dense result and then write rows of it at random: two kernels."""

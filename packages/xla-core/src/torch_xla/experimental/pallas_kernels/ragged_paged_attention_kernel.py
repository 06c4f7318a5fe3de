"""Attention of sequences of different lengths, keys and values in pages of their own."""

from xla_core.features.kernels.jax_functions import MIN_BLOCK_SIZE, check_kernel_input, ragged_paged_attention
from xla_core.ops.nn.attention.scores import DEFAULT_MASK_VALUE

__all__ = ["DEFAULT_MASK_VALUE", "MIN_BLOCK_SIZE", "check_kernel_input", "ragged_paged_attention"]

"""Attention of several queries a sequence over pages."""

from xla_core.features.kernels.jax_functions import MIN_BLOCK_SIZE, paged_attention
from xla_core.ops.nn.attention.scores import DEFAULT_MASK_VALUE

__all__ = ["DEFAULT_MASK_VALUE", "MIN_BLOCK_SIZE", "paged_attention"]

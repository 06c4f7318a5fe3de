"""Pictures of shardings."""

from __future__ import annotations

from xla_spmd.debugging import RICH_ENABLED, visualize_sharding, visualize_tensor_sharding
from xla_spmd.jax_use import maybe_get_jax, maybe_get_torchax, requires_jax

__all__ = ["RICH_ENABLED", "maybe_get_jax", "maybe_get_torchax", "requires_jax", "visualize_sharding", "visualize_tensor_sharding"]

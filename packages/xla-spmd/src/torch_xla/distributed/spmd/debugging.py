"""Pictures of shardings."""

from torch_xla._internal.jax_workarounds import maybe_get_jax, maybe_get_torchax, requires_jax
from xla_spmd.debugging import RICH_ENABLED, visualize_sharding, visualize_tensor_sharding

__all__ = ["RICH_ENABLED", "maybe_get_jax", "maybe_get_torchax", "requires_jax", "visualize_sharding", "visualize_tensor_sharding"]

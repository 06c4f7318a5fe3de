"""Pictures of shardings."""

from __future__ import annotations

from xla_spmd.debugging import visualize_sharding, visualize_tensor_sharding

__all__ = ["visualize_sharding", "visualize_tensor_sharding"]

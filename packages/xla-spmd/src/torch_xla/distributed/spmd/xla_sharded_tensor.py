"""Tensors that show their sharding, and the shard of each device."""

from __future__ import annotations

from xla_spmd.local_shards import XLAShard
from xla_spmd.tensor import XLAShardedTensor, no_dispatch

__all__ = ["XLAShard", "XLAShardedTensor", "no_dispatch"]

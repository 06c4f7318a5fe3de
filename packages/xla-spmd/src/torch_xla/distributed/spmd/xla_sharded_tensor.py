"""Tensors that show their sharding, and the shard of each device."""

from xla_spmd.local_shards import XLAShard
from xla_spmd.tensor import XLAShardedTensor, no_dispatch

__all__ = ["XLAShard", "XLAShardedTensor", "no_dispatch"]

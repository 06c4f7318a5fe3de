"""The old name of `torch_xla.distributed.spmd.xla_sharded_tensor`."""

from __future__ import annotations

from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor

__all__ = ["XLAShard", "XLAShardedTensor"]

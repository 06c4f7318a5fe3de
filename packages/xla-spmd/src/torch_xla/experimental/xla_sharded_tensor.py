"""The old name of `torch_xla.distributed.spmd.xla_sharded_tensor`."""

from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor

__all__ = ["XLAShard", "XLAShardedTensor"]

"""FSDP by sharding parameters over a mesh axis (FSDPv2)."""

from xla_spmd.fully_sharded import SpmdFullyShardedDataParallel

__all__ = ["SpmdFullyShardedDataParallel"]

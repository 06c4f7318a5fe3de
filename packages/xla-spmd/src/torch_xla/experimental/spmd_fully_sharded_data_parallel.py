"""FSDP by sharding parameters over a mesh axis (FSDPv2)."""

from __future__ import annotations

from xla_spmd.fully_sharded import SpmdFullyShardedDataParallel

__all__ = ["SpmdFullyShardedDataParallel"]

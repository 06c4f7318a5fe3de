"""Modules whose parameters are sharded among the replicas (FSDP)."""

from xla_distributed.fsdp.checkpointing import checkpoint_module
from xla_distributed.fsdp.consolidation import consolidate_sharded_model_checkpoints, consolidate_sharded_state_dicts
from xla_distributed.fsdp.wrapper import XlaFullyShardedDataParallel

__all__ = ["XlaFullyShardedDataParallel", "checkpoint_module", "consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]

"""Whole state dicts from sharded ones."""

from xla_distributed.fsdp.consolidation import consolidate_sharded_model_checkpoints, consolidate_sharded_state_dicts

__all__ = ["consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]

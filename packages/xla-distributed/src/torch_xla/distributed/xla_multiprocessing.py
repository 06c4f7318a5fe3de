"""Start one process for each device (alias `xmp`)."""

from __future__ import annotations

from xla_distributed.launch import spawn
from xla_distributed.replicas import MpModelWrapper, MpSerialExecutor, create_optimized_replica_groups

__all__ = ["MpModelWrapper", "MpSerialExecutor", "create_optimized_replica_groups", "spawn"]

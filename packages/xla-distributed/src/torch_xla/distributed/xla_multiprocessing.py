"""Start one process for each device (alias `xmp`)."""

from xla_distributed.job.launch import spawn
from xla_distributed.job.replicas import MpModelWrapper, MpSerialExecutor, create_optimized_replica_groups

__all__ = ["MpModelWrapper", "MpSerialExecutor", "create_optimized_replica_groups", "spawn"]

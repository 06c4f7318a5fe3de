"""Checkpoints of divided states for `torch.distributed.checkpoint`, and of a run's steps; usual alias `xc`."""

from xla_serialization.manager import CheckpointManager
from xla_serialization.planners import SPMDLoadPlanner, SPMDSavePlanner
from xla_serialization.priming import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]

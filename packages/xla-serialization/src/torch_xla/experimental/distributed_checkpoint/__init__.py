"""Checkpoints of sharded states for `torch.distributed.checkpoint`, and of a run's steps; usual alias `xc`."""

from xla_serialization.torch_formats.dcp_planners import SPMDLoadPlanner, SPMDSavePlanner
from xla_serialization.training.manager import CheckpointManager
from xla_serialization.training.optimizer_state import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]

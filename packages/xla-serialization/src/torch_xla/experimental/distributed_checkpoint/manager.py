"""The steps of a run, saved beside training."""

from xla_serialization.training.manager import CheckpointManager

__all__ = ["CheckpointManager"]

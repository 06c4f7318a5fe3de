"""Trade memory for a second forward pass."""

from __future__ import annotations

from xla_core.compat.checkpoint import CheckpointFunction, checkpoint

__all__ = ["CheckpointFunction", "checkpoint"]

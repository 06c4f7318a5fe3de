"""Keep only the checkpoints that carry a tag."""

from xla_core.legacy.checkpoint_tagger import CheckpointTagger

__all__ = ["CheckpointTagger"]

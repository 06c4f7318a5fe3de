"""Steps of sync-free optimizers, as functions."""

from xla_core.features.amp.steps import adam_step, sgd_step

__all__ = ["adam_step", "sgd_step"]

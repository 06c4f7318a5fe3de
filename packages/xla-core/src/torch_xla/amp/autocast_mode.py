"""Mixed precision, by the name of the module that holds it."""

from xla_core.features.amp.autocast import autocast

__all__ = ["autocast"]

"""Optimizers that skip an update without reading anything back."""

from xla_core.features.amp.syncfree import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]

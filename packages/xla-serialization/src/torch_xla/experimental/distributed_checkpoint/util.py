"""Optimizer state to restore into."""

from xla_serialization.training.optimizer_state import prime_optimizer

__all__ = ["prime_optimizer"]

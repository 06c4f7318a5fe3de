"""GRU layers."""

from xla_core.features.kernels.gru import GRU

__all__ = ["GRU"]

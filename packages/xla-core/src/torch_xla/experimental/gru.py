"""GRU layers."""

from __future__ import annotations

from xla_core.features.kernels.gru import GRU

__all__ = [
    "GRU",
]

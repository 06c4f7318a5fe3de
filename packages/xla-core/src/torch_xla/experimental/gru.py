"""GRU layers."""

from __future__ import annotations

from xla_core.kernels.gru import (
    GRU,
)

__all__ = [
    "GRU",
]

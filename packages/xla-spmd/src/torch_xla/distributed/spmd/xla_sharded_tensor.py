"""Tensors that show how they lie, and what each device holds of them."""

from __future__ import annotations

from xla_spmd.held import XLAShard
from xla_spmd.tensor import XLAShardedTensor

__all__ = ["XLAShard", "XLAShardedTensor"]

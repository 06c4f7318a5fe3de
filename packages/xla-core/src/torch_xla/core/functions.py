"""Differentiable collectives (alias `xf`), which xla-distributed implements; one replica needs no other package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xla_core.facade.siblings import attribute as _attribute

# Implemented by siblings, found by `__getattr__`.
AllGather: type[Any]
AllReduce: type[Any]
AllReduceSumLayer: type[Any]
SyncBatchNorm: type[Any]
all_gather: Callable[..., Any]
all_gather_summed: Callable[..., Any]
all_reduce: Callable[..., Any]
distributed_mm: Callable[..., Any]

__all__ = [
    "AllGather",
    "AllReduce",
    "AllReduceSumLayer",
    "SyncBatchNorm",
    "all_gather",
    "all_gather_summed",
    "all_reduce",
    "distributed_mm",
]


def __getattr__(name: str) -> Any:
    return _attribute(__name__, name)

"""The backend of collectives (`backends.CollectiveBackend`) for one replica on its own, which needs no other distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xla_core.api.reductions import ReduceOp
from xla_core.api.replica_groups import Groups
from xla_core.base import config

others: Mapping[str, Callable[..., Any]] = {}


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor.clone() if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def all_reduce(op: ReduceOp, tensors: list[torch.Tensor], scale: float, groups: Groups) -> list[torch.Tensor]:
    """The inputs themselves; the scale counts only under `XLA_ALWAYS_ALLREDUCE`."""
    return [_scaled(tensor, scale) for tensor in tensors] if config.ALWAYS_ALLREDUCE.get() else tensors


def all_gather(tensors: list[torch.Tensor], dim: int, groups: Groups) -> list[torch.Tensor]:
    """Copies of the inputs."""
    return [tensor.clone() for tensor in tensors]


def reduce_scatter(op: ReduceOp, tensors: list[torch.Tensor], scale: float, dim: int, groups: Groups) -> list[torch.Tensor]:
    """The scaled inputs; there is one shard."""
    return [_scaled(tensor, scale) for tensor in tensors]


def all_to_all(tensor: torch.Tensor, split_dim: int, concat_dim: int, groups: Groups) -> torch.Tensor:
    """A copy of the input; there is one part."""
    return tensor.clone()


def broadcast(tensors: list[torch.Tensor], position: int, groups: Groups) -> list[torch.Tensor]:
    """The inputs themselves."""
    return tensors


def permute(tensor: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """A copy of the input if it is sent to itself, else zeros."""
    return tensor.clone() if pairs else torch.zeros_like(tensor)


def exchange(payload: bytes, tag: str | None) -> list[bytes]:
    """The payload alone."""
    return [payload]


def fail(error: BaseException, doing: str) -> None:
    """Nobody waits."""

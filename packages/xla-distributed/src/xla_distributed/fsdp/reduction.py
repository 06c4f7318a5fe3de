"""Reduce gradients and keep this replica's shard, in buckets; and stand-ins for collectives that send nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import ReplicaGroups
from xla_core.abi.job import world_size

Taker = Callable[[torch.Tensor], None]
_MIB = 1 << 20


class BucketizedReduceScatter:
    """Sums over a group and scatters along dimension 0, tensors of up to `bucket_size_mb` MiB in one collective.

    shard_count: the size of the group. bucket_size_mb 0: each tensor goes at once and by itself. groups, pin_layout: as of
    `xm.reduce_scatter`.
    """

    def __init__(self, bucket_size_mb: float, shard_count: int, groups: ReplicaGroups, pin_layout: bool) -> None:
        self._cap = int(bucket_size_mb * _MIB)
        self._shard_count = shard_count
        self._groups = groups
        self._pin_layout = pin_layout
        self._waiting: list[tuple[torch.Tensor, Taker]] = []
        self._size = 0

    def __call__(self, input: torch.Tensor, callback: Taker) -> None:
        """Take a tensor whose dimension 0 the group's size divides; `callback` is given this replica's shard of the sum, now or later."""
        size = input.numel() * input.element_size()
        if self._size + size > self._cap:
            self.flush()
        self._waiting.append((input, callback))
        self._size += size
        if self._size >= self._cap:
            self.flush()

    def flush(self) -> None:
        """Send the tensors that wait."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if len(waiting) == 1:
            (tensor, callback) = waiting[0]
            callback(xm.reduce_scatter("sum", tensor, 1.0, 0, self._shard_count, self._groups, pin_layout=self._pin_layout))
        elif waiting:
            tensors = [tensor for tensor, _ in waiting]
            shards = xm.reduce_scatter("sum", tensors, 1.0, 0, self._shard_count, self._groups, pin_layout=False)
            for (_, callback), shard in zip(waiting, shards, strict=True):
                callback(shard)


class DummyReduceScatter:
    """As BucketizedReduceScatter, but sends nothing and gives the first part of the replica's own tensor: to measure what sending costs."""

    def __init__(self, shard_count: int) -> None:
        self._shard_count = shard_count

    def __call__(self, input: torch.Tensor, callback: Taker) -> None:
        """Give `callback` the part."""
        callback(input.narrow(0, 0, input.size(0) // self._shard_count).clone())

    def flush(self) -> None:
        """Nothing waits."""


def dummy_all_gather(value: torch.Tensor, dim: int = 0, groups: ReplicaGroups = None) -> torch.Tensor:
    """A tensor of the shape that `xm.all_gather` gives, of this replica's own values: sends nothing."""
    count = len(groups[0]) if groups else world_size()
    repeats = [1] * value.dim()
    repeats[dim] = count
    return value.repeat(repeats)


def dummy_all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: ReplicaGroups = None) -> Any:
    """As `xm.all_reduce` among replicas that all have zeros: this replica's own values, scaled. Sends nothing."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    for tensor in inputs:
        tensor.mul_(scale)
    return inputs

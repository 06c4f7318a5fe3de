"""How one parameter is sharded among the members of a group: flat, or along dimension 0, padded with zeros at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ParameterSharding:
    """The sharding of a tensor of this shape among `members`; a tensor without dimensions is always sharded flat.

    on_dim_0: shards are runs of rows and keep the other dimensions. Otherwise they are parts of the flat tensor. All have one size.
    """

    shape: tuple[int, ...]
    members: int
    on_dim_0: bool

    def padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """All shards, one after the other along dimension 0."""
        if not self._by_rows:
            return torch.nn.functional.pad(tensor.reshape(-1), (0, -tensor.numel() % self.members))
        padding = -tensor.size(0) % self.members
        return torch.nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) if padding else tensor

    def shard(self, tensor: torch.Tensor, position: int) -> torch.Tensor:
        """The shard of the member at `place`, in memory of its own."""
        padded = self.padded(tensor)
        size = padded.size(0) // self.members
        return padded.narrow(0, position * size, size).clone()

    def unsharded(self, padded: torch.Tensor) -> torch.Tensor:
        """The tensor whose shards `padded` holds: a view of it."""
        if self._by_rows:
            return padded.narrow(0, 0, self.shape[0])
        return padded.narrow(0, 0, math.prod(self.shape)).view(self.shape)

    @property
    def _by_rows(self) -> bool:
        return self.on_dim_0 and bool(self.shape)

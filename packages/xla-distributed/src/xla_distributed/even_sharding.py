"""Tensors sharded evenly among the members of a group, one shard each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class EvenSharding:
    """The sharding of a tensor of this shape: along dimension 0 if `members` divides it, else flat, padded with zeros at its end.

    place: of this replica in its group.
    """

    shape: tuple[int, ...]
    members: int
    place: int

    def padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """All shards of the tensor, one after the other along dimension 0."""
        if self._divides:
            return tensor
        return torch.nn.functional.pad(tensor.reshape(-1), (0, -tensor.numel() % self.members))

    def shard(self, tensor: torch.Tensor) -> torch.Tensor:
        """This replica's shard of the tensor; may be a view of it."""
        padded = self.padded(tensor)
        size = padded.size(0) // self.members
        return padded.narrow(0, self.place * size, size)

    def unsharded(self, padded: torch.Tensor) -> torch.Tensor:
        """The tensor whose shards `padded` holds, one after the other."""
        return padded if self._divides else padded.narrow(0, 0, math.prod(self.shape)).reshape(self.shape)

    @property
    def _divides(self) -> bool:
        return bool(self.shape) and self.shape[0] % self.members == 0


def updated_master(master: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """The master values, or the parameter's where these are not the rounded master values: there other code has written to it."""
    if master.dtype == shard.dtype:
        return shard
    # As bits: XLA may leave out the rounding of floats that it compares.
    bits = _BITS[shard.element_size()]
    same = master.to(shard.dtype).view(bits) == shard.view(bits)
    return torch.where(same, master, shard.to(master.dtype))

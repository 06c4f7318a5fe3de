"""Tensors cut into equal parts among the members of a group, one part each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of a tensor of this shape: along dimension 0 if `members` divides it, else flat, with zeros after its last element.

    place: of this replica in its group.
    """

    shape: tuple[int, ...]
    members: int
    place: int

    def line(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as all parts in line along dimension 0."""
        if self._divided:
            return tensor
        return torch.nn.functional.pad(tensor.reshape(-1), (0, -tensor.numel() % self.members))

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This replica's part of the tensor; may be a view of it."""
        line = self.line(tensor)
        size = line.size(0) // self.members
        return line.narrow(0, self.place * size, size)

    def joined(self, line: torch.Tensor) -> torch.Tensor:
        """The tensor of which `line` has all parts."""
        return line if self._divided else line.narrow(0, 0, math.prod(self.shape)).reshape(self.shape)

    @property
    def _divided(self) -> bool:
        return bool(self.shape) and self.shape[0] % self.members == 0


def followed(master: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The master values, but where the part of the parameter is no longer the master rounded: there somebody else wrote, and it counts."""
    if master.dtype == part.dtype:
        return part
    # As bits: XLA may leave out the rounding of floats that it compares.
    bits = _BITS[part.element_size()]
    same = master.to(part.dtype).view(bits) == part.view(bits)
    return torch.where(same, master, part.to(master.dtype))

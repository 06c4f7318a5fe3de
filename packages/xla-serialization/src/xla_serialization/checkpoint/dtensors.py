"""DTensors, of which each process of a mesh has a block: find this process's block and its offset."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from xla_serialization.format.manifest import Shape


@dataclass(frozen=True)
class LocalBlock:
    """The block of a DTensor that this process has: its first element is at `offset`."""

    offset: Shape
    data: torch.Tensor


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # slow to import, and without it there are no DTensors
    return module is not None and isinstance(value, module.DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a DTensor; any other tensor as it is."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def local_block(tensor: Any) -> LocalBlock | None:
    """This process's block of a DTensor; None if it has no part of it. Raises ValueError for placements that give no blocks."""
    from torch.distributed.tensor import Shard

    strange = [placement for placement in tensor.placements if not (placement.is_replicate() or type(placement) is Shard)]
    if strange:
        raise ValueError(f"{strange[0]} leaves this process no block of the tensor: redistribute it to Shard and Replicate")
    if tensor.device_mesh.get_coordinate() is None:
        return None
    data = tensor.to_local()
    if not data.numel() and tensor.numel():
        return None
    (chunk,) = tensor.__create_chunk_list__()
    return LocalBlock(tuple(chunk.offsets), data)

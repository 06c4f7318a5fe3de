"""Which parts of a tensor the devices of this process hold, and how to write them there."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from xla_serialization.core import abi

Spans = tuple[tuple[int, int], ...]
"""A block of a tensor: start and stop for each dimension."""


def held(tensor: torch.Tensor) -> list[Spans]:
    """The parts of a tensor on `xla` that the devices of this process hold, in their order; of one that is not divided, once all of it."""
    layout = abi.layout(tensor)
    if layout is None:
        return [tuple((0, size) for size in tensor.shape)]
    shape = tuple(tensor.shape)
    indices = layout.stored(shape).sharding.devices_indices_map(shape)
    return [tuple(one.indices(size)[:2] for one, size in zip(indices[device], shape, strict=True)) for device in abi.client().devices]


def place(tensor: torch.Tensor, parts: Mapping[Spans, torch.Tensor]) -> None:
    """Write into a tensor on `xla` the parts that this process holds, CPU tensors of its dtype."""
    layout = abi.layout(tensor)
    ordered = [parts[spans] for spans in held(tensor)]
    with torch.no_grad():
        if layout is None:
            tensor.copy_(ordered[0])
        else:
            shape = tuple(tensor.shape)
            tensor.copy_(abi.tensor_from_parts(ordered, layout.stored(shape).sharding, shape))

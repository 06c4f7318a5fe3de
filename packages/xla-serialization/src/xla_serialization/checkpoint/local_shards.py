"""The shards of a tensor on the devices of this process: their places in the tensor, and writing them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from xla_serialization.core import process, sharding

Spans = tuple[tuple[int, int], ...]
"""A block of a tensor: start and stop for each dimension."""


def local_spans(tensor: torch.Tensor) -> list[Spans]:
    """The places of a tensor's shards on the devices of this process, in their order; one place, all of it, if it is not sharded."""
    found = sharding.sharding_of(tensor)
    if found is None:
        return [tuple((0, size) for size in tensor.shape)]
    shape = tuple(tensor.shape)
    indices = found.indices(shape)
    return [tuple((one.start, one.stop) for one in indices[device]) for device in process.client().devices]


def write_local_shards(tensor: torch.Tensor, shards: Mapping[Spans, torch.Tensor]) -> None:
    """Write into a tensor on `xla` its shards on the devices of this process, CPU tensors of its dtype."""
    found = sharding.sharding_of(tensor)
    ordered = [shards[spans] for spans in local_spans(tensor)]
    with torch.no_grad():
        if found is None:
            tensor.copy_(ordered[0])
        else:
            tensor.copy_(sharding.tensor_from_shards(ordered, found.named, tuple(tensor.shape)))

"""The shards of a tensor on the devices of this process: find their spans, and write them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from xla_serialization.core import process, sharding

Spans = tuple[tuple[int, int], ...]
"""A block of a tensor: start and stop for each dimension."""


def local_spans(tensor: torch.Tensor) -> list[Spans]:
    """List the spans of a tensor's shards by device of this process; the spans of the whole tensor, once, if it is not sharded."""
    tensor_sharding = sharding.sharding_of(tensor)
    if tensor_sharding is None:
        return [tuple((0, size) for size in tensor.shape)]
    shape = tuple(tensor.shape)
    indices = tensor_sharding.indices(shape)
    return [tuple((span.start, span.stop) for span in indices[device]) for device in process.client().devices]


def write_local_shards(tensor: torch.Tensor, shards: Mapping[Spans, torch.Tensor]) -> None:
    """Write CPU tensors of the same dtype into the shards of a tensor on `xla` that are on the devices of this process."""
    tensor_sharding = sharding.sharding_of(tensor)
    ordered = [shards[spans] for spans in local_spans(tensor)]
    with torch.no_grad():
        if tensor_sharding is None:
            tensor.copy_(ordered[0])
        else:
            tensor.copy_(sharding.tensor_from_shards(ordered, tensor_sharding.named, tuple(tensor.shape)))

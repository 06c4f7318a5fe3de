"""Shards of a tensor: their shape, and the indices that each device holds. No data here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from xla_spmd.errors import ShardingError
from xla_spmd.op_sharding import OpSharding, ShardingType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Which elements of a tensor one device holds.

    indices: a slice(start, stop, 1) per dimension of the tensor without padding; `...` if it holds all of it.
    replica_id: which copy of it; where all devices hold all of it, the device's id.
    """

    indices: list[slice] | EllipsisType
    replica_id: int


def tile_counts(sharding: OpSharding, rank: int) -> Shape:
    """Number of tiles along each dimension of a tensor of this rank.

    Raises ShardingError if the sharding is for another rank, or manual: then only the program knows what the shards are.
    """
    sharding_type = sharding.effective_type
    if sharding_type is ShardingType.MANUAL:
        raise ShardingError("a manual sharding does not say at which indices of a tensor its shards are: use disable_manual_sharding first")
    if sharding_type is ShardingType.REPLICATED:
        return (1,) * rank
    if len(sharding.dims) != rank:
        raise ShardingError(f"the sharding {sharding} is for {len(sharding.dims)} dimensions, the tensor has {rank}")
    return sharding.dims


def shard_shape(sharding: OpSharding, shape: Sequence[int]) -> Shape:
    """Shape of each device's shard of a tensor of this shape, padding included. Raises as `tile_counts`."""
    return tuple(-(-size // tiles) for size, tiles in zip(shape, tile_counts(sharding, len(shape)), strict=True))


def shard_indices(sharding: OpSharding, shape: Sequence[int], devices: Sequence[int]) -> list[ShardIndex]:
    """The shards of a tensor of this shape that these devices (by id) hold, in the order given.

    Raises ShardingError as `tile_counts`, and for a device that is not of the sharding.
    """
    shards = shard_shape(sharding, shape)
    if sharding.effective_type is ShardingType.REPLICATED:
        return [ShardIndex(..., int(device)) for device in devices]
    ids = sharding.tiles.ravel()
    order = np.argsort(ids)
    positions = order[np.searchsorted(ids, devices, sorter=order).clip(max=len(ids) - 1)]
    unknown = np.asarray(devices)[ids[positions] != devices].tolist()
    if unknown:
        raise ShardingError(f"devices {unknown} are not of the sharding {sharding}")
    *tiles, replicas = np.unravel_index(positions, sharding.tiles.shape)
    starts = [np.minimum(tile * shard, size) for tile, shard, size in zip(tiles, shards, shape, strict=True)]
    columns = [
        [slice(start, stop, 1) for start, stop in zip(begin.tolist(), np.minimum(begin + shard, size).tolist(), strict=True)]
        for begin, shard, size in zip(starts, shards, shape, strict=True)
    ]
    return [ShardIndex(list(indices), replica) for *indices, replica in zip(*columns, replicas.tolist(), strict=True)]

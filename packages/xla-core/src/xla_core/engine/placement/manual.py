"""Manual regions, which are not partitioned (SPMD): from `enter` to `leave` the user's code sees one device's shard of the data.

A manual value is an array of all shards, stacked along a new first dimension, each on its device; its Aval describes one shard. So it can
be computed in the middle of a region, and an operation over it runs on each device separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.placement.sharding import Sharding, shard_count

REPLICA_AXIS = "replica"  # of the mesh over which replicas, or the devices of a manual region, run: lowerings of collectives name it
_ENTER, _LEAVE = "xla.enter_manual", "xla.leave_manual"
_REPLICATED, _SHARDED = PartitionSpec(), PartitionSpec(REPLICA_AXIS)


def shard_shape(shape: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """The shape of one device's shard; the last shards are padded."""
    return tuple(math.ceil(size / shards) for size, shards in zip(shape, _shard_counts(shape, sharding), strict=True))


def _shard_counts(shape: Sequence[int], sharding: Sharding) -> list[int]:
    spec = (*sharding.named.spec, *[None] * (len(shape) - len(sharding.named.spec)))
    return [shard_count(sharding.named.mesh.shape, entry) for entry in spec]


def enter(aval: Aval, sharding: Sharding) -> Signature:
    """The operation that gives each device its shard of a global array; zeros pad dimensions that are not evenly divisible."""
    shard = aval_of(shard_shape(aval.shape, sharding), aval.dtype, manual=True)

    def lower(context: Any, array: jax.Array, sharding: Sharding) -> jax.Array:
        sizes = zip(shard.shape, _shard_counts(aval.shape, sharding), aval.shape, strict=True)
        padding = [(0, size * shards - full, 0) for size, shards, full in sizes]
        if any(end for _, end, _ in padding):
            array = jax.lax.pad(array, jax.numpy.zeros((), array.dtype), padding)
        named = sharding.named
        stacked: jax.Array = jax.shard_map(
            lambda x: x[None], mesh=named.mesh, in_specs=named.spec, out_specs=PartitionSpec(named.mesh.axis_names), check_vma=False
        )(array)
        return stacked

    return Signature(_ENTER, lower, (PLACEHOLDER,), {"sharding": sharding}, (shard,))


def leave(shard: Aval, sharding: Sharding, shape: tuple[int, ...]) -> Signature:
    """The operation that joins the devices' shards to a global array of `shape`; it takes one of equal copies."""

    def lower(context: Any, shards: jax.Array, sharding: Sharding, shape: tuple[int, ...]) -> jax.Array:
        named = sharding.named
        array: jax.Array = jax.shard_map(
            lambda x: x[0], mesh=named.mesh, in_specs=PartitionSpec(named.mesh.axis_names), out_specs=named.spec, check_vma=False
        )(shards)
        return jax.lax.slice(array, [0] * len(shape), shape)

    return Signature(_LEAVE, lower, (PLACEHOLDER,), {"sharding": sharding, "shape": shape}, (aval_of(shape, shard.dtype),))


def is_boundary(signature: Signature) -> bool:
    """Whether an operation enters or leaves a region."""
    return signature.name in (_ENTER, _LEAVE)


def is_manual(aval: Aval | None) -> bool:
    """Whether a value is manual."""
    return aval is not None and aval.manual


def on_each_device(function: Callable[[list[Any]], list[Any]], operands: list[Any], manual: list[bool], mesh: Mesh) -> list[Any]:
    """Call `function` on each device of a mesh, with the device's shard of manual operands and with all of the others.

    manual: for each operand, whether it is manual. mesh: with the axis REPLICA_AXIS.
    """
    traced = [index for index, operand in enumerate(operands) if isinstance(operand, jax.Array)]
    missing: list[int] = []

    def on_one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        local = list(operands)
        for index, array in zip(traced, arrays, strict=True):
            local[index] = array[0] if manual[index] else array
        results = function(local)
        missing.extend(position for position, result in enumerate(results) if result is None)
        return tuple(result[None] for result in results if result is not None)

    specs = tuple(_SHARDED if manual[index] else _REPLICATED for index in traced)
    mapped = jax.shard_map(on_one, mesh=mesh, in_specs=specs, out_specs=_SHARDED, check_vma=False)
    stacked: list[Any] = list(mapped(*[operands[index] for index in traced]))
    for position in missing:
        stacked.insert(position, None)
    return stacked

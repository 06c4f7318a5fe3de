"""Manual regions, which are not partitioned (SPMD): between two operations the user's code sees one device's shard of the data.

Such a value is an array of all shards, one behind the other along a new first dimension, each on its device; its Aval describes one
shard. So it can become real in the middle of a region, and an operation over it runs on each device by itself.
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
    """The shape of one device's shard; the last ones are padded."""
    return tuple(math.ceil(size / shards) for size, shards in zip(shape, _shard_counts(shape, sharding), strict=True))


def _shard_counts(shape: Sequence[int], sharding: Sharding) -> list[int]:
    spec = (*sharding.named.spec, *[None] * (len(shape) - len(sharding.named.spec)))
    return [shard_count(sharding.named.mesh.shape, entry) for entry in spec]


def enter(aval: Aval, sharding: Sharding) -> Signature:
    """The operation that gives each device its shard of a global array: zeros pad what is not evenly divisible."""
    shard = aval_of(shard_shape(aval.shape, sharding), aval.dtype, manual=True)

    def lower(context: Any, whole: jax.Array, sharding: Sharding) -> jax.Array:
        sizes = zip(shard.shape, _shard_counts(aval.shape, sharding), aval.shape, strict=True)
        padding = [(0, size * shards - full, 0) for size, shards, full in sizes]
        if any(end for _, end, _ in padding):
            whole = jax.lax.pad(whole, jax.numpy.zeros((), whole.dtype), padding)
        named = sharding.named
        made: jax.Array = jax.shard_map(
            lambda x: x[None], mesh=named.mesh, in_specs=named.spec, out_specs=PartitionSpec(named.mesh.axis_names), check_vma=False
        )(whole)
        return made

    return Signature(_ENTER, lower, (PLACEHOLDER,), {"sharding": sharding}, (shard,))


def leave(shard: Aval, sharding: Sharding, shape: tuple[int, ...]) -> Signature:
    """The operation that makes a global array of `shape` of the devices' shards; of equal copies it takes one."""

    def lower(context: Any, shards: jax.Array, sharding: Sharding, shape: tuple[int, ...]) -> jax.Array:
        named = sharding.named
        whole: jax.Array = jax.shard_map(
            lambda x: x[0], mesh=named.mesh, in_specs=PartitionSpec(named.mesh.axis_names), out_specs=named.spec, check_vma=False
        )(shards)
        return jax.lax.slice(whole, [0] * len(shape), shape)

    return Signature(_LEAVE, lower, (PLACEHOLDER,), {"sharding": sharding, "shape": shape}, (aval_of(shape, shard.dtype),))


def is_boundary(signature: Signature) -> bool:
    """Whether an operation goes into or out of a region."""
    return signature.name in (_ENTER, _LEAVE)


def is_manual(aval: Aval | None) -> bool:
    """Whether a value is a manual one."""
    return aval is not None and aval.manual


def on_each_device(function: Callable[[list[Any]], list[Any]], operands: list[Any], manual: list[bool], mesh: Mesh) -> list[Any]:
    """`function` on each device of a mesh, over its shard of the operands that are manual values and over the whole of the others.

    mesh: with the axis REPLICA_AXIS.
    """
    traced = [number for number, operand in enumerate(operands) if isinstance(operand, jax.Array)]
    missing: list[int] = []

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        local = list(operands)
        for number, array in zip(traced, arrays, strict=True):
            local[number] = array[0] if manual[number] else array
        results = function(local)
        missing.extend(place for place, result in enumerate(results) if result is None)
        return tuple(result[None] for result in results if result is not None)

    specs = tuple(_SHARDED if manual[number] else _REPLICATED for number in traced)
    mapped = jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=_SHARDED, check_vma=False)
    made: list[Any] = list(mapped(*[operands[number] for number in traced]))
    for place in missing:
        made.insert(place, None)
    return made

"""Regions that are not partitioned (SPMD): between two operations the user's code sees one device's part of the data.

Such a value is an array of all parts, one behind the other along a new first dimension, each on its device; its Aval tells of one
part. So it can become real in the middle of a region, and an operation over it runs on each device by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from xla_core.errors import internal
from xla_core.ir.aval import Aval, aval_of
from xla_core.ir.graph import aval_at
from xla_core.ir.layout import Layout, parts_of, spans_devices
from xla_core.ir.signature import HOLE, Signature
from xla_core.ir.tape import Entry

REPLICA_AXIS = "replica"  # of the mesh over which replicas, or the devices of a manual region, run: lowerings of collectives name it
_ENTER, _LEAVE = "xla.enter_manual", "xla.leave_manual"
_WHOLE, _PARTS = PartitionSpec(), PartitionSpec(REPLICA_AXIS)


def form_of_parts(home: Sharding) -> NamedSharding:
    """The sharding of a value's parts over the devices of a program. Raises InternalError outside SPMD mode."""
    internal(spans_devices(home), lambda: f"parts of a value lie over all devices, not on {home}")
    devices: Any = home.mesh.devices  # type: ignore[attr-defined]
    return NamedSharding(Mesh(devices.reshape(-1), (REPLICA_AXIS,)), _PARTS)


def part_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The shape of one device's part, the last ones padded."""
    return tuple(math.ceil(size / parts) for size, parts in zip(shape, _pieces(shape, layout), strict=True))


def _pieces(shape: Sequence[int], layout: Layout) -> list[int]:
    spec = (*layout.sharding.spec, *[None] * (len(shape) - len(layout.sharding.spec)))
    return [parts_of(layout.sharding.mesh.shape, entry) for entry in spec]


def enter(aval: Aval, layout: Layout) -> Signature:
    """The operation that gives each device its part of a whole: zeros fill up what is not evenly divided."""
    part = aval_of(part_shape(aval.shape, layout), aval.dtype, manual=True)

    def lower(context: Any, whole: jax.Array, layout: Layout) -> jax.Array:
        sizes = zip(part.shape, _pieces(aval.shape, layout), aval.shape, strict=True)
        padding = [(0, size * pieces - full, 0) for size, pieces, full in sizes]
        if any(end for _, end, _ in padding):
            whole = jax.lax.pad(whole, jax.numpy.zeros((), whole.dtype), padding)
        form = layout.sharding
        made: jax.Array = jax.shard_map(
            lambda x: x[None], mesh=form.mesh, in_specs=form.spec, out_specs=PartitionSpec(form.mesh.axis_names), check_vma=False
        )(whole)
        return made

    return Signature(_ENTER, lower, (HOLE,), {"layout": layout}, (part,))


def leave(part: Aval, layout: Layout, shape: tuple[int, ...]) -> Signature:
    """The operation that makes a whole of `shape` of the devices' parts; of equal copies it takes one."""

    def lower(context: Any, parts: jax.Array, layout: Layout, shape: tuple[int, ...]) -> jax.Array:
        form = layout.sharding
        whole: jax.Array = jax.shard_map(
            lambda x: x[0], mesh=form.mesh, in_specs=PartitionSpec(form.mesh.axis_names), out_specs=form.spec, check_vma=False
        )(parts)
        return jax.lax.slice(whole, [0] * len(shape), shape)

    return Signature(_LEAVE, lower, (HOLE,), {"layout": layout, "shape": shape}, (aval_of(shape, part.dtype),))


def is_boundary(signature: Signature) -> bool:
    """Whether an operation goes into or out of a region."""
    return signature.name in (_ENTER, _LEAVE)


def manual_operands(entries: Sequence[Entry], slots: Sequence[int]) -> list[bool]:
    """For each operand, whether it is parts."""
    avals = [aval_at(entries, slot) for slot in slots]
    return [aval is not None and aval.manual for aval in avals]


def on_each_device(function: Callable[[list[Any]], list[Any]], operands: list[Any], parts: list[bool], home: Sharding) -> list[Any]:
    """`function` on each device, over its part of those operands that are parts and over the whole of the others."""
    traced = [number for number, operand in enumerate(operands) if isinstance(operand, jax.Array)]
    missing: list[int] = []

    def one(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        local = list(operands)
        for number, array in zip(traced, arrays, strict=True):
            local[number] = array[0] if parts[number] else array
        results = function(local)
        missing.extend(place for place, result in enumerate(results) if result is None)
        return tuple(result[None] for result in results if result is not None)

    specs = tuple(_PARTS if parts[number] else _WHOLE for number in traced)
    spread = jax.shard_map(one, mesh=form_of_parts(home).mesh, in_specs=specs, out_specs=_PARTS, check_vma=False)
    made: list[Any] = list(spread(*[operands[number] for number in traced]))
    for place in missing:
        made.insert(place, None)
    return made

"""A kernel over the devices of a mesh: each device runs it for its part of the data."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from xla_core.ops.table import Context


def check_spec(partition_spec: str | None, mesh: str | None, rank: int) -> None:
    """Raise ValueError for a spec (as text) of more entries than there are dimensions, or of axes that the mesh does not have."""
    entries = () if partition_spec is None else tuple(ast.literal_eval(partition_spec))
    if len(entries) > rank:
        raise ValueError(f"partition_spec {partition_spec} has more entries than there are dimensions: {rank}")
    if mesh is None:
        return
    fields = ast.literal_eval(mesh)
    count = len(fields["mesh_shape"])
    known = {*range(count), *(fields["axis_names"] or ())}
    for axis in (axis for entry in entries for axis in (entry if isinstance(entry, (tuple, list)) else (entry,))):
        if axis is not None and axis not in known:
            raise ValueError(f"partition_spec {partition_spec} names axis {axis!r}, which the mesh has not: {sorted(map(str, known))}")


def mesh_of(text: str, ordered: Mesh | None) -> Mesh | None:
    """The jax mesh of a mesh's text; None if its devices are in another order than a program runs over them, `ordered`."""
    if ordered is None:
        return None
    fields = ast.literal_eval(text)
    running = ordered.devices.reshape(-1)
    devices = np.array(running[0].client.devices(), dtype=object)[np.array(fields["device_ids"])]
    if devices.tolist() != running.tolist():
        return None
    shape = fields["mesh_shape"]
    return Mesh(devices.reshape(shape), fields["axis_names"] or tuple(f"axis{number}" for number in range(len(shape))))


def over_mesh(
    context: Context, function: Callable[..., Any], mesh: str | None, specs: Sequence[Any], arrays: Sequence[Any], out_spec: Any
) -> Any:
    """`function(*arrays)`, each device of the mesh (its text) for its part; absent arrays are None.

    specs, out_spec: as `mark_sharding` has them, for each array and for the result. What cannot be divided so is left to XLA's partitioner.
    """
    found = None if mesh is None else mesh_of(mesh, context.mesh)
    if found is None or any(not _divides(found, array, spec) for array, spec in zip(arrays, specs, strict=True) if array is not None):
        return function(*arrays)
    named = [_named(found, spec) for spec in specs]
    places = [place for place, array in enumerate(arrays) if array is not None]

    def one(*parts: jax.Array) -> Any:
        whole = list(arrays)
        for place, part in zip(places, parts, strict=True):
            whole[place] = part
        return function(*whole)

    inputs = tuple(named[place] for place in places)
    mapped = jax.shard_map(one, mesh=found, in_specs=inputs, out_specs=_named(found, out_spec), check_vma=False)
    return mapped(*[arrays[place] for place in places])


def _axes(mesh: Mesh, entry: Any) -> tuple[str, ...]:
    entries = entry if isinstance(entry, (tuple, list)) else () if entry is None else (entry,)
    return tuple(mesh.axis_names[one] if isinstance(one, int) else one for one in entries)


def _named(mesh: Mesh, spec: Any) -> PartitionSpec:
    return PartitionSpec(*[_axes(mesh, entry) or None for entry in spec])


def _divides(mesh: Mesh, array: jax.Array, spec: Any) -> bool:
    parts = [math.prod(mesh.shape[axis] for axis in _axes(mesh, entry)) for entry in spec]
    return all(size % count == 0 for size, count in zip(array.shape, parts, strict=True))

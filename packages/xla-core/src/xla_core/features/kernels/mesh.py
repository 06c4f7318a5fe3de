"""A kernel over the devices of a mesh: each device runs it for its part of the data."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from xla_core.engine.runtime.client import client


def texts(partition_spec: Any, mesh: Any) -> tuple[str | None, str | None]:
    """Spec and mesh as operations take them; without a spec neither, without a mesh that of the process."""
    if partition_spec is None:
        return None, None
    if mesh is None and "torch_xla.distributed.spmd" in sys.modules:  # a mesh was set through it
        mesh = sys.modules["torch_xla.distributed.spmd"].get_global_mesh()
    spec = partition_spec if isinstance(partition_spec, str) else str(tuple(partition_spec))
    return spec, None if mesh is None else str(mesh)


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


def mesh_of(text: str) -> Mesh | None:
    """The jax mesh of a mesh's text; None if its devices are in another order than programs run over them."""
    fields = ast.literal_eval(text)
    local = client().devices
    everywhere = np.array(local[0].client.devices() if len(local[0].client.devices()) > len(local) else local, dtype=object)
    ordered: Any = getattr(client().placements[0].sharding, "mesh", None)
    devices = everywhere[np.array(fields["device_ids"])]
    if ordered is None or devices.tolist() != ordered.devices.reshape(-1).tolist():
        return None
    shape = fields["mesh_shape"]
    return Mesh(devices.reshape(shape), fields["axis_names"] or tuple(f"axis{number}" for number in range(len(shape))))


def over_mesh(function: Callable[..., Any], mesh: str | None, specs: Sequence[Any], arrays: Sequence[Any], out_spec: Any) -> Any:
    """`function(*arrays)`, each device of the mesh for its part; absent arrays are None.

    specs, out_spec: as `mark_sharding` has them, for each array and for the result. What cannot be divided so is left to XLA's partitioner.
    """
    found = None if mesh is None else mesh_of(mesh)
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

"""A mesh and a spec as JAX says them: what `jax.sharding.NamedSharding` is made of."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import PartitionSpec as JaxSpec

from xla_spmd.mesh import Mesh, named_axes
from xla_spmd.op_sharding import Ids
from xla_spmd.specs import PartitionSpec, split_axes


@dataclass(frozen=True, slots=True, eq=False)
class NamedParts:
    """The parts of a NamedSharding.

    device_ids: ids, one axis per mesh axis. axis_names: as many, made up where the mesh has none. spec: an entry per tensor dimension.
    """

    device_ids: Ids
    axis_names: tuple[str, ...]
    spec: JaxSpec


def named_parts(mesh: Mesh, partition_spec: PartitionSpec) -> NamedParts:
    """The same sharding for JAX; `mesh.get_jax_mesh()` is the mesh of these ids and names.

    Raises AxisError for an axis out of range or used twice, PartitionSpecError for an unknown name or entry.
    """
    names = named_axes(mesh)
    spec = JaxSpec(*(tuple(names[axis] for axis in axes) or None for axes in split_axes(mesh, partition_spec)))
    return NamedParts(mesh.get_logical_mesh(), names, spec)

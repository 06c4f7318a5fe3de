"""Convert between our meshes and specs and torch.distributed.tensor's device meshes and placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from xla_spmd._compat import dtensor_spec
from xla_spmd.annotations import annotation_of
from xla_spmd.errors import PartitionSpecError
from xla_spmd.mesh import Mesh
from xla_spmd.specs import IndexedSpec, PartitionSpec, translate_named_partition_spec


def convert_to_xla_mesh(mesh: DeviceMesh) -> Mesh:
    """The same mesh. Raises ValueError for one of another device than `xla`, AssertionError for a submesh."""
    if mesh.device_type != "xla":
        raise PartitionSpecError(f"the mesh is one of {mesh.device_type} devices: make it with DeviceMesh('xla', …)")
    return Mesh(mesh.mesh.flatten().tolist(), tuple(mesh.mesh.shape), mesh.mesh_dim_names)


def convert_to_xla_partition_spec(tensor: torch.Tensor, placement_spec: Sequence[Placement]) -> PartitionSpec:
    """For each dimension of `tensor` the index of the mesh axis that splits it, a tuple of those, or None.

    placement_spec: for each mesh axis, Shard or Replicate. Raises ValueError for other placements, and dimensions out of range.
    """
    found: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placement_spec):
        if type(placement) is Shard:
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise PartitionSpecError(f"{placement} splits a dimension that a tensor of shape {tuple(tensor.shape)} does not have")
            found[placement.dim].append(axis)
        elif type(placement) is not Replicate:
            raise PartitionSpecError(f"only Shard and Replicate can be placed on an xla mesh, got {placement} for axis {axis}")
    return tuple([tuple(axes) if len(axes) > 1 else axes[0] if axes else None for axes in found])


def placed(tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement] | None) -> tuple[Mesh, PartitionSpec]:
    """Mesh and partition spec of a tensor with these placements (None: replicated). Raises ValueError if they do not fit the mesh."""
    wanted = [Replicate()] * mesh.ndim if placements is None else list(placements)
    if len(wanted) != mesh.ndim:
        raise PartitionSpecError(f"a mesh of shape {tuple(mesh.mesh.shape)} needs {mesh.ndim} placements, got {wanted}")
    return convert_to_xla_mesh(mesh), convert_to_xla_partition_spec(tensor, wanted)


def mesh_and_spec(tensor: Any) -> tuple[Mesh, IndexedSpec]:
    """The mesh and spec of a wrapper: its own, else those of the tensor inside. Raises ValueError if there are none."""
    annotation = annotation_of(tensor.global_tensor)
    mesh = None if annotation is None else annotation.mesh
    shape, spec = tensor.mesh_shape, tensor.partition_spec
    if (shape is None or spec is None) and annotation is not None and annotation.mesh is not None and annotation.spec is not None:
        shape, spec = annotation.mesh.mesh_shape, annotation.spec
    if shape is None or spec is None:
        raise PartitionSpecError(
            f"placements need mesh_shape and partition_spec, this tensor has {shape} and {spec}: shard it with mark_sharding"
        )
    if mesh is None or mesh.mesh_shape != tuple(shape):
        mesh = Mesh(range(int(np.prod(shape))), shape)
    return mesh, translate_named_partition_spec(mesh, spec)


def placements_of(tensor: Any) -> tuple[Placement, ...]:
    """For each mesh axis, Shard or Replicate."""
    mesh, spec = mesh_and_spec(tensor)
    found: list[Placement] = [Replicate()] * len(mesh.mesh_shape)
    for dim, entry in enumerate(spec):
        for axis in () if entry is None else (entry,) if isinstance(entry, int) else entry:
            found[axis] = Shard(dim)
    return tuple(found)


def device_mesh_of(mesh: Mesh) -> DeviceMesh:
    """The same mesh, as torch has it."""
    return DeviceMesh("xla", torch.from_numpy(mesh.get_logical_mesh().copy()), mesh_dim_names=mesh.axis_names)


def spec_of(tensor: Any) -> Any:
    """The DTensorSpec of a wrapper."""
    return dtensor_spec(device_mesh_of(mesh_and_spec(tensor)[0]), placements_of(tensor), tensor)

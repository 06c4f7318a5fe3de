"""Convert between our meshes and specs and torch.distributed.tensor's device meshes and placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from xla_core.abi.declarations import budget
from xla_spmd._compat import StridedShard, dtensor_spec
from xla_spmd.annotations import annotation_of
from xla_spmd.errors import PartitionSpecError
from xla_spmd.mesh import AnyMesh, Mesh, as_mesh
from xla_spmd.specs import PartitionSpec, translate_named_partition_spec


@budget()
def convert_to_xla_mesh(mesh: DeviceMesh) -> Mesh:
    """The same mesh; of a slice, one over all devices, with one more axis. Raises ValueError for one of another device than `xla`."""
    return as_mesh(mesh)


@budget()
def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placement_spec: Sequence[Placement], mesh_shape: Sequence[int] | None = None
) -> PartitionSpec:
    """For each dimension of `tensor` the index of the mesh axis that splits it, a tuple of those (outermost first), or None.

    placement_spec: for each mesh axis Shard, Replicate, or, with mesh_shape, _StridedShard. Raises ValueError for other placements, and
    dimensions out of range.
    """
    axes_by_dim: list[list[int]] = [[] for _ in range(tensor.dim())]
    # From the last axis to the first, since a strided placement goes behind later axes.
    for axis, placement in reversed(list(enumerate(placement_spec))):
        if isinstance(placement, (Shard, StridedShard)):
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise PartitionSpecError(f"{placement} splits a dimension that a tensor of shape {tuple(tensor.shape)} does not have")
            axes = axes_by_dim[placement.dim]
            axes.insert(_position(placement, axes, mesh_shape), axis)
        elif type(placement) is not Replicate:
            raise PartitionSpecError(
                f"only Shard and Replicate can be placed on an xla mesh, got {placement} for axis {axis}: tensors are whole in SPMD mode, "
                "and the compiler sums what is partial"
            )
    return spec_from_axes(axes_by_dim)


def _position(placement: Any, axes: list[int], mesh_shape: Sequence[int] | None) -> int:
    """Where an axis goes among the later ones that split the same dimension, outermost first."""
    factor = placement.split_factor if isinstance(placement, StridedShard) else 1
    sizes = [1 if mesh_shape is None else mesh_shape[axis] for axis in axes]
    positions = [index for index in range(len(axes) + 1) if math.prod(sizes[:index]) == factor]
    if not positions:
        raise PartitionSpecError(
            f"{placement} needs later mesh axes that split its dimension, and into {factor}; these split it by {sizes}"
        )
    return positions[0]


def placed(tensor: torch.Tensor, mesh: AnyMesh, placements: Sequence[Placement] | None) -> tuple[Mesh, PartitionSpec]:
    """Mesh and partition spec of a tensor with these placements (None: replicated). Raises ValueError if they do not fit the mesh."""
    xla_mesh = as_mesh(mesh)
    axis_placements = [Replicate()] * mesh.ndim if placements is None else list(placements)
    if len(axis_placements) != mesh.ndim:
        raise PartitionSpecError(f"a mesh of shape {tuple(mesh.shape)} needs {mesh.ndim} placements, got {axis_placements}")
    return xla_mesh, convert_to_xla_partition_spec(tensor, axis_placements, xla_mesh.mesh_shape)


@lru_cache(maxsize=256)
def axes_in(mesh: AnyMesh, full_mesh: Mesh) -> tuple[int, ...] | None:
    """The axes of `full_mesh` that make up `mesh`, its slice by name; None if it is no slice of it."""
    if as_mesh(mesh) == full_mesh:
        return tuple(range(mesh.ndim))
    names = mesh.mesh_dim_names
    if not names or not full_mesh.axis_names or not set(names) <= set(full_mesh.axis_names):
        return None
    axes = tuple([full_mesh.axis_names.index(name) for name in names])
    return axes if list(axes) == sorted(axes) and as_mesh(full_mesh[names]) == as_mesh(mesh) else None


def axes_by_dimension(mesh: Mesh, spec: PartitionSpec) -> list[tuple[int, ...]]:
    """The mesh axes that split each dimension, outermost first."""
    indexed = translate_named_partition_spec(mesh, spec)
    return [() if entry is None else (entry,) if isinstance(entry, int) else entry for entry in indexed]


def spec_from_axes(dimensions: Iterable[Sequence[int]]) -> PartitionSpec:
    """The partition spec in which these mesh axes split each dimension."""
    return tuple([None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in dimensions])


def mesh_and_spec(tensor: Any) -> tuple[AnyMesh, PartitionSpec]:
    """The mesh and the spec of a wrapper: those by which the tensor inside was marked, else its own. Raises ValueError without a mesh.

    A result of operators has the mesh of an operand; nothing splits it as long as nobody asks for that.
    """
    mesh, annotation = tensor._mesh, annotation_of(tensor.global_tensor)
    if annotation is not None and annotation.mesh is not None and annotation.spec is not None:
        axes = None if mesh is None else axes_in(mesh, annotation.mesh)
        if axes is None:
            return annotation.mesh, annotation.spec
        # As the user knows it, perhaps as a slice.
        dimensions = axes_by_dimension(annotation.mesh, annotation.spec)
        return mesh, spec_from_axes([axes.index(axis) for axis in split if axis in axes] for split in dimensions)
    if mesh is None and tensor.mesh_shape is not None:
        mesh = Mesh(range(math.prod(tensor.mesh_shape)), tensor.mesh_shape)
    if mesh is None:
        raise PartitionSpecError("placements need mesh_shape and partition_spec, this tensor has neither: shard it with mark_sharding")
    return mesh, (None,) * tensor.dim() if tensor.partition_spec is None else tensor.partition_spec


def placements_of(tensor: Any) -> tuple[Placement, ...]:
    """For each mesh axis Shard or Replicate; _StridedShard if a later axis splits the same dimension first."""
    mesh, spec = mesh_and_spec(tensor)
    placements: list[Placement] = [Replicate()] * mesh.ndim
    for dim, axes in enumerate(axes_by_dimension(as_mesh(mesh), spec)):
        for index, axis in enumerate(axes):
            later = [outer for outer in axes[:index] if outer > axis]
            placements[axis] = StridedShard(dim, split_factor=math.prod(mesh.shape[outer] for outer in later)) if later else Shard(dim)
    return tuple(placements)


def device_mesh_of(mesh: AnyMesh) -> DeviceMesh:
    """The same mesh, as torch has it."""
    return mesh.device_mesh if isinstance(mesh, Mesh) else mesh


def device_mesh_of_tensor(tensor: Any) -> DeviceMesh:
    """The mesh of a wrapper, as torch has it. Raises ValueError without a mesh."""
    return device_mesh_of(mesh_and_spec(tensor)[0])


def spec_of(tensor: Any) -> Any:
    """The DTensorSpec of a wrapper: the same one until it is sharded otherwise."""
    mesh, spec = mesh_and_spec(tensor)
    key = (mesh, spec, tensor.shape, tensor.dtype)
    if tensor._dtensor_spec is None or tensor._dtensor_spec[0] != key:
        tensor._dtensor_spec = key, dtensor_spec(device_mesh_of(mesh), placements_of(tensor), tensor)
    return tensor._dtensor_spec[1]

"""Make a sharding of a mesh and a partition spec: which mesh axes split which dimension, which device holds which tile."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from xla_spmd.errors import AxisError, PartitionSpecError, ShardingError
from xla_spmd.op_sharding import NO_IDS, REPLICATED, Ids, OpSharding, ShardingType

# One entry per tensor dimension: the axis that splits it, by index or name, several axes (first one outermost), or None.
PartitionSpec = tuple[int | str | None | tuple[int | str, ...], ...]
# The same without names, and with None for a tuple without axes.
IndexedSpec = tuple[int | None | tuple[int, ...], ...]


class Axes(Protocol):
    """What a spec needs of a mesh (`xla_spmd/mesh.py`)."""

    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...] | None

    def size(self) -> int:
        """The number of devices."""

    def get_axis_name_idx(self, name: str) -> int | None:
        """The index of an axis."""

    def get_logical_mesh(self) -> Ids:
        """The ids, shape `mesh_shape`."""


def translate_named_partition_spec(mesh: Axes, partition_spec: PartitionSpec) -> IndexedSpec:
    """The spec with axis indices in place of names.

    Raises PartitionSpecError for an unknown name and for anything that is no entry, AxisError for a tuple inside a tuple.
    """
    if isinstance(partition_spec, (str, int)) or not isinstance(partition_spec, Iterable):
        raise PartitionSpecError(f"a partition spec is a tuple with an entry per dimension, got {partition_spec!r}: a comma is missing?")
    return tuple(_indexed(mesh, entry, partition_spec) for entry in partition_spec)


def _indexed(mesh: Axes, entry: Any, spec: object) -> int | None | tuple[int, ...]:
    if not _splits(entry):
        return None
    if not isinstance(entry, tuple):
        return _axis(mesh, entry, spec)
    nested = [axis for axis in entry if isinstance(axis, tuple)]
    if nested:
        raise AxisError(f"a tuple in a partition spec holds axes, not tuples such as {nested[0]}: {spec}")
    return tuple(_axis(mesh, axis, spec) for axis in entry)


def _splits(entry: Any) -> bool:
    """Whether an entry names an axis; None and a tuple without axes do not."""
    return entry is not None and not (isinstance(entry, tuple) and not entry)


def _axis(mesh: Axes, entry: Any, spec: object) -> int:
    if isinstance(entry, str):
        index = mesh.get_axis_name_idx(entry)
        if index is None:
            names = ", ".join(mesh.axis_names) if mesh.axis_names else "no names, use indices"
            raise PartitionSpecError(f"Axis name {entry!r} is not defined in mesh ({names}): partition spec {spec}")
        return index
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return operator.index(entry)
    raise PartitionSpecError(f"an entry of a partition spec is an axis (index or name), a tuple of axes or None, not {entry!r}: {spec}")


def split_axes(mesh: Axes, partition_spec: PartitionSpec) -> list[tuple[int, ...]]:
    """The mesh axes that split each tensor dimension; () where it is not split.

    Raises what `translate_named_partition_spec` does, and AxisError for an index that the mesh has not and for an axis used twice.
    """
    indexed = translate_named_partition_spec(mesh, partition_spec)
    axes = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in indexed]
    used = [axis for entry in axes for axis in entry]
    wrong = [axis for axis in used if not 0 <= axis < len(mesh.mesh_shape)]
    if wrong:
        raise AxisError(
            f"partition_spec {partition_spec} contains out of bound index into mesh_shape {mesh.mesh_shape}: "
            f"it has axes 0 to {len(mesh.mesh_shape) - 1}, got {wrong[0]}"
        )
    if len(set(used)) != len(used):
        raise AxisError(
            f"Each device mesh dimension should appear at most once in partition_spec {partition_spec}, on a mesh {mesh.mesh_shape}"
        )
    return axes


def tile_assignment(mesh: Axes, partition_spec: PartitionSpec) -> Ids:
    """The mesh's ids with the axes of the spec in front, each tuple's axes merged into one, and the axes not named behind."""
    axes = [entry for entry in split_axes(mesh, partition_spec) if entry]
    front = [axis for entry in axes for axis in entry]
    behind = [axis for axis in range(len(mesh.mesh_shape)) if axis not in front]
    sizes = [math.prod(mesh.mesh_shape[axis] for axis in entry) for entry in axes]
    return mesh.get_logical_mesh().transpose(front + behind).reshape(sizes + [mesh.mesh_shape[axis] for axis in behind])


def sharding_type(partition_spec: PartitionSpec, num_devices: int) -> ShardingType:
    """The type that a spec has on a mesh with as many axes as it names."""
    split = [_splits(entry) for entry in partition_spec]
    if num_devices == 1:
        return ShardingType.MAXIMAL
    if not any(split):
        return ShardingType.REPLICATED
    return ShardingType.TILED if all(split) else ShardingType.PARTIAL


def group_assignment(
    sharding_type: ShardingType, tile_assignment: Ids | Sequence[Any], tensor_rank: int, replicate_dims: Collection[int]
) -> tuple[list[Any], list[list[int]]]:
    """The group of each tile, nested by tensor dimension, and the devices of each group; both empty unless PARTIAL.

    replicate_dims: the tensor dimensions that are not split. Raises ShardingError if the tile assignment has too few axes for the others.
    """
    assignment, groups = _groups(ShardingType(sharding_type), np.asarray(tile_assignment), tensor_rank, replicate_dims)
    return assignment.tolist(), groups.tolist()


def _groups(kind: ShardingType, tiles: Ids, rank: int, replicate_dims: Collection[int]) -> tuple[Ids, Ids]:
    if kind is not ShardingType.PARTIAL:
        return NO_IDS, NO_IDS
    split = [dim for dim in range(rank) if dim not in replicate_dims]
    if len(split) > tiles.ndim:
        raise ShardingError(f"dimensions {split} are split, which a tile assignment of shape {tiles.shape} has not enough axes for")
    groups = tiles.reshape(math.prod(tiles.shape[: len(split)]), -1)
    counts = dict(zip(split, tiles.shape, strict=False))
    return np.arange(len(groups)).reshape([counts.get(dim, 1) for dim in range(rank)]), groups


def op_sharding_of(mesh: Axes, spec: IndexedSpec) -> OpSharding:
    """The sharding of a spec of indices. Raises AxisError as `split_axes` does."""
    tiles = tile_assignment(mesh, spec)
    if not spec:
        return OpSharding(tiles, REPLICATED.group_assignment, REPLICATED.replication_groups, ShardingType.REPLICATED)
    kind = ShardingType.PARTIAL if tiles.ndim > len(spec) else sharding_type(spec, mesh.size())
    unsplit = [dim for dim, entry in enumerate(spec) if entry is None]
    return OpSharding(tiles, *_groups(kind, tiles, len(spec), unsplit), kind)

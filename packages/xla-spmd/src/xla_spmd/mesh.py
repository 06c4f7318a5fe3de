"""Meshes: device ids in a shape along whose axes tensors are split. A mesh is a value, and may be larger than the hardware at hand."""

from __future__ import annotations

import ast
import math
import operator
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakValueDictionary

import jax
import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh

from xla_core.abi.declarations import budget
from xla_core.abi.job import device_count, topology
from xla_core.abi.metrics import counter_add
from xla_core.abi.process import client
from xla_core.abi.targets import planned_devices
from xla_spmd._compat import all_submeshes
from xla_spmd.device_mesh import SpmdDeviceMesh
from xla_spmd.errors import MeshError, PartitionSpecError
from xla_spmd.op_sharding import Ids, OpSharding
from xla_spmd.settings import PLANNED_MESH
from xla_spmd.specs import IndexedSpec, PartitionSpec, op_sharding_of, translate_named_partition_spec


class _Shardings:
    """A cache of the shardings made for a mesh, and which of them are in the counter."""

    def __init__(self) -> None:
        self.shardings: dict[IndexedSpec, OpSharding] = {}
        self.counted: dict[IndexedSpec, object] = {}

    def of(self, mesh: Mesh, spec: IndexedSpec) -> OpSharding:
        """The sharding of a spec, the same object each time."""
        sharding = self.shardings.get(spec)
        # If two threads make one at once, both get the first.
        return self.shardings.setdefault(spec, op_sharding_of(mesh, spec)) if sharding is None else sharding

    def count(self, spec: IndexedSpec) -> None:
        """Count a spec, if this is the first time."""
        first = object()
        if self.counted.setdefault(spec, first) is first:
            counter_add("CreateOpSharding")


_shared: WeakValueDictionary[tuple[Any, ...], _Shardings] = WeakValueDictionary()  # among equal meshes, as long as one of them lives


class MeshShape(tuple[int, ...]):
    """The size of each axis: a tuple, as in torch's device meshes, that returns the sizes by name when it is called."""

    names: tuple[str, ...] | None = None

    def __call__(self) -> OrderedDict[str | int, int]:
        """Size of each axis, by its name, or by its index where axes have no names."""
        return OrderedDict(zip(self.names or range(len(self)), self, strict=True))


class Mesh:
    """Device ids, arranged row-major in a shape, with an optional name for each axis. Equal if all three are; do not change it.

    Has what torch's DeviceMesh has, too: `mesh["model"]` is a slice of it, to be passed wherever a mesh is.

    device_ids: the numbers 0 to n-1 in any order, as in `torch_xla.runtime.global_runtime_device_attributes`.
    Raises MeshError (an AssertionError) if they do not fit together.
    """

    device_ids: Ids
    flat_ids: tuple[int, ...]  # the same, as torch.compile can take them into a graph
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...] | None

    def __init__(self, device_ids: Iterable[int], mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None) -> None:
        ids = np.array(device_ids if isinstance(device_ids, (np.ndarray, Sequence)) else list(device_ids))
        self.mesh_shape = tuple(map(operator.index, mesh_shape))
        self.axis_names = None if axis_names is None else tuple(axis_names)
        _check_names(self.axis_names, self.mesh_shape)
        self.mesh_shape = _planned_shape(self.axis_names, self.mesh_shape)
        _check_ids(ids, self.mesh_shape)
        self.device_ids = ids.astype(np.int64, copy=False)
        self.device_ids.setflags(write=False)
        self.flat_ids = tuple(self.device_ids.tolist())

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of devices, of all or along one axis."""
        return math.prod(self.mesh_shape) if mesh_dim is None else self.mesh_shape[mesh_dim]

    @property
    def shape(self) -> MeshShape:
        """The size of each axis as a tuple; `shape()` is a dict of them by name, or by index where axes have no names."""
        shape = MeshShape(self.mesh_shape)
        shape.names = self.axis_names
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.mesh_shape)

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the axes, if they have any."""
        return self.axis_names

    @cached_property
    def device_mesh(self) -> SpmdDeviceMesh:
        """The same mesh, as torch has it."""
        return SpmdDeviceMesh("xla", torch.from_numpy(self.get_logical_mesh().copy()), mesh_dim_names=self.axis_names)

    def __getattr__(self, name: str) -> Any:
        """What torch's DeviceMesh has beyond this: `mesh`, `device_type`, `get_group`, `get_local_rank`, `get_coordinate`, and so on."""
        if name.startswith("__") or not hasattr(SpmdDeviceMesh, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.device_mesh, name)

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """The axes of these names. Raises KeyError for other names, RuntimeError for a mesh without names."""
        return self.device_mesh[mesh_dim_names]

    def __enter__(self) -> DeviceMesh:
        """Make it the mesh of functions of torch.distributed.tensor that are given none."""
        return self.device_mesh.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.device_mesh.__exit__(*error)

    def get_logical_mesh(self) -> Ids:
        """The ids, shape `mesh_shape`."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The index of the axis of this name; None if there is none."""
        return self.axis_names.index(name) if self.axis_names and name in self.axis_names else None

    def get_jax_mesh(self) -> jax.sharding.Mesh:
        """The mesh over JAX's devices of the same ids; axes without a name get one. Raises MeshError for ids that no device has."""
        devices = physical_devices()
        if self.size() > len(devices):
            raise MeshError(f"the mesh has {self.size()} devices, the hardware {len(devices)}")
        return jax.sharding.Mesh(np.array(devices, dtype=object)[self.get_logical_mesh()], named_axes(self))

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """The sharding that a spec with an entry per tensor dimension stands for; `()` is replicated.

        Raises AxisError for an axis out of range or used twice, PartitionSpecError for an unknown name or entry.
        """
        spec = translate_named_partition_spec(self, partition_spec)
        sharding = self._shardings.of(self, spec)
        self._shardings.count(spec)
        return sharding

    def _get_op_sharding_args(self, partition_spec: PartitionSpec) -> tuple[list[Any], list[Any], list[list[int]], int]:
        """Tile assignment, group assignment, replication groups, all as lists of their own, and the type. Raises as `get_op_sharding`."""
        full = self._shardings.of(self, translate_named_partition_spec(self, partition_spec))
        return full.tile_assignment.tolist(), full.group_assignment.tolist(), full.replication_groups.tolist(), int(full.type)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.device_ids.tobytes(), self.mesh_shape, self.axis_names

    @cached_property
    def _shardings(self) -> _Shardings:
        return _shared.setdefault(self._key, _Shardings())

    def __getstate__(self) -> dict[str, Any]:
        # A copy shares the caches of equal meshes in its own process.
        return {name: value for name, value in vars(self).items() if name not in ("_key", "_shardings", "device_mesh")}

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Mesh) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return str({"device_ids": self.device_ids.tolist(), "mesh_shape": self.mesh_shape, "axis_names": self.axis_names})

    def __repr__(self) -> str:
        return f"Mesh(**{self})"

    @staticmethod
    def from_str(text: str) -> Mesh | None:
        """The mesh whose `str` this is; None if it is not one."""
        try:
            fields = ast.literal_eval(text)
            return Mesh(fields["device_ids"], fields["mesh_shape"], fields["axis_names"])
        except (SyntaxError, ValueError, TypeError, KeyError, IndexError, MemoryError, RecursionError, MeshError):
            return None


def _planned_shape(names: tuple[str, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a mesh, or that which a plan tries instead, for axes of these names."""
    planned = PLANNED_MESH.get()
    if not planned or names is None or set(names) != planned.keys() or not planned_devices():
        return shape
    return tuple(planned[name] for name in names)


def _check_names(names: tuple[str, ...] | None, shape: tuple[int, ...]) -> None:
    if names is None:
        return
    if len(names) != len(shape):
        raise MeshError(f"a mesh of shape {shape} needs {len(shape)} axis names, got {names}")
    if len(set(names)) != len(names):
        raise MeshError(f"Axis names must be unique, got {names}: give each axis of shape {shape} a name of its own")
    if any(not isinstance(name, str) for name in names):
        raise MeshError(f"axis names are texts, got {names}")


def _check_ids(ids: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    if not shape or min(shape) < 1:
        raise MeshError(f"a mesh has at least one axis, and each of size 1 or more, got shape {shape}")
    if ids.ndim != 1 or len(ids) != size:
        raise MeshError(
            f"Number of device IDs ({ids.size}) must match mesh size ({size}): a mesh of shape {shape} needs one list of {size} ids, "
            f"got ids of shape {ids.shape}"
        )
    if ids.dtype.kind not in "iu":
        raise MeshError(f"device ids are integers, got {ids.tolist()}")
    if ids.min() < 0 or ids.max() >= size or len(np.unique(ids)) != size:
        outside = ids[(ids < 0) | (ids >= size)].tolist()
        values, counts = np.unique(ids, return_counts=True)
        rule = "less than mesh size" if ids.max() >= size else "0 or more" if outside else "unique"
        raise MeshError(
            f"Device IDs must be {rule}: {size} devices have ids 0 to {size - 1}, each once; out of range: {outside}, "
            f"repeated: {values[counts > 1].tolist()}. A mesh over a part of the devices is not possible: give the others an axis"
        )


# The axis that a slice of a mesh does not name: it goes through the copies of the slice.
_COPIES = "copies"


AnyMesh = Mesh | DeviceMesh


def as_mesh(mesh: AnyMesh) -> Mesh:
    """Convert a mesh to one over all devices: a slice gets one more axis, the last, for the devices that it leaves out.

    Raises PartitionSpecError (a ValueError) for what is no mesh of `xla` devices, MeshError if it has other ids than 0 to n-1.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, DeviceMesh):
        raise PartitionSpecError(f"a mesh is a torch_xla.distributed.spmd.Mesh or a DeviceMesh, got {type(mesh).__name__}: {mesh!r}")
    return _as_mesh(mesh)


@lru_cache(maxsize=256)
def _as_mesh(mesh: DeviceMesh) -> Mesh:
    if mesh.device_type != "xla":
        raise PartitionSpecError(f"the mesh is one of {mesh.device_type} devices: make it with DeviceMesh('xla', …)")
    submeshes = all_submeshes(mesh)
    shape, names = tuple(submeshes.shape[1:]), mesh.mesh_dim_names
    if len(submeshes) == 1:
        return Mesh(submeshes.flatten().tolist(), shape, names)
    axis_names = None if names is None else (*names, _COPIES + "_" * sum(name.startswith(_COPIES) for name in names))
    return Mesh(submeshes.movedim(0, -1).flatten().tolist(), (*shape, len(submeshes)), axis_names)


def named_axes(mesh: Mesh) -> tuple[str, ...]:
    """The names of the mesh's axes, made up where it has none."""
    return mesh.axis_names or tuple(f"axis{index}" for index in range(len(mesh.mesh_shape)))


def physical_devices() -> tuple[jax.Device, ...]:
    """JAX's devices of the whole job, by device id; starts the client."""
    local = client().devices
    return local if topology().process_count == 1 else tuple(local[0].client.devices())


@budget()
def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All physical devices of the job in order, on one axis."""
    count = device_count()
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


_global_mesh: AnyMesh | None = None


@budget()
def set_global_mesh(mesh: AnyMesh | None) -> None:
    """Make this the process's mesh."""
    global _global_mesh
    _global_mesh = mesh


@budget()
def get_global_mesh() -> AnyMesh | None:
    """The mesh that was set, the same object; None if none was."""
    return _global_mesh

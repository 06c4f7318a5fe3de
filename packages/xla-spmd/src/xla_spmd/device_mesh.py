"""torch's device meshes in SPMD mode: one program over all devices, so that there is one rank and no process group for each axis."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from xla_core.abi.job import is_spmd, topology
from xla_core.abi.process import client
from xla_spmd._compat import all_submeshes, check_before_fully_shard, make_meshes_of
from xla_spmd.dtensor_support import support
from xla_spmd.errors import AnnotationError, MeshError


class SpmdDeviceMesh(DeviceMesh):
    """What `DeviceMesh("xla", …)` and `init_device_mesh("xla", …)` make in SPMD mode: ids of devices in a shape, with names for its axes.

    A slice by name is one or more axes of the whole mesh: what is sharded over it is replicated over the other axes. The coordinate of
    this process is the coordinate of its first device.
    """

    _dim_group_names: list[Any] = []  # torch's name; what is sliced and flattened gets a list of its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        support()  # so that torch.distributed.tensor knows these meshes
        super().__init__(*args, **{**kwargs, "_init_backend": False, "_rank": 0})

    @property
    def mesh(self) -> torch.Tensor:
        """The ids of the devices, dtype int32, shape `shape`; of a slice, the ids of the submesh with this process's first device."""
        submeshes = all_submeshes(self)
        index = 0 if len(submeshes) == 1 else int((submeshes == self.get_rank()).flatten(1).any(1).nonzero()[0, 0])
        return submeshes[index]

    def get_rank(self) -> int:
        """The id of this process's first device."""
        if topology().process_count == 1:
            return 0
        local = client().devices[0]
        return list(local.client.devices()).index(local)

    @cached_property
    def _coordinate_on_dim(self) -> tuple[int, ...] | None:  # type: ignore[override]
        positions = (self.mesh == self.get_rank()).nonzero()
        return tuple(positions[0].tolist()) if len(positions) else None

    def get_coordinate(self) -> tuple[int, ...] | None:
        """The index of this process's first device along each axis; None if it is not part of the mesh."""
        return self._coordinate_on_dim

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The index of this process's first device along one axis (index or name). Raises RuntimeError if None could mean several axes."""
        coordinate = self.get_coordinate()
        if coordinate is None:
            raise MeshError(f"device {self.get_rank()} is not part of {self}")
        return coordinate[self._axis(mesh_dim, "get_local_rank")]

    def _axis(self, mesh_dim: int | str | None, method: str) -> int:
        if isinstance(mesh_dim, str):
            return int(self._get_mesh_dim_by_name(mesh_dim))
        if mesh_dim is None and self.ndim > 1:
            raise AnnotationError(f"the mesh has {self.ndim} axes: give {method} one of them, by index or name")
        return 0 if mesh_dim is None else mesh_dim

    def get_group(self, mesh_dim: int | str | None = None) -> Any:
        """The process group of the one process that runs all devices of an axis; initializes torch.distributed with it if need be.

        Collectives of it do nothing: tensors are whole here, and the compiler places the collectives between devices.
        Raises RuntimeError if there are several processes, none of which has such a group.
        """
        self._axis(mesh_dim, "get_group")
        check_before_fully_shard(_refuse_fully_shard)  # fully_shard is imported by now if this process uses it
        if topology().process_count > 1:
            raise AnnotationError(
                "the axes of a mesh in SPMD mode are over devices, not over processes, and have no process groups: the compiler "
                "places collectives; for some of your own, use enable_manual_sharding"
            )
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        return dist.group.WORLD

    @staticmethod
    def _init_process_groups(*_: Any, **__: Any) -> list[Any]:
        """Make no groups: an empty list of their names."""
        return []


def _refuse_fully_shard(mesh: Any) -> None:
    if isinstance(mesh, SpmdDeviceMesh):
        raise AnnotationError(
            "fully_shard divides parameters among processes, SPMD mode has one for all devices: use SpmdFullyShardedDataParallel of "
            "torch_xla.experimental.spmd_fully_sharded_data_parallel, which shards them over a mesh axis named fsdp"
        )


def _of_spmd_mode(device_type: str) -> bool:
    return device_type == "xla" and is_spmd()


make_meshes_of(SpmdDeviceMesh, _of_spmd_mode)

"""The sharding of inputs, for loaders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import torch_xla
from xla_core.abi.sharding import upload_sharded
from xla_spmd.annotations import annotate, sharding_for_programs
from xla_spmd.errors import AnnotationError, AxisError
from xla_spmd.marking import annotation_for, check_mesh, check_mode
from xla_spmd.mesh import Mesh, as_mesh
from xla_spmd.op_sharding import OpSharding, ShardingType
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import unwrap_sharded_tensor


@dataclass
class ShardingSpec:
    """A mesh and the spec by which tensors are sharded over it.

    minibatch: tensors are this process's block of dimension 0, not the global tensor.
    Raises AxisError, PartitionSpecError for a spec that the mesh does not fit.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool = False
    _tile_assignment: list[Any] = field(init=False)
    _group_assignment: list[Any] = field(init=False)
    _replication_groups: list[list[int]] = field(init=False)
    _sharding_type: ShardingType = field(init=False)

    def __post_init__(self) -> None:
        self.mesh = as_mesh(self.mesh)
        self._tile_assignment, self._group_assignment, self._replication_groups, kind = self.mesh._get_op_sharding_args(self.partition_spec)
        self._sharding_type = ShardingType(kind)

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether `t` has as many dimensions as the spec entries."""
        return t.dim() == len(self.partition_spec)

    def xla_spec(self, t: torch.Tensor) -> OpSharding | None:
        """The sharding of `t`; None if it has another number of dimensions."""
        return self.mesh.get_op_sharding(self.partition_spec) if self.can_apply(t) else None

    def apply(self, t: torch.Tensor) -> None:
        """Shard `t`, in place. Raises AxisError (an AssertionError) unless it is on the `xla` device and has as many dimensions."""
        if t.device != torch_xla.device():
            raise AxisError(
                f"ShardingSpec.apply is for tensors on {torch_xla.device()}, got one on {t.device}: move it with .to('xla') first"
            )
        check_mode("ShardingSpec.apply")
        annotate(unwrap_sharded_tensor(t), annotation_for(t.shape, self.mesh, self.partition_spec))

    def upload(self, t: torch.Tensor) -> torch.Tensor:
        """Upload a CPU tensor, to each device its shard only; replicated if the spec has another number of dimensions.

        Raises AnnotationError outside SPMD mode and for a tensor that is not on the CPU, DeviceCountError for a mesh that is not over
        all devices.
        """
        check_mode("ShardingSpec.upload")
        check_mesh(self.mesh)
        if t.device.type != "cpu":
            raise AnnotationError(f"ShardingSpec.upload is for CPU tensors, got one on {t.device}: use mark_sharding, or apply")
        if not self.can_apply(t):
            return t.to(torch_xla.device())
        annotation = annotation_for(t.shape, self.mesh, self.partition_spec)
        uploaded = upload_sharded(t, sharding_for_programs(annotation), self.minibatch)
        annotate(uploaded, annotation)
        return uploaded

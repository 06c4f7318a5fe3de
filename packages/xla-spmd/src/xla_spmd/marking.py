"""Dividing tensors over a mesh, and taking that back (api.md S01, S02, S20)."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla.runtime as xr
from xla_core import abi
from xla_spmd.annotations import Annotation, annotate, annotation_of
from xla_spmd.errors import AnnotationError, AxisError, DeviceCountError
from xla_spmd.mesh import Mesh
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor


def check_mode(what: str) -> None:
    """Raise AnnotationError (a RuntimeError) outside SPMD mode."""
    if not xr.is_spmd():
        raise AnnotationError(f"{what} needs SPMD mode: call torch_xla.runtime.use_spmd() at the start of the program")


def check_mesh(mesh: Mesh) -> None:
    """Raise DeviceCountError (an AssertionError) for a mesh that is not over all devices of the job."""
    count = int(xr.global_runtime_device_count())
    if mesh.size() != count:
        raise DeviceCountError(f"the mesh of shape {mesh.mesh_shape} is over {mesh.size()} devices, the job has {count}")


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec, use_dynamo_custom_op: bool = False) -> XLAShardedTensor:
    """Divide `t` over the mesh, in place; returns a wrapper of it.

    partition_spec: for each dimension of `t` the mesh axis (index or name) that splits it, a tuple of axes, or None.
    Raises AssertionError for a mesh that is not over all devices or a spec that does not fit `t`, RuntimeError outside SPMD mode, for
    a tensor that is not on `xla`, and for data that lies otherwise already.
    """
    check_mode("mark_sharding")
    check_mesh(mesh)
    spec = tuple(partition_spec)
    if len(spec) != t.dim():
        raise AxisError(
            f"the partition spec {partition_spec} has {len(spec)} entries, the tensor of shape {tuple(t.shape)} {t.dim()} dimensions"
        )
    annotate(unwrap_sharded_tensor(t), Annotation(mesh.get_op_sharding(spec), mesh, spec))
    return wrap_as_sharded_tensor(t, mesh.mesh_shape, spec)


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Take back what was said of how `t` lies, in place; returns the plain tensor."""
    inner: torch.Tensor = unwrap_sharded_tensor(t)
    abi.lay_out(inner, None)
    return inner


def wrap_if_sharded(x: Any) -> Any:
    """A wrapper of a tensor on `xla` of which a sharding was told; anything else as it is."""
    if type(x) is not abi.XLATensor or annotation_of(x) is None:
        return x
    return wrap_as_sharded_tensor(x)

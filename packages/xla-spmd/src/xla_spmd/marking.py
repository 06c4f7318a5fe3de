"""Shard tensors over a mesh, and clear their shardings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from xla_core.abi.declarations import budget
from xla_core.abi.job import device_count, is_spmd
from xla_core.abi.metrics import counter_add
from xla_core.abi.sharding import set_sharding
from xla_core.abi.tensors import tensor_behind
from xla_spmd.annotations import Annotation, annotate, annotation_of, check_not_manual
from xla_spmd.errors import AnnotationError, AxisError, DeviceCountError
from xla_spmd.mesh import AnyMesh, Mesh, as_mesh
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, is_traced, unwrap_sharded_tensor, wrap_as_sharded_tensor, wrap_over


def check_mode(caller: str) -> None:
    """Raise AnnotationError (a RuntimeError) outside SPMD mode."""
    if not is_spmd():
        raise AnnotationError(f"{caller} needs SPMD mode: call torch_xla.runtime.use_spmd() at the start of the program")


def check_mesh(mesh: Mesh) -> None:
    """Raise DeviceCountError (an AssertionError) for a mesh that is not over all devices of the job."""
    count = device_count()
    if mesh.size() != count:
        raise DeviceCountError(
            f"{mesh.mesh_shape} is not mappable over {count} devices: the mesh is over {mesh.size()} devices and must be over all of the "
            "job; give those that do not count an axis of their own, on which nothing is split"
        )


def annotation_for(shape: Sequence[int], mesh: AnyMesh, partition_spec: PartitionSpec) -> Annotation:
    """The annotation for a tensor of this shape. Raises DeviceCountError, AxisError, PartitionSpecError for what does not fit."""
    xla_mesh = as_mesh(mesh)
    check_mesh(xla_mesh)
    sharding = xla_mesh.get_op_sharding(partition_spec)
    spec = tuple(partition_spec)
    if len(spec) != len(shape):
        raise AxisError(
            f"Partition spec length ({len(spec)}) should be equal to the input rank ({len(shape)}): {spec} for shape {tuple(shape)}"
        )
    return Annotation(sharding, xla_mesh, spec)


@budget(compiles=None)
def mark_sharding(t: torch.Tensor, mesh: AnyMesh, partition_spec: PartitionSpec, use_dynamo_custom_op: bool = False) -> XLAShardedTensor:
    """Shard `t` over the mesh, in place; returns a wrapper of it.

    partition_spec: for each dimension of `t` the mesh axis (index or name) that splits it, a tuple of axes, or None.
    Raises AssertionError for a mesh that is not over all devices or a spec that does not fit `t`, ValueError for a spec with an unknown
    name, RuntimeError outside SPMD mode, for a tensor that is not on `xla`, and for data that is sharded otherwise already.
    use_dynamo_custom_op: where torch.compile traces the call, put an operator that does the same into its graph.
    """
    if (use_dynamo_custom_op and torch.compiler.is_compiling()) or is_traced(t):
        return _mark_in_graph(t, mesh, partition_spec)
    check_mode("mark_sharding")
    annotation = annotation_for(t.shape, mesh, partition_spec)
    annotate(unwrap_sharded_tensor(t), annotation)
    counter_add("XlaMarkSharding")
    return wrap_over(mesh, t, mesh.shape, annotation.spec)


def _mark_in_graph(t: torch.Tensor, mesh: AnyMesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """`t`, marked by an operator (`operators.py`) of the graph that is being traced."""
    xla_mesh = as_mesh(mesh)
    spec, names = str(tuple(partition_spec)), str(xla_mesh.axis_names)
    marked = torch.ops.xla.dynamo_mark_sharding(t, list(xla_mesh.flat_ids), list(xla_mesh.mesh_shape), names, spec)
    return cast(XLAShardedTensor, marked)  # a plain tensor while the graph is traced


@budget()
def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Clear the sharding of `t`, in place; returns the plain tensor. Raises RuntimeError for a shard in a manual region."""
    inner: torch.Tensor = unwrap_sharded_tensor(t)
    check_not_manual(inner)
    set_sharding(inner, None)
    if isinstance(t, XLAShardedTensor):
        t.partition_spec = None
    return inner


@budget()
def wrap_if_sharded(x: Any) -> Any:
    """A wrapper of a tensor on `xla` that has a sharding; anything else as it is."""
    if tensor_behind(x) is None or annotation_of(x) is None:
        return x
    return wrap_as_sharded_tensor(x)

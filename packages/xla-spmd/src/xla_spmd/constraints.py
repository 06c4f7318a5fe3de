"""Other ways to shard a tensor: with its gradient, in this step's program only, or as another tensor is sharded."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.abi.declarations import budget
from xla_spmd.annotations import annotate, annotation_of
from xla_spmd.errors import AnnotationError
from xla_spmd.marking import annotation_for, clear_sharding
from xla_spmd.mesh import AnyMesh
from xla_spmd.operators import constrained
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor


class MarkShardingFunction(torch.autograd.Function):
    """Copy a tensor with a sharding, which its gradient gets too."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, mesh: AnyMesh, partition_spec: PartitionSpec) -> torch.Tensor:
        """The new tensor, plain. Raises as `mark_sharding`."""
        ctx.annotation = annotation_for(t.shape, mesh, partition_spec)
        return constrained(t, ctx.annotation)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient with this sharding."""
        return constrained(grad, ctx.annotation), None, None


@budget()
def mark_sharding_with_gradients(t: torch.Tensor, mesh: AnyMesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """A new tensor with the data of `t`, sharded over the mesh, whose gradient is sharded likewise. Raises as `mark_sharding`."""
    marked: torch.Tensor = MarkShardingFunction.apply(t, mesh, partition_spec)  # type: ignore[no-untyped-call]
    return marked


@budget()
def annotate_custom_sharding(t: torch.Tensor, mesh: AnyMesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Constrain the sharding of `t` in this step's program; its annotation stays, and holds again after the step.

    A tensor can be constrained several times. Raises as `mark_sharding`, but never for an earlier annotation.
    """
    inner = unwrap_sharded_tensor(t)
    inner.data.copy_(clear_sharding(constrained(inner, annotation_for(t.shape, mesh, partition_spec))))
    return wrap_as_sharded_tensor(t)


@budget()
def shard_as(a: torch.Tensor, b: torch.Tensor) -> tuple[XLAShardedTensor, XLAShardedTensor]:
    """Shard two tensors of one shape alike, in place, by the annotation that one of them has. Returns wrappers of both.

    Raises AnnotationError if neither has one, if they have two different ones, and for different shapes.
    """
    if a.shape != b.shape:
        raise AnnotationError(f"shard_as needs tensors of one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    tensors = [unwrap_sharded_tensor(a), unwrap_sharded_tensor(b)]
    present = [annotation_of(tensor) for tensor in tensors]
    annotation = present[0] or present[1]
    if annotation is None:
        raise AnnotationError("shard_as needs a tensor that mark_sharding was called on, and neither of these has a sharding")
    if present[0] and present[1] and present[0].sharding != present[1].sharding:
        raise AnnotationError(
            f"the tensors are sharded as {present[0].sharding} and {present[1].sharding} already: call clear_sharding on one of them"
        )
    for tensor in tensors:
        annotate(tensor, annotation)
    return wrap_as_sharded_tensor(a), wrap_as_sharded_tensor(b)

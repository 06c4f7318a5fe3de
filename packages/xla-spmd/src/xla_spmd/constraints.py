"""Other ways to say how a tensor lies: for its gradient too, for programs only, or as another tensor does."""

from __future__ import annotations

from typing import Any

import torch

from xla_spmd.annotations import annotate, annotation_of
from xla_spmd.errors import AnnotationError
from xla_spmd.marking import annotation_for, clear_sharding
from xla_spmd.mesh import Mesh
from xla_spmd.operators import constrained
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor


class MarkShardingFunction(torch.autograd.Function):
    """A new tensor that lies as told, and so does the gradient that comes back to it."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
        """The new tensor, plain. Raises as `mark_sharding`."""
        ctx.wanted = annotation_for(t.shape, mesh, partition_spec)
        return constrained(t, ctx.wanted)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient, lying so."""
        return constrained(grad, ctx.wanted), None, None


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """A new tensor with the data of `t`, divided over the mesh, whose gradient will lie so too. `t` stays. Raises as `mark_sharding`."""
    marked: torch.Tensor = MarkShardingFunction.apply(t, mesh, partition_spec)  # type: ignore[no-untyped-call]
    return marked


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Tell the program of this step that `t` lies so now; what was said of `t` before stays, and holds again after the step.

    A tensor can be annotated so several times. Raises as `mark_sharding`, but never for what was said before.
    """
    inner = unwrap_sharded_tensor(t)
    inner.data.copy_(clear_sharding(constrained(inner, annotation_for(t.shape, mesh, partition_spec))))
    return wrap_as_sharded_tensor(t)


def shard_as(a: torch.Tensor, b: torch.Tensor) -> tuple[XLAShardedTensor, XLAShardedTensor]:
    """Let two tensors of one shape lie alike, in place: as the one of which a sharding was told. Returns wrappers of them.

    Raises AnnotationError if nothing was told of either, if two shardings were, and for different shapes.
    """
    if a.shape != b.shape:
        raise AnnotationError(f"shard_as needs tensors of one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    inner = [unwrap_sharded_tensor(a), unwrap_sharded_tensor(b)]
    told = [annotation_of(one) for one in inner]
    wanted = told[0] or told[1]
    if wanted is None:
        raise AnnotationError("shard_as needs a tensor that mark_sharding was called on, and nothing was said of either of these")
    if told[0] and told[1] and told[0].sharding != told[1].sharding:
        raise AnnotationError(f"the tensors lie as {told[0].sharding} and {told[1].sharding} already: call clear_sharding on one of them")
    for one in inner:
        annotate(one, wanted)
    return wrap_as_sharded_tensor(a), wrap_as_sharded_tensor(b)

"""Manual regions, in which user code sees one device's shard of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jax.sharding import NamedSharding

from xla_core.abi.declarations import budget
from xla_core.abi.sharding import enter_manual, is_manual, leave_manual
from xla_core.abi.tensors import is_pending
from xla_spmd.annotations import Annotation, annotate, sharding_for_programs
from xla_spmd.errors import AnnotationError
from xla_spmd.marking import annotation_for, check_mode
from xla_spmd.mesh import AnyMesh, get_global_mesh
from xla_spmd.named_sharding import named_sharding, replicated
from xla_spmd.op_sharding import OpSharding
from xla_spmd.shards import shard_shape
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor


class Enter(torch.autograd.Function):
    """From a tensor to each device's shard of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
        """Each device's shard."""
        ctx.sharding, ctx.shape = sharding, tuple(tensor.shape)
        return enter_manual(unwrap_sharded_tensor(tensor), sharding)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The global gradient, from its shards."""
        return leave_manual(unwrap_sharded_tensor(grad), ctx.sharding, ctx.shape), None


class Leave(torch.autograd.Function):
    """From each device's shard of a tensor to the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sharding: NamedSharding, shape: tuple[int, ...]) -> torch.Tensor:
        """The global tensor."""
        ctx.sharding = sharding
        return leave_manual(unwrap_sharded_tensor(tensor), sharding, shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Each device's shard of the gradient."""
        return enter_manual(unwrap_sharded_tensor(grad), ctx.sharding), None, None


def _sharding(caller: str, shape: Sequence[int], mesh: AnyMesh | None, partition_spec: PartitionSpec) -> tuple[Annotation, NamedSharding]:
    check_mode(caller)
    chosen = get_global_mesh() if mesh is None else mesh
    if chosen is None:
        raise AnnotationError(f"{caller} needs a mesh: give mesh=, or set one with set_global_mesh")
    annotation = annotation_for(shape, chosen, partition_spec)
    return annotation, region_sharding(annotation)


def region_sharding(annotation: Annotation) -> NamedSharding:
    """The sharding by which a region begins or ends. Raises AnnotationError if programs cannot hold it."""
    sharding_for_programs(annotation)  # the first one may choose the order of the devices
    sharding = named_sharding(annotation.sharding)
    if sharding is None:
        raise AnnotationError(
            f"a manual region over {annotation.sharding} needs another order of devices than programs run in: use one mesh everywhere"
        )
    return sharding


def check_is_shard(t: torch.Tensor, sharding: OpSharding, full_shape: Sequence[int]) -> None:
    """Raise AnnotationError (a RuntimeError) unless `t` is a shard, in a manual region, of a tensor of `full_shape`."""
    if not is_manual(t):
        raise AnnotationError(f"a tensor of shape {tuple(t.shape)} is no shard: only what comes from enable_manual_sharding is")
    padded = shard_shape(sharding, full_shape)
    if tuple(t.shape) != padded:
        raise AnnotationError(f"shards of a tensor of shape {tuple(full_shape)} under {sharding} have shape {padded}, not {tuple(t.shape)}")


@budget()
def enable_manual_sharding(t: torch.Tensor, partition_spec: PartitionSpec, *, mesh: AnyMesh | None = None) -> XLAShardedTensor:
    """Shard `t` and return each device's shard: operations on it run on each device by itself.

    Until `disable_manual_sharding` the code sees one shard and issues its own collectives. Gradients flow back as shards of the
    global gradient; of what entered replicated (None in the spec), one device's gradient counts: if the devices used it for
    different data, sum the gradients with a collective. mesh: the global one if None. Raises as `mark_sharding`.
    """
    annotation, sharding = _sharding("enable_manual_sharding", t.shape, mesh, partition_spec)
    annotate(unwrap_sharded_tensor(t), annotation)
    return wrap_as_sharded_tensor(Enter.apply(t, sharding))  # type: ignore[no-untyped-call]


@budget()
def disable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, full_shape: Sequence[int], *, mesh: AnyMesh | None = None
) -> XLAShardedTensor:
    """Join each device's shard to the tensor of `full_shape` with this sharding. Raises as `mark_sharding`, and for what is no shard."""
    annotation, sharding = _sharding("disable_manual_sharding", full_shape, mesh, partition_spec)
    inner = unwrap_sharded_tensor(t)
    check_is_shard(inner, annotation.sharding, full_shape)
    full = Leave.apply(t, sharding, tuple(full_shape))  # type: ignore[no-untyped-call]
    annotate(unwrap_sharded_tensor(full), annotation)
    return wrap_as_sharded_tensor(full)


def mark_manual_sharding(t: torch.Tensor) -> XLAShardedTensor:
    """Make a pending result a manual value that each device has all of, in place. Raises AnnotationError for stored data."""
    check_mode("_mark_manual_sharding")
    inner = unwrap_sharded_tensor(t)
    if is_manual(inner):
        return wrap_as_sharded_tensor(t)
    if not is_pending(inner):
        raise AnnotationError(f"only a pending result can become manual, the tensor of shape {tuple(t.shape)} is stored data")
    t.data = enter_manual(inner.detach(), replicated())
    return wrap_as_sharded_tensor(t)

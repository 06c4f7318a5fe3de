"""`local_map` of torch.distributed.tensor: call a function with each device's shards, in a manual region."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

import torch_xla.core.xla_model as xm
from xla_core.abi.tensors import tensor_behind
from xla_spmd._compat import tree_flatten, tree_unflatten
from xla_spmd.annotations import Annotation, annotate
from xla_spmd.errors import PartitionSpecError
from xla_spmd.manual import Enter, Leave, check_is_shard, region_sharding
from xla_spmd.marking import annotation_for
from xla_spmd.mesh import AnyMesh, Mesh, as_mesh
from xla_spmd.placements import axes_by_dimension, placed
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_over

Placements = Sequence[Placement]


def has_sharded(args: Any) -> bool:
    """Whether a sharded tensor is among (nested) arguments."""
    return any(isinstance(leaf, XLAShardedTensor) for leaf in tree_flatten(args)[0])


def local_map(
    function: Callable[..., Any],
    out_placements: Placements | tuple[Placements | None, ...],
    in_placements: Sequence[Placements | None] | None,
    device_mesh: AnyMesh | None,
    redistribute_inputs: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `function` with the shards of sharded tensors and with plain tensors whole; shard its results by `out_placements`.

    Partial results are summed, by xla-distributed. Gradients flow back. Raises ValueError for inputs that are placed otherwise than
    `in_placements` says unless `redistribute_inputs`, for uneven divisions, and for other numbers of placements than tensors.
    """
    leaves, form = tree_flatten(args)
    if in_placements is not None and len(in_placements) != len(leaves):
        raise PartitionSpecError(f"local_map has {len(in_placements)} in_placements for {len(leaves)} arguments: give one for each")
    mesh = next(leaf.device_mesh for leaf in leaves if isinstance(leaf, XLAShardedTensor)) if device_mesh is None else device_mesh
    shards = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, XLAShardedTensor):
            leaf_placements = leaf.placements if in_placements is None else in_placements[index]
            shards.append(_shard(leaf, mesh, leaf_placements, redistribute_inputs))
        else:
            shards.append(leaf if tensor_behind(leaf) is None else _shard(leaf, mesh, None, True))
    results, form = tree_flatten(function(*tree_unflatten(shards, form), **kwargs))
    layouts = out_placements if isinstance(out_placements, tuple) else (out_placements,)
    if len(layouts) != len(results):
        raise PartitionSpecError(f"local_map has {len(layouts)} out_placements for {len(results)} results: give one for each")
    return tree_unflatten([_global_result(result, mesh, layout) for result, layout in zip(results, layouts, strict=True)], form)


def _shard(tensor: torch.Tensor, mesh: AnyMesh, placements: Placements | None, redistribute: bool) -> torch.Tensor:
    full, spec = placed(tensor, mesh, placements)
    if not redistribute and spec != placed(tensor, tensor.device_mesh, tensor.placements)[1]:  # type: ignore[attr-defined]
        raise PartitionSpecError(
            f"local_map takes a tensor of shape {tuple(tensor.shape)} placed as {placements}, this one is placed as "
            f"{tensor.placements}: call redistribute on it, or give redistribute_inputs=True"  # type: ignore[attr-defined]
        )
    for dim, axes in enumerate(axes_by_dimension(full, spec)):
        count = _size(full, axes)
        if tensor.shape[dim] % count:
            raise PartitionSpecError(
                f"local_map needs shards of one shape: dimension {dim} of {tuple(tensor.shape)} is not divisible by {count}, pad it first"
            )
    shard: torch.Tensor = Enter.apply(tensor, region_sharding(annotation_for(tensor.shape, full, spec)))  # type: ignore[no-untyped-call]
    return shard


def _global_result(result: Any, mesh: AnyMesh, placements: Placements | None) -> Any:
    if not isinstance(result, torch.Tensor) or placements is None:
        return result
    xla_mesh = as_mesh(mesh)
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            result = _Sum.apply(result, placement.reduce_op, xla_mesh, axis)  # type: ignore[no-untyped-call]
    summed = [Replicate() if isinstance(placement, Partial) else placement for placement in placements]
    xla_mesh, spec = placed(result, mesh, summed)
    shape = tuple([size * _size(xla_mesh, axes) for size, axes in zip(result.shape, axes_by_dimension(xla_mesh, spec), strict=True)])
    annotation: Annotation = annotation_for(shape, xla_mesh, spec)
    check_is_shard(unwrap_sharded_tensor(result), annotation.sharding, shape)
    joined = Leave.apply(result, region_sharding(annotation), shape)  # type: ignore[no-untyped-call]
    annotate(unwrap_sharded_tensor(joined), annotation)
    return wrap_over(mesh, joined, mesh.shape, spec)


def _size(mesh: Mesh, axes: Sequence[int]) -> int:
    return math.prod(mesh.mesh_shape[axis] for axis in axes)


class _Sum(torch.autograd.Function):
    """Sum or average the partial results of the devices along a mesh axis; each of them gets the gradient of the result."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, reduce_op: str, mesh: Mesh, axis: int) -> torch.Tensor:
        """The sum. Raises PartitionSpecError for another reduction."""
        if reduce_op not in ("sum", "avg"):
            raise PartitionSpecError(f"local_map sums partial results or takes their mean, Partial({reduce_op!r}) is neither")
        size = mesh.mesh_shape[axis]
        ctx.scale = 1.0 if reduce_op == "sum" else 1.0 / size
        groups = mesh.get_logical_mesh().swapaxes(axis, -1).reshape(-1, size).tolist()
        total: torch.Tensor = xm.all_reduce("sum", shard, ctx.scale, groups)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradient of the sum."""
        return grad * ctx.scale, None, None, None

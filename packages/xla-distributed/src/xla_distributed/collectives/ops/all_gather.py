"""Gather the tensors of a group's replicas on each of them: `xm.all_gather`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax

import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import check_output, tensor_list
from xla_core.abi.job import is_spmd
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.arguments import check_on_device, dimension, returned
from xla_distributed.collectives.definition import GROUPS, Results, Tensors, define, resized
from xla_distributed.collectives.groups import ReplicaGroups, even_groups_of
from xla_distributed.collectives.lowering import Ints, in_order, index_groups, join, together
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _shapes(inputs: Tensors, token: torch.Tensor, dim: int, count: int, *_: Any) -> Results:
    return [resized(x, dim, count, 1) for x in inputs], torch.empty_like(token)


def _lower(
    context: Context, inputs: list[jax.Array], token: jax.Array, dim: int, count: int, members: Ints, sizes: Ints
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = join(tensors)
        shapes = [(*x.shape[:dim], count * x.shape[dim], *x.shape[dim + 1 :]) for x in tensors]
        if not flat.size:
            return [lax.full(shape, 0, flat.dtype) for shape in shapes], token
        rows, token = in_order(flat, token, lambda x: lax.all_gather(x, REPLICA_AXIS, axis_index_groups=groups))
        made, start = [], 0
        for x, shape in zip(tensors, shapes, strict=True):
            piece = lax.reshape(lax.slice(rows, (0, start), (count, start + x.size)), (count, *x.shape))
            made.append(lax.reshape(jax.numpy.moveaxis(piece, 0, dim), shape))
            start += x.size
        return made, token

    results, token = together(inputs, token, step)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, dim: int, count: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    everyone, _ = gathered(name, inputs, (dim,), members, sizes)
    return [torch.cat(each, dim) for each in zip(*everyone, strict=True)]


ALL_GATHER = define(
    "all_gather",
    f"(Tensor[] inputs, Tensor token, int dim, int count, {GROUPS}) -> (Tensor[], Tensor)",
    _shapes,
    _lower,
    _among_threads,
    shown_as="xla::all_gather",
)


def all_gather(
    value: Any,
    dim: int = 0,
    groups: ReplicaGroups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Concatenate the tensors of a group along `dim`, in the group's order: that dimension becomes as many times larger as the group is.

    value: a tensor, or a list with pin_layout=False, for which a list is returned. output: is written to and returned. groups: as of
    `all_reduce`, of one size. channel_id, use_global_device_ids: have no effect.
    Raises RuntimeError for a list with pin_layout, AssertionError for groups of several sizes, IndexError for a dimension out of range.
    """
    tensors = tensor_list("all_gather", value, pin_layout)
    check_output("all_gather", value, output)
    check_on_device("all_gather", tensors)
    found = even_groups_of(groups, "all_gather")
    if not tensors:
        return returned(value, [], output)
    dims = {dimension(tensor, dim) for tensor in tensors}
    if len(dims) == 1:
        results = record(ALL_GATHER, tensors, dims.pop(), found.size, groups=found)
    else:  # a negative dim of tensors with different ranks
        results = [all_gather(tensor, dim, groups, pin_layout=False) for tensor in tensors]
    return returned(value, results, output)


def all_gather_using_all_reduce(value: torch.Tensor, dim: int = 0, groups: ReplicaGroups = None, pin_layout: bool = True) -> torch.Tensor:
    """As `all_gather` of a tensor, by a sum in which each replica adds its tensor to zeros."""
    if is_spmd():  # no host knows which part it pads
        whole: torch.Tensor = xm.all_gather(value, dim, groups, pin_layout=pin_layout)
        return whole
    found = even_groups_of(groups, "all_gather")
    dim = dimension(value, dim)
    size = value.size(dim)
    padding = [0] * (2 * value.dim())
    last = 2 * (value.dim() - 1 - dim)  # torch counts dimensions from the last
    padding[last : last + 2] = [found.place * size, (found.size - 1 - found.place) * size]
    with torch.no_grad():
        padded = torch.nn.functional.pad(value, padding)
    result: torch.Tensor = xm.all_reduce("sum", padded, groups=groups, pin_layout=pin_layout)
    return result


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.all_gather": all_gather,
    "torch_xla.core.xla_model._all_gather_using_all_reduce": all_gather_using_all_reduce,
}

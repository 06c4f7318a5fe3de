"""Reduce tensors over the replicas of a group, of which each gets its shard: `xm.reduce_scatter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.abi.collectives import ReduceOp, check_output, parse_reduce_op, tensor_list
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.arguments import check_on_device, dimension, returned
from xla_distributed.collectives.definition import GROUPS, Results, Tensors, define, resized
from xla_distributed.collectives.groups import ReplicaGroups, even_groups_of
from xla_distributed.collectives.lowering import IndexGroups, Ints, flatten, in_order, index_groups, place_in_group, together
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.reductions import reduced, reduced_among_threads, scaled
from xla_distributed.collectives.threads import gathered


def _shapes(inputs: Tensors, token: torch.Tensor, reduction: str, scale: float, dim: int, count: int, *_: Any) -> Results:
    return [resized(x, dim, 1, count) for x in inputs], torch.empty_like(token)


def _lower(
    context: Context,
    inputs: list[jax.Array],
    token: jax.Array,
    reduction: str,
    scale: Any,
    dim: int,
    count: int,
    members: Ints,
    sizes: Ints,
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        shapes = [(*x.shape[:dim], x.shape[dim] // count, *x.shape[dim + 1 :]) for x in tensors]
        # Rows, so that one scatter along the first axis does for tensors of any shape.
        rows = [_rows(x, dim, count) for x in tensors]
        joined = lax.concatenate(rows, 1) if len(rows) > 1 else rows[0]
        if not joined.size:
            return [lax.full(shape, 0, joined.dtype) for shape in shapes], token
        flat, width = flatten(joined), joined.shape[1]
        mine, token = in_order(flat, token, lambda x: _scattered(x, ReduceOp(reduction), count, width, groups))
        made, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            made.append(lax.reshape(lax.slice(mine, (start,), (start + size,)), shape))
            start += size
        # After the cut: each replica scales only what it keeps.
        return [scaled(x, scale) for x in made], token

    results, token = together(inputs, token, step)
    return [*results, token]


def _rows(x: jax.Array, dim: int, count: int) -> jax.Array:
    """The parts that go to each member of a group, a row each."""
    split = lax.reshape(x, (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]))
    return lax.reshape(jax.numpy.moveaxis(split, dim, 0), (count, x.size // count))


def _scattered(flat: jax.Array, op: ReduceOp, count: int, width: int, groups: IndexGroups) -> jax.Array:
    # JAX has a scatter of sums only; of others each replica makes all and keeps its part.
    if op is ReduceOp.SUM and flat.dtype != np.bool_:
        rows = lax.reshape(flat, (count, width))
        return lax.psum_scatter(rows, REPLICA_AXIS, axis_index_groups=groups)  # type: ignore[no-any-return]
    everything = reduced(flat, op, groups)
    return lax.dynamic_slice(everything, (place_in_group(groups) * width,), (width,))


def _among_threads(
    name: str, inputs: Tensors, reduction: str, scale: float, dim: int, count: int, members: Any, sizes: Any
) -> list[torch.Tensor]:
    everyone, place = gathered(name, inputs, (reduction, scale, dim), members, sizes)
    return [total.chunk(count, dim)[place] for total in reduced_among_threads(everyone, ReduceOp(reduction), scale)]


REDUCE_SCATTER = define(
    "reduce_scatter",
    f"(Tensor[] inputs, Tensor token, str reduction, float scale, int dim, int count, {GROUPS}) -> (Tensor[], Tensor)",
    _shapes,
    _lower,
    _among_threads,
    scalars=["scale"],
    shown_as="xla::reduce_scatter",
)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: ReplicaGroups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduce tensors over a group and keep this replica's shard of the result along `scatter_dim`, which shrinks by `shard_count`.

    reduce_type, scale: as of `all_reduce`. input, groups, output: as of `all_gather`. shard_count: the size of the group.
    Raises ValueError for another shard_count and for a dimension that it does not divide; else as `all_reduce` and `all_gather`.
    """
    tensors = tensor_list("reduce_scatter", input, pin_layout)
    check_output("reduce_scatter", input, output)
    check_on_device("reduce_scatter", tensors)
    op = parse_reduce_op(reduce_type)
    op.check_dtypes(tensors)
    found = even_groups_of(groups, "reduce_scatter")
    if shard_count != found.size:
        raise ValueError(f"reduce_scatter: shard_count is {shard_count}, must be the group's size, {found.size}")
    if not tensors:
        return returned(input, [], output)
    dims = [dimension(tensor, scatter_dim) for tensor in tensors]
    for tensor, dim in zip(tensors, dims, strict=True):
        if tensor.size(dim) % shard_count:
            raise ValueError(f"reduce_scatter: dimension {dim} of {tuple(tensor.shape)} is not divisible by {shard_count} members")
    if len(set(dims)) == 1:
        rest = (op.value, float(scale), dims[0], shard_count)
        results = record(REDUCE_SCATTER, tensors, *rest, groups=found)
    else:
        # A negative scatter_dim of tensors with different ranks.
        results = [reduce_scatter(reduce_type, tensor, scale, scatter_dim, shard_count, groups) for tensor in tensors]
    return returned(input, results, output)


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.reduce_scatter": reduce_scatter,
}

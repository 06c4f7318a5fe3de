"""Reduce tensors over the replicas of a group and give each replica its shard: `xm.reduce_scatter`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.abi.collectives import Groups, ReduceOp
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives import tiles
from xla_distributed.collectives.definition import GROUPS, Results, Tensors, define, resized
from xla_distributed.collectives.lowering import IndexGroups, Ints, flatten, in_order, in_own_shapes, index_groups, place_in_group, together
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
        kept, token = in_order(flat, token, lambda x: _scattered(x, ReduceOp(reduction), count, width, groups))
        outputs, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            outputs.append(lax.reshape(lax.slice(kept, (start,), (start + size,)), shape))
            start += size
        # After the cut: each replica scales only what it keeps.
        return [scaled(x, scale) for x in outputs], token

    def own_part(x: jax.Array) -> jax.Array:
        return scaled(_own_part(context, x, ReduceOp(reduction), count, dim, groups), scale)

    results, token = together(inputs, token, step) if context.platform == "cpu" else in_own_shapes(inputs, token, own_part)
    return [*results, token]


def _own_part(context: Context, x: jax.Array, op: ReduceOp, count: int, dim: int, groups: IndexGroups) -> jax.Array:
    """This member's part of the reduction, along a dimension."""
    size = x.shape[dim] // count
    if op is ReduceOp.SUM and x.dtype != np.bool_:
        if tiles.by_tiles(context, x, size):
            return tiles.scattered(x, count, groups)
        return lax.psum_scatter(x, REPLICA_AXIS, scatter_dimension=dim, axis_index_groups=groups, tiled=True)  # type: ignore[no-any-return]
    return lax.dynamic_slice_in_dim(reduced(x, op, groups), place_in_group(groups) * size, size, dim)


def _rows(x: jax.Array, dim: int, count: int) -> jax.Array:
    """The parts that go to each member of a group, a row each."""
    split = lax.reshape(x, (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]))
    return lax.reshape(jax.numpy.moveaxis(split, dim, 0), (count, x.size // count))


def _scattered(flat: jax.Array, op: ReduceOp, count: int, width: int, groups: IndexGroups) -> jax.Array:
    # JAX scatters sums only; each replica computes other reductions whole and keeps its part.
    if op is ReduceOp.SUM and flat.dtype != np.bool_:
        rows = lax.reshape(flat, (count, width))
        return lax.psum_scatter(rows, REPLICA_AXIS, axis_index_groups=groups)  # type: ignore[no-any-return]
    total = reduced(flat, op, groups)
    return lax.dynamic_slice(total, (place_in_group(groups) * width,), (width,))


def _among_threads(
    name: str, inputs: Tensors, reduction: str, scale: float, dim: int, count: int, members: Any, sizes: Any
) -> list[torch.Tensor]:
    by_member, position = gathered(name, inputs, (reduction, scale, dim), members, sizes)
    return [total.chunk(count, dim)[position] for total in reduced_among_threads(by_member, ReduceOp(reduction), scale)]


REDUCE_SCATTER = define(
    "reduce_scatter",
    f"(Tensor[] inputs, Tensor token, str reduction, float scale, int dim, int count, {GROUPS}) -> (Tensor[], Tensor)",
    _shapes,
    _lower,
    _among_threads,
    scalars=["scale"],
    shown_as="xla::reduce_scatter",
)


def reduce_scatter(op: ReduceOp, tensors: Tensors, scale: float, dim: int, groups: Groups) -> Tensors:
    """The reduction of each tensor over a group, times `scale`, of which member k keeps part k along `dim`."""
    results: Tensors = record(REDUCE_SCATTER, tensors, op.value, scale, dim, groups.size, groups=groups)
    return results

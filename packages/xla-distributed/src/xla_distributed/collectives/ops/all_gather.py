"""Gather the tensors of a group's replicas on each of them: `xm.all_gather`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch
from jax import lax

from xla_core.abi.collectives import Groups
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives import tiles
from xla_distributed.collectives.definition import GROUPS, Results, Tensors, define, resized
from xla_distributed.collectives.lowering import Ints, in_order, in_own_shapes, index_groups, join, together
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
        outputs, start = [], 0
        for x, shape in zip(tensors, shapes, strict=True):
            piece = lax.reshape(lax.slice(rows, (0, start), (count, start + x.size)), (count, *x.shape))
            outputs.append(lax.reshape(jax.numpy.moveaxis(piece, 0, dim), shape))
            start += x.size
        return outputs, token

    def whole(x: jax.Array) -> jax.Array:
        if tiles.by_tiles(context, x, x.size):
            return tiles.gathered(x, count, groups)
        return lax.all_gather(x, REPLICA_AXIS, axis_index_groups=groups, axis=dim, tiled=True)  # type: ignore[no-any-return]

    results, token = together(inputs, token, step) if context.platform == "cpu" else in_own_shapes(inputs, token, whole)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, dim: int, count: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    by_member, _ = gathered(name, inputs, (dim,), members, sizes)
    return [torch.cat(tensors, dim) for tensors in zip(*by_member, strict=True)]


ALL_GATHER = define(
    "all_gather",
    f"(Tensor[] inputs, Tensor token, int dim, int count, {GROUPS}) -> (Tensor[], Tensor)",
    _shapes,
    _lower,
    _among_threads,
    shown_as="xla::all_gather",
)


def all_gather(tensors: Tensors, dim: int, groups: Groups) -> Tensors:
    """The tensors of all members concatenated along `dim`, in the order of the group."""
    results: Tensors = record(ALL_GATHER, tensors, dim, groups.size, groups=groups)
    return results

"""Selection by boolean masks: masked_fill, masked_scatter, and the triangles of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import at_run_time, count, iota_along
from xla_core.ops.checks import Fault
from xla_core.ops.index.index import take_rows
from xla_core.ops.promote import Number, cast, expand, full
from xla_core.ops.reduce.reduce import nonzero
from xla_core.ops.table import Context, op

_INT64 = np.dtype(np.int64)


@op("masked_fill.Tensor", overlapping_writes=True)
@op("masked_fill.Scalar", scalars=("value",), overlapping_writes=True)
def _masked_fill(ctx: Context, x: jax.Array, mask: jax.Array, value: Number | jax.Array) -> jax.Array:
    """masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor"""
    return lax.select(expand(nonzero(mask), ctx.shape), full(value, ctx.shape, ctx.dtype), expand(x, ctx.shape))


def ranks_of_set(mask: jax.Array) -> jax.Array:
    """For each element of a flat mask, how many set elements stand before it."""
    flags = at_run_time(cast(mask, _INT64))
    return lax.sub(lax.cumsum(flags, 0), flags)


def set_positions(mask: jax.Array) -> jax.Array:
    """Flat positions of the set elements of a mask in order, then those of the others: one for each element."""
    flat = at_run_time(lax.reshape(mask, (mask.size,)))
    _, order = lax.sort((cast(lax.bitwise_not(flat), np.dtype(np.int8)), iota_along(flat.shape, 0, _INT64)), num_keys=1)
    return order


@op("masked_scatter")
def _masked_scatter(ctx: Context, x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    x, mask = expand(x, ctx.shape), expand(nonzero(mask), ctx.shape)
    number = lax.reduce_sum(cast(mask, _INT64), tuple(range(mask.ndim)))
    ctx.check(Fault.MASK_SOURCE, lax.gt(number, lax.full_like(number, source.size)), number, source.size)
    if not source.size or not x.size:
        return x
    found = take_rows(lax.reshape(source, (source.size,)), 0, ranks_of_set(lax.reshape(mask, (mask.size,))))
    return lax.select(mask, lax.reshape(found, ctx.shape), x)


@op("masked_scatter_backward")
def _masked_scatter_backward(ctx: Context, grad: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor: the masked gradients, then zeros."""
    size = count(ctx.shape, range(len(ctx.shape)))
    if not grad.size or not size:
        return full(0, ctx.shape, ctx.dtype)
    mask = expand(nonzero(mask), grad.shape)
    found = take_rows(lax.reshape(grad, (grad.size,)), 0, set_positions(mask))
    number = lax.reduce_sum(cast(mask, _INT64), tuple(range(mask.ndim)))
    used = lax.lt(iota_along(found.shape, 0, _INT64), lax.broadcast(number, found.shape))
    found = lax.select(used, found, lax.full_like(found, 0))
    padded = lax.pad(found, lax.full_like(found, 0, shape=()), [(0, size - grad.size, 0)])
    return lax.reshape(padded, ctx.shape)


def _triangle(keep: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array, diagonal: int = 0) -> jax.Array:
        """tril(Tensor self, SymInt diagonal=0) -> Tensor"""
        rows, columns = (iota_along(x.shape, x.ndim - 2 + k, _INT64) for k in (0, 1))
        offset = lax.sub(columns, rows)
        return lax.select(keep(offset, full(diagonal, offset.shape, _INT64)), x, lax.full_like(x, 0))

    return lower


op("tril", scalars=("diagonal",))(_triangle(lax.le))
op("triu", scalars=("diagonal",))(_triangle(lax.ge))


@op("nonzero_static", notes="the elements found first, then fill_value")
def _nonzero_static(ctx: Context, x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    if not (x.size and x.ndim and size):
        return full(fill_value, ctx.shape, ctx.dtype)
    mask = nonzero(x)
    found = set_positions(mask)
    found = lax.pad(found, lax.full_like(found, 0, shape=()), [(0, size - x.size, 0)])
    columns: list[jax.Array] = []
    for length in reversed(x.shape):
        columns.insert(0, lax.expand_dims(lax.rem(found, lax.full_like(found, length)), (1,)))
        found = lax.div(found, lax.full_like(found, length))
    positions = lax.concatenate(columns, 1)
    number = lax.reduce_sum(cast(mask, _INT64), tuple(range(x.ndim)))
    exists = lax.lt(iota_along(positions.shape, 0, _INT64), lax.broadcast(number, positions.shape))
    return cast(lax.select(exists, positions, lax.full_like(positions, fill_value)), ctx.dtype)

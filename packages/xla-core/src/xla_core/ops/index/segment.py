"""Reductions over runs of a dimension: segment_reduce and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import axis as dimension
from xla_core.ops.checks import Fault
from xla_core.ops.index.index import take_along
from xla_core.ops.index.scatter import scatter_along
from xla_core.ops.index.search import insertion_points
from xla_core.ops.promote import Number, cast, full
from xla_core.ops.reduce.reduce import isnan
from xla_core.ops.table import Context, op, scalar

_INT64 = np.dtype(np.int64)
_KINDS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}
_STARTS: dict[str, float] = {"sum": 0, "mean": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}


def _bounds(lengths: jax.Array | None, offsets: jax.Array | None, dim: int) -> tuple[jax.Array, jax.Array]:
    """First and one-past-last position of each segment, of shape (leading dimensions, segments)."""
    if lengths is not None:
        ends = lax.cumsum(cast(lengths, _INT64), dim)
        return lax.sub(ends, cast(lengths, _INT64)), ends
    if offsets is None:
        raise ValueError("segments are given by lengths or offsets")
    places = cast(offsets, _INT64)
    return lax.slice_in_dim(places, 0, -1, axis=dim), lax.slice_in_dim(places, 1, None, axis=dim)


def _segments(shape: Sequence[int], starts: jax.Array, ends: jax.Array, dim: int) -> jax.Array:
    """For each element of an array of `shape` the segment along `dim` that it is in, or their number if it is in none."""
    rows, number = int(np.prod(shape[:dim], dtype=np.int64)), ends.shape[dim]
    places = lax.broadcasted_iota(_INT64, (rows, shape[dim]), 1)
    flat_ends, flat_starts = lax.reshape(ends, (rows, number)), lax.reshape(starts, (rows, number))
    found = insertion_points(flat_ends, places, True)
    if number:
        before = lax.lt(places, take_along(flat_starts, 1, found))
        found = lax.select(before, lax.full_like(found, number), found)
    found = lax.reshape(found, tuple(shape[: dim + 1]))
    return lax.broadcast_in_dim(found, tuple(shape), tuple(range(dim + 1)))


def _sizes(shape: Sequence[int], starts: jax.Array, ends: jax.Array, dim: int) -> jax.Array:
    """Length of each segment, in the shape of the result."""
    return lax.broadcast_in_dim(lax.sub(ends, starts), tuple(shape), tuple(range(dim + 1)))


@op("segment_reduce", scalars=("initial",))
def _segment_reduce(
    ctx: Context,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | jax.Array | None = None,
) -> jax.Array:
    """segment_reduce(Tensor data, str reduce, *, Tensor? lengths, Tensor? offsets, int axis=0, Scalar? initial=None) -> Tensor"""
    axis = dimension(axis, data.ndim)
    if lengths is not None and not unsafe:
        below, totals = lax.lt(lengths, lax.full_like(lengths, 0)), lax.reduce_sum(cast(lengths, _INT64), (axis,))
        ctx.check(Fault.NEGATIVE_LENGTH, below)
        ctx.check(Fault.LENGTHS, lax.ne(totals, lax.full_like(totals, data.shape[axis])))
    starts, ends = _bounds(lengths, offsets, axis)
    start = scalar(_STARTS[reduce] if initial is None else initial, data.dtype)
    cells = full(start, ctx.shape, data.dtype)
    if data.size and cells.size:
        cells = scatter_along(cells, axis, _segments(data.shape, starts, ends, axis), data, _KINDS[reduce])
    if reduce == "mean":
        sizes = _sizes(ctx.shape, starts, ends, axis)
        empty = lax.eq(sizes, lax.full_like(sizes, 0))
        nothing = cells if initial is not None else lax.full_like(cells, float("nan"))
        cells = lax.select(empty, nothing, lax.div(cells, cast(sizes, data.dtype)))
    return cells


@op("_segment_reduce_backward", scalars=("initial",))
def _segment_reduce_backward(
    ctx: Context,
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> jax.Array:
    """_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, …) -> Tensor; extremes share their gradient"""
    if not (data.size and output.size):
        return full(0, ctx.shape, ctx.dtype)
    axis = dimension(axis, data.ndim)
    starts, ends = _bounds(lengths, offsets, axis)
    segments = _segments(data.shape, starts, ends, axis)
    inside = lax.lt(segments, lax.full_like(segments, ends.shape[axis]))
    there, result = take_along(grad, axis, segments), take_along(output, axis, segments)
    if reduce in ("max", "min"):
        chosen = lax.bitwise_or(lax.eq(data, result), lax.bitwise_and(isnan(data), isnan(result)))
        flags = cast(lax.bitwise_and(chosen, inside), data.dtype)
        ties = scatter_along(lax.full_like(output, 0), axis, segments, flags, "sum")
        there = lax.select(chosen, lax.div(there, take_along(ties, axis, segments)), lax.full_like(there, 0))
    elif reduce == "mean":
        there = lax.div(there, take_along(cast(_sizes(output.shape, starts, ends, axis), data.dtype), axis, segments))
    elif reduce == "prod":
        start = full(scalar(1 if initial is None else initial, data.dtype), output.shape, data.dtype)
        there = lax.mul(there, _product_of_others(data, result, start, axis, segments))
    return lax.select(inside, there, lax.full_like(there, 0))


def _product_of_others(data: jax.Array, result: jax.Array, start: jax.Array, dim: int, segments: jax.Array) -> jax.Array:
    """The product of a segment without each of its elements: divided out, but for zeros and NaN, which are left out."""
    zero, one = lax.full_like(data, 0), lax.full_like(data, 1)
    special = lax.bitwise_or(lax.eq(data, zero), isnan(data))
    number = take_along(scatter_along(lax.full_like(start, 0), dim, segments, cast(special, data.dtype), "sum"), dim, segments)
    plain = take_along(scatter_along(start, dim, segments, lax.select(special, one, data), "prod"), dim, segments)
    # With another zero or NaN beside it, an element's product of others is that of the whole, or zero.
    alone = lax.select(lax.eq(number, one), plain, lax.mul(result, lax.select(isnan(result), one, zero)))
    return lax.select(special, alone, lax.div(result, data))

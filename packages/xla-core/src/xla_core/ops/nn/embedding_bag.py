"""Sums, means and maxima of bags of embedding rows, and row renormalisation.

Besides the result, the forward operation returns what its gradient needs, in the shapes of devices other than the CPU.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import iota_along, slice_along
from xla_core.ops.checks import Fault, outside
from xla_core.ops.index.index import CLAMPS, take_rows
from xla_core.ops.index.scatter import DROPS, scatter_along, scatter_at
from xla_core.ops.index.search import insertion_points
from xla_core.ops.linalg.distance import shrink
from xla_core.ops.promote import cast, compute_dtype, full, highest, lowest
from xla_core.ops.reduce.reduce import finish, norm_over
from xla_core.ops.table import Context, op

_SUM, _MEAN, _MAX = 0, 1, 2
_INT64 = np.dtype(np.int64)


def _rows_like(column: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One value per row, repeated over the row."""
    return lax.broadcast_in_dim(column, shape, (0,))


def _add_up(values: jax.Array, place: jax.Array, size: int) -> jax.Array:
    """Rows (or values) summed by the place that each belongs to."""
    return scatter_at(full(0, (size, *values.shape[1:]), values.dtype), (0,), (place,), values, 0, "sum")


def _bag_of(offsets: jax.Array, samples: int) -> jax.Array:
    """The bag of each sample: how many bags begin at or before it, less one."""
    places = lax.broadcasted_iota(_INT64, (1, samples), 1)
    begun = insertion_points(lax.reshape(cast(offsets, _INT64), (1, offsets.size)), places, True)
    return lax.sub(lax.reshape(begun, (samples,)), full(1, (samples,), _INT64))


def _maxima(rows: jax.Array, index: jax.Array, bag: jax.Array, used: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
    """The largest used row elements of each bag and the embedding they come from; zeros for empty bags."""
    target = lax.select(used, bag, full(number, bag.shape, _INT64))
    peak = scatter_at(full(lowest(rows.dtype), (number, rows.shape[1]), rows.dtype), (0,), (target,), rows, 0, "amax")
    if not (rows.size and number):
        return lax.full_like(peak, 0), full(0, peak.shape, _INT64)
    hit = lax.bitwise_and(lax.eq(rows, take_rows(peak, 0, bag)), _rows_like(used, rows.shape))
    places = iota_along(rows.shape, 0, _INT64)
    none = lax.full_like(places, highest(_INT64))
    first = scatter_at(full(highest(_INT64), peak.shape, _INT64), (0,), (bag,), lax.select(hit, places, none), 0, "amin")
    found = lax.lt(first, lax.full_like(first, rows.shape[0]))
    flat = lax.reshape(first, (first.size,))
    source = lax.reshape(take_rows(cast(index, _INT64), 0, flat), peak.shape)
    return lax.select(found, peak, lax.full_like(peak, 0)), lax.select(found, source, lax.full_like(source, 0))


def _is_row(indices: jax.Array, padding_idx: int) -> jax.Array:
    return lax.ne(indices, lax.full_like(indices, padding_idx))


@op("_embedding_bag", "_embedding_bag_forward_only", notes=CLAMPS)
def _embedding_bag(
    ctx: Context,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, ...) -> (Tensor, offset2bag, bag_size, max_indices)"""
    number = ctx.shape[0]
    ctx.check(Fault.BAG, outside(indices, weight.shape[0]), indices, weight.shape[0])
    if offsets.size:
        first, last = slice_along(offsets, 0, 0, 1), slice_along(offsets, 0, offsets.size - 1, offsets.size)
        ctx.check(Fault.FIRST_OFFSET, lax.ne(first, lax.full_like(first, 0)), first)
        ctx.check(Fault.LAST_OFFSET, lax.gt(last, lax.full_like(last, indices.size)), last, indices.size)
    bag = _bag_of(offsets, indices.size)
    used = lax.bitwise_and(_is_row(indices, padding_idx), lax.lt(bag, lax.full_like(bag, number)))
    sizes = _add_up(cast(used, _INT64), bag, number)
    rows = cast(take_rows(weight, 0, indices), compute_dtype(ctx.dtype))
    if mode == _MAX:
        result, maximal = _maxima(rows, indices, bag, used, number)
    else:
        if per_sample_weights is not None:
            rows = lax.mul(rows, _rows_like(cast(per_sample_weights, rows.dtype), rows.shape))
        rows = lax.select(_rows_like(used, rows.shape), rows, lax.full_like(rows, 0))
        result, maximal = _add_up(rows, bag, number), full(0, (0,), _INT64)
        if mode == _MEAN:
            result = cast(cast(result, ctx.dtype), rows.dtype)  # rounded twice, as torch does
            result = lax.div(result, _rows_like(cast(lax.max(sizes, lax.full_like(sizes, 1)), rows.dtype), result.shape))
    sizes = lax.pad(sizes, full(0, (), _INT64), [(0, offsets.size - number, 0)])
    return finish(ctx, result), finish(ctx, bag, 1), finish(ctx, sizes, 2), finish(ctx, maximal, 3)


def _weight_gradient(
    ctx: Context,
    grad: jax.Array,
    indices: jax.Array,
    bag: jax.Array,
    sizes: jax.Array,
    maximal: jax.Array,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int,
) -> jax.Array:
    """The gradient of the embedding matrix from what the forward operation returned."""
    grad = cast(grad, compute_dtype(ctx.dtype))
    nothing = full(0, ctx.shape, grad.dtype)
    if not (grad.size and indices.size):
        return finish(ctx, nothing)
    if mode == _MAX:
        filled = lax.gt(slice_along(sizes, 0, 0, grad.shape[0]), full(0, grad.shape[:1], sizes.dtype))
        grad = lax.select(_rows_like(filled, grad.shape), grad, lax.full_like(grad, 0))
        return finish(ctx, scatter_along(nothing, 0, maximal, grad, "sum"))
    rows = take_rows(grad, 0, bag)
    factor = full(1, indices.shape, rows.dtype)
    if per_sample_weights is not None:
        factor = cast(per_sample_weights, rows.dtype)
    if mode == _MEAN:
        factor = lax.div(factor, cast(take_rows(sizes, 0, bag), rows.dtype))
    if scale_grad_by_freq:
        hits = _add_up(full(1, indices.shape, rows.dtype), indices, ctx.shape[0])
        factor = lax.div(factor, take_rows(hits, 0, indices))
    used = _is_row(indices, padding_idx)
    factor = cast(cast(factor, ctx.dtype), rows.dtype)
    rows = lax.select(_rows_like(used, rows.shape), lax.mul(rows, _rows_like(factor, rows.shape)), lax.full_like(rows, 0))
    # In half precision torch rounds factors, products and each sum.
    return scatter_at(cast(nothing, ctx.dtype), (0,), (indices,), cast(rows, ctx.dtype), 0, "sum")


@op("_embedding_bag_dense_backward", notes=DROPS)
def _dense_backward(
    ctx: Context,
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    """_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, ...)"""
    return _weight_gradient(
        ctx, grad, indices, offset2bag, bag_size, maximum_indices, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


@op("_embedding_bag_backward", notes=DROPS)
def _backward(
    ctx: Context,
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    """_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, ...) -> Tensor; always dense."""
    return _weight_gradient(
        ctx, grad, indices, offset2bag, bag_size, maximum_indices, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


@op("_embedding_bag_per_sample_weights_backward", notes=CLAMPS)
def _per_sample_weights_backward(
    ctx: Context,
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    """_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, ...)"""
    wide = compute_dtype(ctx.dtype)
    products = lax.mul(take_rows(cast(grad, wide), 0, offset2bag), take_rows(cast(weight, wide), 0, indices))
    found = lax.reduce_sum(products, (1,))
    return finish(ctx, lax.select(_is_row(indices, padding_idx), found, lax.full_like(found, 0)))


@op("embedding_renorm", scalars=("max_norm",), notes=DROPS)
def _renorm(ctx: Context, weight: jax.Array, indices: jax.Array, max_norm: Any, norm_type: float) -> jax.Array:
    """embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor: only rows named by the indices shrink"""
    wide = cast(weight, compute_dtype(weight.dtype))
    index = lax.reshape(indices, (indices.size,))
    ctx.check(Fault.INDEX, outside(index, weight.shape[0]), index, 0, weight.shape[0])
    named = lax.gt(_add_up(full(1, index.shape, np.dtype(np.int32)), index, weight.shape[0]), full(0, weight.shape[:1], np.dtype(np.int32)))
    factor = shrink(norm_over(ctx, wide, norm_type, (1,)), max_norm)
    factor = lax.select(named, factor, lax.full_like(factor, 1))
    return cast(lax.mul(wide, _rows_like(factor, wide.shape)), ctx.dtype)

"""Writes at computed positions along one dimension, and the shared ways to write: set, add, multiply, extremes, mean.

What would be written outside a dimension is found by a check, and dropped. Of several writes to one place without a
reduction, the last one counts, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.axes import at_least_1d, at_run_time, axis, slice_along, with_size, write_block
from xla_core.ops.checks import Fault, outside
from xla_core.ops.facts import Autocast
from xla_core.ops.index.index import UNCHECKED, stacked, wrapped
from xla_core.ops.platforms import positions
from xla_core.ops.promote import Number, cast, compute_dtype, expand, full, highest, is_integral, lowest
from xla_core.ops.table import Context, op, scalar

DROPS = "a write out of range raises when a value is read or at a later sync; unchecked it is dropped"
# Writes updates into an operand; (operand, updates, kind) -> operand. `Place` fixes where.
Place = Callable[[jax.Array, jax.Array, str], jax.Array]

_KINDS: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}
_ALIASES = {"add": "sum", "multiply": "prod"}


def _write(x: jax.Array, positions: jax.Array, updates: jax.Array, numbers: lax.ScatterDimensionNumbers, kind: str) -> jax.Array:
    """One XLA scatter; booleans add as `or` and multiply as `and`."""
    if not updates.size or not x.size:
        return x
    kind = {"sum": "amax", "prod": "amin"}.get(kind, kind) if x.dtype == np.bool_ else kind
    wide = np.dtype(np.uint8) if x.dtype == np.bool_ else x.dtype
    return cast(_KINDS[kind](cast(x, wide), at_run_time(positions), cast(updates, wide), numbers, mode=UNCHECKED), x.dtype)


def scatter_at(
    x: jax.Array, dims: Sequence[int], coordinates: Sequence[jax.Array], updates: jax.Array, place: int, kind: str = "set"
) -> jax.Array:
    """`x` with `updates` written at `coordinates`; the mirror of `index.gather_at`, whose result has the shape of `updates`."""
    rank = coordinates[0].ndim
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(dim for dim in range(updates.ndim) if not place <= dim < place + rank),
        inserted_window_dims=tuple(dims),
        scatter_dims_to_operand_dims=tuple(dims),
    )
    return _write(x, stacked(coordinates), updates, numbers, kind)


def scatter_along(x: jax.Array, dim: int, index: jax.Array, updates: jax.Array, kind: str) -> jax.Array:
    """`x` with each element of `updates` written at its element of `index` along `dim`; the mirror of `index.take_along`."""
    others = tuple(d for d in range(x.ndim) if d != dim)
    part = x
    for other in others:
        part = slice_along(part, other, 0, index.shape[other])
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    part = _write(part, lax.expand_dims(index, (index.ndim,)), updates, numbers, kind)
    if part.shape == x.shape:
        return part
    return write_block(x, part, [0] * x.ndim)


def place_along(ctx: Context, x: jax.Array, dim: int, index: jax.Array) -> Place:
    """Writes elementwise along `dim` as `scatter` does."""
    dim, index = axis(dim, x.ndim), at_least_1d(index)
    size = at_least_1d(x).shape[dim]
    index = positions(index, size, ctx.platform)
    ctx.check(Fault.GATHER, outside(index, size), index, dim, size)

    def write(target: jax.Array, updates: jax.Array, kind: str) -> jax.Array:
        updates = at_least_1d(updates)
        for other in range(updates.ndim):
            updates = slice_along(updates, other, 0, index.shape[other])
        return lax.reshape(scatter_along(at_least_1d(target), dim, index, updates, kind), target.shape)

    return write if index.size else lambda target, updates, kind: target


def place_rows(ctx: Context, x: jax.Array, dim: int, index: jax.Array, fault: Fault) -> Place:
    """Writes whole slices along `dim` as `index_add` does; a 0-d index is one slice. fault: of a position out of range."""
    dim, index = axis(dim, x.ndim), at_least_1d(index)
    size = at_least_1d(x).shape[dim]
    index = positions(index, size, ctx.platform)
    ctx.check(fault, outside(index, size), index, *((size,) if fault is Fault.INDEX_SELECT else (dim, size)))

    def write(target: jax.Array, updates: jax.Array, kind: str) -> jax.Array:
        rows = at_least_1d(target)
        updates = lax.reshape(updates, with_size(rows.shape, dim, index.shape[0]))
        return lax.reshape(scatter_at(rows, (dim,), (index,), updates, dim, kind), target.shape)

    return write


def _identity(kind: str, dtype: np.dtype) -> Number:
    if kind == "amax":
        return lowest(dtype)
    if kind == "amin":
        return highest(dtype)
    return 1 if kind == "prod" else 0


def reduce_into(x: jax.Array, updates: jax.Array, place: Place, kind: str, include_self: bool, wide: np.dtype) -> jax.Array:
    """`x` reduced with all updates that fall on the same place; without `include_self` only untouched places keep their value.

    wide: what it computes in: torch's `scatter_reduce` adds half precision in float32, its `index_reduce` does not. A mean divides in the
    dtype of `x`.
    """
    if kind not in ("sum", "prod", "mean", "amax", "amin"):
        raise UnsupportedOperationError(f"reduction {kind!r} is not known; use sum, prod, mean, amax or amin")
    ones = full(1, updates.shape, np.dtype(np.int32))
    hits = place(full(0, x.shape, np.dtype(np.int32)), ones, "sum")
    start = cast(x, wide)
    if not include_self:
        start = lax.select(lax.gt(hits, lax.full_like(hits, 0)), full(_identity(kind, wide), x.shape, wide), start)
    result = cast(place(start, cast(updates, wide), "sum" if kind == "mean" else kind), x.dtype)
    return _mean_of(result, hits, include_self) if kind == "mean" else result


def _mean_of(added: jax.Array, hits: jax.Array, include_self: bool) -> jax.Array:
    one = lax.full_like(hits, 1)
    number = cast(lax.add(hits, one) if include_self else lax.max(hits, one), added.dtype)
    if not is_integral(added.dtype):
        return lax.div(added, number)
    quotient, rest = lax.div(added, number), lax.rem(added, number)
    return lax.select(lax.lt(rest, lax.full_like(rest, 0)), lax.sub(quotient, lax.full_like(quotient, 1)), quotient)


@op("scatter.src", notes=DROPS)
def _scatter(ctx: Context, x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return place_along(ctx, x, dim, index)(x, src, "set")


@op("scatter.reduce", notes=DROPS)
def _scatter_reduce(ctx: Context, x: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str) -> jax.Array:
    """scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    wide = compute_dtype(x.dtype)
    return cast(place_along(ctx, x, dim, index)(cast(x, wide), cast(src, wide), _ALIASES.get(reduce, reduce)), x.dtype)


@op("scatter.value", "scatter.value_reduce", scalars=("value",), notes=DROPS)
def _scatter_value(ctx: Context, x: jax.Array, dim: int, index: jax.Array, value: Any, *, reduce: str = "set") -> jax.Array:
    """scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"""
    wide = compute_dtype(x.dtype)
    values = cast(full(value, index.shape, x.dtype), wide)
    return cast(place_along(ctx, x, dim, index)(cast(x, wide), values, _ALIASES.get(reduce, reduce)), x.dtype)


@op("scatter_add", notes=DROPS)
def _scatter_add(ctx: Context, x: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    """scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    wide = compute_dtype(x.dtype)
    return cast(place_along(ctx, x, dim, index)(cast(x, wide), cast(src, wide), "sum"), x.dtype)


@op("scatter_reduce.two", notes=DROPS)
def _scatter_reduce_two(
    ctx: Context, x: jax.Array, dim: int, index: jax.Array, src: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"""
    if not index.size:
        return x
    return reduce_into(x, src, place_along(ctx, x, dim, index), reduce, include_self, compute_dtype(x.dtype))


@op("index_add", scalars=("alpha",), notes=DROPS)
def _index_add(ctx: Context, x: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Any = 1) -> jax.Array:
    """index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    plain = isinstance(alpha, int) and alpha == 1
    # Rounded where torch rounds half precision: after each addition, but for whole slices at the first or last dimension.
    wide = compute_dtype(x.dtype) if plain and x.ndim > 1 and axis(dim, x.ndim) in (0, x.ndim - 1) else x.dtype
    source = cast(source, wide)
    if not plain:
        factor = lax.broadcast(scalar(alpha, wide), source.shape)
        source = lax.bitwise_and(source, factor) if x.dtype == np.bool_ else lax.mul(source, factor)
    return cast(place_rows(ctx, x, dim, index, Fault.GATHER if x.ndim > 1 else Fault.INDEX_SELECT)(cast(x, wide), source, "sum"), x.dtype)


@op("index_copy", notes=DROPS, autocast=Autocast.WIDEST)
def _index_copy(ctx: Context, x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    return place_rows(ctx, x, dim, index, Fault.INDEX)(x, source, "set")


@op("index_reduce", notes=DROPS)
def _index_reduce(
    ctx: Context, x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""
    return reduce_into(x, source, place_rows(ctx, x, dim, index, Fault.INDEX_SELECT), reduce, include_self, x.dtype)


@op("index_fill.int_Tensor", notes=DROPS, overlapping_writes=True)
@op("index_fill.int_Scalar", scalars=("value",), notes=DROPS, overlapping_writes=True)
def _index_fill(ctx: Context, x: jax.Array, dim: int, index: jax.Array, value: Number | jax.Array) -> jax.Array:
    """index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor; negative positions count from the end."""
    rows, dim = at_least_1d(x), axis(dim, x.ndim)
    size = rows.shape[dim]
    index = positions(index, size, ctx.platform)
    ctx.check(Fault.INDEX, outside(index, size, -size), index, dim, size)
    index = wrapped(at_least_1d(index), size)
    hit = scatter_at(full(False, (size,), np.dtype(np.bool_)), (0,), (index,), full(True, index.shape, np.dtype(np.bool_)), 0)
    hit = lax.broadcast_in_dim(hit, rows.shape, (dim,))
    return lax.reshape(lax.select(hit, full(value, rows.shape, x.dtype), rows), x.shape)


@op("put", notes=DROPS)
def _put(ctx: Context, x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor; negative positions count from the end."""
    flat = lax.reshape(x, (x.size,))
    index = positions(index, x.size, ctx.platform)
    ctx.check(Fault.TAKE, outside(index, x.size, -x.size), index, x.size)
    index = wrapped(lax.reshape(index, (index.size,)), x.size)
    written = scatter_at(flat, (0,), (index,), lax.reshape(source, index.shape), 0, "sum" if accumulate else "set")
    return lax.reshape(written, x.shape)


@op("embedding_dense_backward", notes=DROPS)
def _embedding_backward(
    ctx: Context, grad: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    """embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq)"""
    index = positions(lax.reshape(indices, (indices.size,)), num_weights, ctx.platform)
    rows = cast(lax.reshape(grad, (index.size, ctx.shape[1])), compute_dtype(ctx.dtype))
    if scale_grad_by_freq and index.size:
        one = full(1, index.shape, np.dtype(np.int32))
        hits = scatter_at(full(0, (num_weights,), one.dtype), (0,), (index,), one, 0, "sum")
        rows = lax.div(rows, expand(lax.expand_dims(cast(hits, rows.dtype)[index], (1,)), rows.shape))
    # The padding row gets nothing: its gradients are sent out of range.
    index = lax.select(lax.eq(index, lax.full_like(index, padding_idx)), lax.full_like(index, num_weights), index)
    return cast(scatter_at(full(0, ctx.shape, rows.dtype), (0,), (index,), rows, 0, "sum"), ctx.dtype)

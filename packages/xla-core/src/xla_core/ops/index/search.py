"""Search among values: searchsorted, bucketize, isin."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import count
from xla_core.ops.index.index import take_along
from xla_core.ops.index.sort import argsort, order_key
from xla_core.ops.promote import Operand, Weak, cast, full, promote
from xla_core.ops.table import Context, op

_INT64 = np.dtype(np.int64)
# Up to this many test elements, comparing with each of them is cheaper than sorting.
_FEW = 64


def insertion_points(ordered: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    """The positions of `values` (m, k) in `ordered` (m, n) row by row: before equal elements, or behind them if `right`.

    The bisection of CPU torch step by step, so that NaN and unsorted rows give what they give there.
    """
    size, reaches = ordered.shape[1], lax.gt if right else lax.ge

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = lax.div(lax.add(low, high), lax.full_like(low, 2))
        searching = lax.lt(low, high)
        found = reaches(take_along(ordered, 1, middle), values)
        right_half = lax.bitwise_and(searching, lax.bitwise_not(found))
        left_half = lax.bitwise_and(searching, found)
        return lax.select(right_half, lax.add(middle, lax.full_like(low, 1)), low), lax.select(left_half, middle, high)

    start = full(0, values.shape, _INT64)
    if not (size and values.size):
        return start
    found: tuple[jax.Array, jax.Array] = lax.fori_loop(0, size.bit_length(), halve, (start, lax.full_like(start, size)))
    return found[0]


def _search(ctx: Context, ordered: jax.Array, values: Operand, right: bool, sorter: jax.Array | None = None) -> jax.Array:
    ordered, values = promote(ordered, values)
    if sorter is not None:
        ordered = take_along(ordered, ordered.ndim - 1, sorter)
    if not values.size:
        return full(0, ctx.shape, ctx.dtype)
    size = ordered.shape[-1]
    rows = 1 if ordered.ndim == 1 else count(ordered.shape[:-1], range(ordered.ndim - 1))
    found = insertion_points(lax.reshape(ordered, (rows, size)), lax.reshape(values, (rows, values.size // rows)), right)
    return lax.reshape(cast(found, ctx.dtype), ctx.shape)


@op("searchsorted.Tensor")
def _searchsorted(
    ctx: Context,
    ordered: jax.Array,
    values: jax.Array,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32, bool right, str? side, Tensor? sorter) -> Tensor"""
    return _search(ctx, ordered, values, right or side == "right", sorter)


@op("searchsorted.Scalar", scalars=("self",))
def _searchsorted_scalar(ctx: Context, ordered: jax.Array, value: Any, **options: Any) -> jax.Array:
    """searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32, bool right, str? side, Tensor? sorter) -> Tensor"""
    right = options.get("right", False) or options.get("side") == "right"
    return _search(ctx, ordered, Weak(value), right, options.get("sorter"))


@op("bucketize.Tensor")
def _bucketize(ctx: Context, values: jax.Array, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False) -> jax.Array:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    return _search(ctx, boundaries, values, right)


@op("bucketize.Scalar", scalars=("self",))
def _bucketize_scalar(ctx: Context, value: Any, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False) -> jax.Array:
    """bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    return _search(ctx, boundaries, Weak(value), right)


def _is_in(ctx: Context, elements: Operand, tests: Operand, invert: bool) -> jax.Array:
    elements, tests = promote(elements, tests)
    flat = lax.reshape(elements, (elements.size,))
    tests = lax.reshape(tests, (tests.size,))
    if tests.size <= _FEW:
        pairs = (flat.size, tests.size)
        same = lax.eq(lax.broadcast_in_dim(flat, pairs, (0,)), lax.broadcast_in_dim(tests, pairs, (1,)))
        found = lax.reduce_or(same, (1,))
    else:
        ordered = take_along(tests, 0, argsort(tests, 0))
        rows = [lax.expand_dims(order_key(x), (0,)) for x in (ordered, flat)]  # keys, since bisection does not know where NaN stand
        places = insertion_points(rows[0], rows[1], False)
        found = lax.eq(take_along(ordered, 0, lax.reshape(places, flat.shape)), flat)
    return lax.reshape(lax.bitwise_not(found) if invert else found, ctx.shape)


@op("isin.Tensor_Tensor")
def _isin(ctx: Context, elements: jax.Array, test_elements: jax.Array, *, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor"""
    return _is_in(ctx, elements, test_elements, invert)


@op("isin.Tensor_Scalar", scalars=("test_element",))
def _isin_scalar(ctx: Context, elements: jax.Array, test_element: Any, *, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor"""
    return _is_in(ctx, elements, Weak(test_element), invert)


@op("isin.Scalar_Tensor", scalars=("element",))
def _scalar_isin(ctx: Context, element: Any, test_elements: jax.Array, *, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor"""
    return _is_in(ctx, Weak(element), test_elements, invert)

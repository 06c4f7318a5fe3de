"""Order along one dimension: sort, topk, kthvalue, median, mode.

XLA on CPU sorts single integers five times faster than pairs, and several times faster than floats with torch's order of
NaN and zeros. So values become integers of the same order, and those of 32 bits or fewer are sorted together with their position
in one 64-bit word.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import at_least_1d, at_run_time, axis, iota_along, moved, slice_along, with_size
from xla_core.ops.index.index import take_along
from xla_core.ops.promote import cast, full, is_float
from xla_core.ops.reduce.reduce import finish, isnan
from xla_core.ops.table import Context, op

Pair = tuple[jax.Array, jax.Array]
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def order_key(x: jax.Array) -> jax.Array:
    """Signed integers (32 or 64 bits) in the order of `x`: zeros are equal, NaN is above everything."""
    if x.dtype == np.float64:  # a TPU has no bits of such a number: it computes with the sum of two of 32 bits
        keys: jax.Array = lax.platform_dependent(x, tpu=key_of_two_floats, default=_float_key)
        return keys
    if is_float(x.dtype):
        return _float_key(x)
    if x.dtype.kind == "u" and x.dtype.itemsize >= 4:
        signed = np.dtype(f"int{8 * x.dtype.itemsize}")
        bits = lax.bitcast_convert_type(x, signed)
        return lax.bitwise_xor(bits, lax.full_like(bits, np.iinfo(signed).min))
    return x if x.dtype == _INT64 else cast(x, _INT32)


def _float_key(x: jax.Array) -> jax.Array:
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    x = cast(x, wide)
    x = lax.select(isnan(x), lax.full_like(x, float("nan")), x)
    bits = lax.bitcast_convert_type(x, _INT64 if wide.itemsize == 8 else _INT32)
    limits, zero = np.iinfo(bits.dtype), lax.full_like(bits, 0)
    # Compared as integers, since XLA may take denormals for zeros.
    bits = lax.select(lax.eq(bits, lax.full_like(bits, limits.min)), zero, bits)
    return lax.select(lax.lt(bits, zero), lax.bitwise_xor(bits, lax.full_like(bits, limits.max)), bits)


def key_of_two_floats(x: jax.Array) -> jax.Array:
    """`order_key` of float64 by the nearest float32 and what it leaves out: exact for sums of two float32."""
    high = cast(x, np.dtype(np.float32))
    rest = cast(lax.sub(x, cast(high, x.dtype)), high.dtype)
    low = lax.select(lax.is_finite(high), rest, lax.full_like(high, 0))
    place = lax.sub(cast(_float_key(low), _INT64), lax.full_like(x, np.iinfo(_INT32).min, _INT64))  # from 0
    return lax.bitwise_or(lax.shift_left(cast(_float_key(high), _INT64), lax.full_like(place, 32)), place)


def argsort(x: jax.Array, dim: int, descending: bool = False) -> jax.Array:
    """Positions (int64) of the sorted elements along `dim`; equal elements keep their order."""
    key = at_run_time(order_key(x))
    key = lax.bitwise_not(key) if descending else key
    position = iota_along(x.shape, dim, _INT64)
    if key.dtype == _INT64:
        return lax.sort((key, position), dimension=dim, num_keys=1, is_stable=True)[1]
    shift = lax.full_like(position, 32)
    packed = lax.bitwise_or(lax.shift_left(cast(key, _INT64), shift), position)
    return lax.bitwise_and(lax.sort(packed, dimension=dim), lax.full_like(packed, 0xFFFFFFFF))


def sorted_pair(x: jax.Array, dim: int, descending: bool = False) -> Pair:
    """Sorted values along `dim` and their positions."""
    order = argsort(x, dim, descending)
    return take_along(x, dim, order), order


@op("sort")
def _sort(ctx: Context, x: jax.Array, dim: int = -1, descending: bool = False) -> Pair:
    """sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    x = at_least_1d(x)
    values, order = sorted_pair(x, axis(dim, x.ndim), descending)
    return finish(ctx, values), finish(ctx, order, 1)


@op("sort.stable")
def _sort_stable(ctx: Context, x: jax.Array, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    """sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"""
    return _sort(ctx, x, dim, descending)


def _fits_float32(dtype: np.dtype) -> bool:
    return dtype == np.float32 or dtype.itemsize <= 2


def _top_floats(x: jax.Array, k: int, largest: bool) -> jax.Array:
    """Positions of the `k` best along the last dimension, by XLA's own top-k, which is fast for float32 and ranks by sign bit."""
    x = cast(x, np.dtype(np.float32))
    # -NaN ranks below everything, NaN above: negated for the smallest, torch still wants NaN to come last.
    worst = np.copysign(np.float32("nan"), np.float32(1 if largest else -1))
    x = lax.select(isnan(x), lax.full_like(x, worst), x if largest else lax.neg(x))
    return cast(lax.top_k(at_run_time(x), k)[1], _INT64)


@op("topk")
def _topk(ctx: Context, x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""
    x = at_least_1d(x)
    dim = axis(dim, x.ndim)
    if not (k and x.size):
        return finish(ctx, full(0, ctx.shape, x.dtype)), finish(ctx, full(0, ctx.shape, _INT64), 1)
    if _fits_float32(x.dtype):
        order = moved(_top_floats(moved(x, dim, x.ndim - 1), k, largest), x.ndim - 1, dim)
    else:
        order = slice_along(argsort(x, dim, descending=largest), dim, 0, k)
    return finish(ctx, take_along(x, dim, order)), finish(ctx, order, 1)


def _element(x: jax.Array, order: jax.Array, dim: int, rank: jax.Array) -> Pair:
    """The element of `x` at place `rank` (one for each slice, kept dimension) of its order, and its position."""
    where = take_along(order, dim, rank)
    return take_along(x, dim, where), where


@op("kthvalue")
def _kthvalue(ctx: Context, x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    x = at_least_1d(x)
    dim = axis(dim, x.ndim)
    value, where = _element(x, argsort(x, dim), dim, full(k - 1, with_size(x.shape, dim, 1), _INT64))
    return finish(ctx, value), finish(ctx, where, 1)


def median_along(x: jax.Array, dim: int, skip_nan: bool) -> Pair:
    """The lower median along `dim` (kept) and its position; a NaN wins unless skipped."""
    order, size = argsort(x, dim), x.shape[dim]
    nans = lax.expand_dims(lax.reduce_sum(cast(isnan(x), _INT64), (dim,)), (dim,))
    one, two = lax.full_like(nans, 1), lax.full_like(nans, 2)
    used = lax.sub(lax.full_like(nans, size), nans)
    if skip_nan:
        rank = lax.max(lax.div(lax.sub(used, one), two), lax.full_like(nans, 0))
    else:
        # NaN are sorted last, so the first of them stands at place `used`.
        middle = lax.full_like(nans, max(size - 1, 0) // 2)
        rank = lax.select(lax.gt(nans, lax.full_like(nans, 0)), used, middle)
    return _element(x, order, dim, rank)


def _nan_as(dtype: np.dtype) -> float | int:
    """The value of NaN in C++ in each dtype."""
    if is_float(dtype):
        return float("nan")
    return int(np.iinfo(dtype).min) if dtype.itemsize >= 4 else 0


def _median(skip_nan: bool) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array) -> jax.Array:
        """median(Tensor self) -> Tensor"""
        if not x.size:
            return full(_nan_as(x.dtype), (), x.dtype)
        return finish(ctx, median_along(lax.reshape(x, (x.size,)), 0, skip_nan)[0])

    return lower


def _median_dim(skip_nan: bool) -> Callable[..., Pair]:
    def lower(ctx: Context, x: jax.Array, dim: int, keepdim: bool = False) -> Pair:
        """median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
        x = at_least_1d(x)
        value, where = median_along(x, axis(dim, x.ndim), skip_nan)
        return finish(ctx, value), finish(ctx, where, 1)

    return lower


for _name, _skip in {"median": False, "nanmedian": True}.items():
    op(_name)(_median(_skip))
    op(f"{_name}.dim")(_median_dim(_skip))


@op("mode")
def _mode(ctx: Context, x: jax.Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices); of equally frequent ones the least."""
    x = at_least_1d(x)
    dim = axis(dim, x.ndim)
    values, order = sorted_pair(x, dim)
    place = iota_along(x.shape, dim, _INT64)
    before = take_along(values, dim, lax.max(lax.sub(place, lax.full_like(place, 1)), lax.full_like(place, 0)))
    starts = lax.select(lax.ne(values, before), place, lax.full_like(place, 0))
    length = lax.sub(place, lax.cummax(at_run_time(starts), dim))
    end = lax.expand_dims(lax.argmax(length, dim, _INT64), (dim,))
    value, where = _element(x, order, dim, end)
    return finish(ctx, value), finish(ctx, where, 1)

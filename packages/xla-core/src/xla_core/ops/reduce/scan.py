"""Running reductions along one dimension: sums, products, extremes with their index, log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import at_least_1d, at_run_time, axis, iota_along
from xla_core.ops.promote import is_complex
from xla_core.ops.reduce.reduce import finish, isnan, widened
from xla_core.ops.table import Context, op

Pair = tuple[jax.Array, jax.Array]


def _running(scan: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array, dim: int, *, dtype: Any = None) -> jax.Array:
        """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
        x = at_run_time(at_least_1d(widened(ctx, x)))
        return finish(ctx, scan(x, axis(dim, x.ndim)))

    return lower


op("cumsum")(_running(lax.cumsum))
op("cumprod")(_running(lax.cumprod))


def _later_extreme(better: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[Pair, Pair], Pair]:
    """Joins two runs: the later one's element where it is as good, or NaN; a NaN is only replaced by a later NaN."""

    def join(early: Pair, late: Pair) -> Pair:
        take = lax.bitwise_or(isnan(late[0]), lax.bitwise_and(lax.bitwise_not(isnan(early[0])), better(late[0], early[0])))
        return lax.select(take, late[0], early[0]), lax.select(take, late[1], early[1])

    return join


def _running_extreme(better: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., Pair]:
    join = _later_extreme(better)

    def lower(ctx: Context, x: jax.Array, dim: int) -> Pair:
        """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices); of equal values the last counts."""
        x = at_least_1d(x)
        dim = axis(dim, x.ndim)
        pair = (x, iota_along(x.shape, dim, np.int64))
        values, where = lax.associative_scan(join, pair, axis=dim) if x.size else pair
        return finish(ctx, values), finish(ctx, where, 1)

    return lower


op("cummax")(_running_extreme(lax.ge))
op("cummin")(_running_extreme(lax.le))


def log_add_exp(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(exp(a) + exp(b)) without overflow; equal infinities stay themselves."""
    if is_complex(a.dtype):
        return _complex_log_add_exp(a, b)
    high, low = lax.max(a, b), lax.min(a, b)
    same_infinity = lax.bitwise_and(lax.eq(high, low), lax.bitwise_not(lax.is_finite(high)))
    return lax.select(same_infinity, high, lax.add(lax.log1p(lax.exp(lax.sub(low, high))), high))


def _complex_log_add_exp(a: jax.Array, b: jax.Array) -> jax.Array:
    first = lax.ge(lax.real(a), lax.real(b))
    high, low = lax.select(first, a, b), lax.select(first, b, a)
    gap = lax.exp(lax.sub(low, high))
    one = lax.full_like(gap, 1)
    minus_infinity = lax.eq(lax.real(low), lax.full_like(lax.real(low), float("-inf")))
    return lax.select(minus_infinity, high, lax.add(lax.log(lax.add(one, gap)), high))


@op("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(ctx: Context, x: jax.Array, dim: int) -> jax.Array:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    x = at_least_1d(widened(ctx, x))
    dim = axis(dim, x.ndim)
    return finish(ctx, lax.associative_scan(log_add_exp, x, axis=dim) if x.size else x)

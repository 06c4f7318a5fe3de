"""Distances between all pairs of rows: cdist, pdist, and their gradients; the norm of a difference and row renormalisation."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import axis
from xla_core.ops.facts import Autocast
from xla_core.ops.index.index import take_rows
from xla_core.ops.index.scatter import scatter_at
from xla_core.ops.promote import cast, common_dtype, compute_dtype, expand, full, operands_as
from xla_core.ops.reduce.reduce import finish, norm_over
from xla_core.ops.table import Context, op, scalar, without_lowering

# torch's `compute_mode`: 1 always takes the matrix product for p = 2, 2 never; 0 and None do so past this many rows.
_ALWAYS, _NEVER, _MANY_ROWS = 1, 2, 25


def _differences(x: jax.Array, y: jax.Array) -> jax.Array:
    """x[..., i, :] - y[..., j, :] for all i, j; leading dimensions broadcast."""
    x, y = lax.expand_dims(x, (x.ndim - 1,)), lax.expand_dims(y, (y.ndim - 2,))
    shape = lax.broadcast_shapes(x.shape, y.shape)
    return lax.sub(expand(x, shape), expand(y, shape))


def _euclidean(x: jax.Array, y: jax.Array) -> jax.Array:
    """Euclidean distances by one matrix product of rows that are extended by their squared norms."""
    lead = lax.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = expand(x, (*lead, *x.shape[-2:])), expand(y, (*lead, *y.shape[-2:]))
    last = x.ndim - 1
    x_norm, y_norm = (lax.expand_dims(lax.reduce_sum(lax.square(v), (last,)), (last,)) for v in (x, y))
    left = lax.concatenate([lax.mul(x, lax.full_like(x, -2)), x_norm, lax.full_like(x_norm, 1)], last)
    right = lax.concatenate([y, lax.full_like(y_norm, 1), y_norm], last)
    batch = tuple(range(last - 1))
    squares = lax.dot_general(left, right, (((last,), (last,)), (batch, batch)))
    return lax.sqrt(lax.max(squares, lax.full_like(squares, 0)))


@op("_euclidean_dist")
def _euclidean_dist(ctx: Context, x1: jax.Array, x2: jax.Array) -> jax.Array:
    """_euclidean_dist(Tensor x1, Tensor x2) -> Tensor"""
    wide = compute_dtype(ctx.dtype)
    return finish(ctx, _euclidean(cast(x1, wide), cast(x2, wide)))


without_lowering("cdist", autocast=Autocast.FLOAT32)


@op("_cdist_forward")
def _cdist(ctx: Context, x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"""
    wide = compute_dtype(ctx.dtype)
    x, y = cast(x1, wide), cast(x2, wide)
    many = x.shape[-2] > _MANY_ROWS or y.shape[-2] > _MANY_ROWS
    if p == 2 and (compute_mode == _ALWAYS or (compute_mode != _NEVER and many)):
        return finish(ctx, _euclidean(x, y))
    between = _differences(x, y)
    return finish(ctx, norm_over(ctx, between, p, (between.ndim - 1,)))


def _pair_gradient(grad: jax.Array, between: jax.Array, distance: jax.Array, p: float) -> jax.Array:
    """Gradient of |between|_p along the last dimension; zero where the distance is zero."""
    zero, size = lax.full_like(between, 0), lax.abs(between)
    grad, distance = (expand(lax.expand_dims(v, (v.ndim,)), between.shape) for v in (grad, distance))
    sign = lax.sign(between)
    if p == 0:
        return zero
    if p == 1:
        return lax.mul(grad, sign)
    if p == float("inf"):
        return lax.select(lax.eq(size, distance), lax.mul(grad, sign), zero)
    if p == 2:
        slope = lax.div(between, distance)
    else:
        power = lax.full_like(size, p - 1)
        slope = lax.div(lax.mul(sign, lax.pow(size, power)), lax.pow(distance, power))
    flat = lax.bitwise_or(lax.eq(distance, zero), lax.eq(between, zero))
    return lax.select(flat, zero, lax.mul(grad, slope))


@op("_cdist_backward")
def _cdist_backward(ctx: Context, grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array) -> jax.Array:
    """_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor: the gradient of x1, broadcast batches apart"""
    grad, x, y, distance = (cast(v, compute_dtype(ctx.dtype)) for v in (grad, x1, x2, cdist))
    if not grad.size or not x.size:
        return full(0, ctx.shape, ctx.dtype)
    between = _differences(x, y)
    distance, grad = (expand(v, between.shape[:-1]) for v in (distance, grad))
    return finish(ctx, lax.reduce_sum(_pair_gradient(grad, between, distance, p), (between.ndim - 2,)))


def _pairs(rows: int) -> tuple[jax.Array, jax.Array]:
    first, second = np.triu_indices(rows, 1)
    return jax.numpy.asarray(first.astype(np.int64)), jax.numpy.asarray(second.astype(np.int64))


@op("_pdist_forward")
def _pdist(ctx: Context, x: jax.Array, p: float = 2.0) -> jax.Array:
    """_pdist_forward(Tensor self, float p=2.) -> Tensor: the distances of rows i < j"""
    x = cast(x, compute_dtype(ctx.dtype))
    if ctx.shape == (0,):
        return full(0, ctx.shape, ctx.dtype)
    first, second = _pairs(x.shape[0])
    return finish(ctx, norm_over(ctx, lax.sub(take_rows(x, 0, first), take_rows(x, 0, second)), p, (1,)))


@op("_pdist_backward")
def _pdist_backward(ctx: Context, grad: jax.Array, x: jax.Array, p: float, pdist: jax.Array) -> jax.Array:
    """_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor"""
    grad, x, distance = (cast(v, compute_dtype(ctx.dtype)) for v in (grad, x, pdist))
    if not grad.size or not x.size:
        return full(0, ctx.shape, ctx.dtype)
    first, second = _pairs(x.shape[0])
    slope = _pair_gradient(grad, lax.sub(take_rows(x, 0, first), take_rows(x, 0, second)), distance, p)
    gathered = scatter_at(full(0, x.shape, x.dtype), (0,), (first,), slope, 0, "sum")
    return finish(ctx, scatter_at(gathered, (0,), (second,), lax.neg(slope), 0, "sum"))


@op("dist")
def _dist(ctx: Context, x: jax.Array, other: jax.Array, p: Any = 2) -> jax.Array:
    """dist(Tensor self, Tensor other, Scalar p=2) -> Tensor"""
    x, other = operands_as(compute_dtype(common_dtype(x, other)), x, other)
    return finish(ctx, norm_over(ctx, lax.sub(x, other), float(p), tuple(range(x.ndim))))


@op("renorm", scalars=("maxnorm",))
def _renorm(ctx: Context, x: jax.Array, p: Any, dim: int, maxnorm: Any) -> jax.Array:
    """renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor: slices along dim longer than maxnorm are scaled down to it"""
    wide, dim = cast(x, compute_dtype(x.dtype)), axis(dim, x.ndim)
    size = norm_over(ctx, wide, float(p), tuple(d for d in range(x.ndim) if d != dim))
    return cast(lax.mul(wide, cast(lax.broadcast_in_dim(shrink(size, maxnorm), x.shape, (dim,)), wide.dtype)), x.dtype)


def shrink(size: jax.Array, limit: Any) -> jax.Array:
    """The factor that brings a norm down to `limit`; 1 for those that are not above it."""
    bound = lax.broadcast(scalar(limit, size.dtype), size.shape)
    factor = lax.div(bound, lax.add(size, lax.full_like(size, 1e-7)))
    return lax.select(lax.gt(size, bound), factor, lax.full_like(size, 1))

"""Reductions whose result is one value per slice: sums, products, extremes, truth, moments and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.axes import at_least_1d, axes, axis, count, keep_reduced
from xla_core.ops.cpu import staged
from xla_core.ops.facts import Autocast
from xla_core.ops.promote import cast, compute_dtype, is_complex, is_float, real_dtype
from xla_core.ops.table import Context, op, scalar

Dims = int | Sequence[int] | None
Reducer = Callable[[jax.Array, Sequence[int]], jax.Array]


def isnan(x: jax.Array) -> jax.Array:
    """The mask of NaN in `x` (nowhere for integers)."""
    return lax.ne(x, x)


def nonzero(x: jax.Array) -> jax.Array:
    """The mask of elements of `x` that are not zero; NaN counts as non-zero."""
    return x if x.dtype == np.bool_ else lax.ne(x, lax.full_like(x, 0))


def finish(ctx: Context, x: jax.Array, result: int = 0) -> jax.Array:
    """`x` in the shape (reduced dimensions kept as 1 or dropped) and dtype inferred for a result."""
    inferred = ctx.out[result]
    if inferred is None:
        raise ValueError("a reduction always has a result")
    return lax.reshape(cast(x, np.dtype(inferred.dtype)), inferred.shape)


def total(ctx: Context, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Sum over `dims`; of booleans, whether any is set."""
    return lax.reduce_or(x, dims) if x.dtype == np.bool_ else staged.total(ctx, x, dims)


def product(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Product over `dims`; of booleans, whether all are set."""
    return lax.reduce_and(x, dims) if x.dtype == np.bool_ else lax.reduce_prod(x, dims)


def widened(ctx: Context, x: jax.Array) -> jax.Array:
    """`x` in the result's dtype, or in the wider one that torch accumulates it in."""
    return cast(cast(x, ctx.dtype), compute_dtype(ctx.dtype))


@op("sum", "sum.dim_IntList")
def _sum(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return finish(ctx, total(ctx, widened(ctx, x), axes(dim, x.ndim)))


@op("nansum", beyond_cpu=frozenset({torch.complex64, torch.complex128}))
def _nansum(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    x = widened(ctx, x)
    return finish(ctx, total(ctx, lax.select(isnan(x), lax.full_like(x, 0), x), axes(dim, x.ndim)))


@op("prod", "prod.dim_int", autocast=Autocast.FLOAT32)
def _prod(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return finish(ctx, product(widened(ctx, x), axes(dim, x.ndim)))


@op("mean", "mean.dim")
def _mean(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return finish(ctx, mean_over(ctx, widened(ctx, x), axes(dim, x.ndim)))


def mean_over(ctx: Context, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Arithmetic mean over `dims`; NaN where there is nothing to average."""
    added = staged.total(ctx, x, dims)
    return lax.div(added, lax.full_like(added, count(x.shape, dims)))


def _truth(combine: Reducer, invert: bool = False) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        """any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor; an empty list reduces nothing."""
        dims = () if isinstance(dim, Sequence) and not dim else axes(dim, x.ndim)
        return finish(ctx, combine(nonzero(x), dims))

    return lower


for _name, _combine in {"any": lax.reduce_or, "all": lax.reduce_and}.items():
    op(_name, f"{_name}.dim", f"{_name}.dims")(_truth(_combine))
op("_is_any_true")(_truth(lax.reduce_or))
op("_is_all_true")(_truth(lax.reduce_and))


@op("count_nonzero", "count_nonzero.dim_IntList")
def _count_nonzero(ctx: Context, x: jax.Array, dim: Dims = None) -> jax.Array:
    """count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor"""
    return finish(ctx, lax.reduce_sum(cast(nonzero(x), ctx.dtype), axes(dim, x.ndim)))


def _extreme(reduce: Callable[[Context, jax.Array, Sequence[int]], jax.Array]) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        """amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor; NaN wins."""
        return finish(ctx, reduce(ctx, x, axes(dim, x.ndim)))

    return lower


op("amax", "max")(_extreme(staged.largest))
op("amin", "min")(_extreme(lambda ctx, x, dims: lax.reduce_min(x, dims)))


@op("aminmax")
def _aminmax(ctx: Context, x: jax.Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    """aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)"""
    dims = axes(dim, x.ndim)
    return finish(ctx, lax.reduce_min(x, dims)), finish(ctx, lax.reduce_max(x, dims), 1)


@op("hash_tensor")
def _hash_tensor(ctx: Context, x: jax.Array, dim: Dims = None, *, keepdim: bool = False, mode: int = 0) -> jax.Array:
    """hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor; exclusive or of the 64-bit values"""
    wide = np.dtype(np.float64 if is_float(x.dtype) else np.int64)
    bits = lax.bitcast_convert_type(cast(x, wide), np.dtype(np.uint64))
    return finish(ctx, lax.reduce_xor(bits, axes(dim, x.ndim)))


def _position(find: Callable[..., jax.Array], x: jax.Array, dim: int) -> jax.Array:
    """Index along `dim` of the first extreme element, the first NaN if there is one."""
    return find(cast(x, np.dtype(np.uint8)) if x.dtype == np.bool_ else x, dim, np.int64)


def _argument(find: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def lower(ctx: Context, x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
        x = lax.reshape(x, (x.size,)) if dim is None else at_least_1d(x)
        return finish(ctx, _position(find, x, axis(dim or 0, x.ndim)))

    return lower


def _extreme_with_index(reduce: Reducer, find: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def lower(ctx: Context, x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
        x, dim = at_least_1d(x), axis(dim, x.ndim)
        return finish(ctx, reduce(x, (dim,))), finish(ctx, _position(find, x, dim), 1)

    return lower


op("argmax")(_argument(lax.argmax))
op("argmin")(_argument(lax.argmin))
op("max.dim")(_extreme_with_index(lax.reduce_max, lax.argmax))
op("min.dim")(_extreme_with_index(lax.reduce_min, lax.argmin))


def _squares(x: jax.Array) -> jax.Array:
    """|x|^2, real."""
    if is_complex(x.dtype):
        return lax.add(lax.square(lax.real(x)), lax.square(lax.imag(x)))
    return lax.square(x)


def _moments(ctx: Context, x: jax.Array, dims: Sequence[int], correction: Any) -> tuple[jax.Array, jax.Array]:
    """Variance (real) and mean over `dims`; the divisor is count - correction, never below zero."""
    x = cast(x, compute_dtype(x.dtype))
    mean = mean_over(ctx, x, dims)
    spread = lax.reduce_sum(_squares(lax.sub(x, keep_reduced(mean, x.shape, dims))), dims)
    correction = scalar(1 if correction is None else correction, spread.dtype)
    freedom = lax.max(lax.sub(lax.full_like(correction, count(x.shape, dims)), correction), lax.full_like(correction, 0))
    return lax.div(spread, lax.broadcast(freedom, spread.shape)), mean


def _moment_op(name: str, root: bool, with_mean: bool) -> None:
    @op(f"{name}.correction", scalars=("correction",))
    def lower(ctx: Context, x: jax.Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        """var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""
        variance, mean = _moments(ctx, x, axes(dim, x.ndim), correction)
        first = finish(ctx, lax.sqrt(variance) if root else variance)
        return (first, finish(ctx, mean, 1)) if with_mean else first


_moment_op("var", root=False, with_mean=False)
_moment_op("std", root=True, with_mean=False)
_moment_op("var_mean", root=False, with_mean=True)
_moment_op("std_mean", root=True, with_mean=True)


def norm_over(ctx: Context, x: jax.Array, order: float, dims: Sequence[int]) -> jax.Array:
    """The `order`-norm of `x` (floating or complex) over `dims`, real."""
    if order == 2:
        return lax.sqrt(lax.reduce_sum(_squares(x), dims))
    size = lax.abs(x)
    if order == float("inf"):
        return lax.reduce_max(size, dims) if count(x.shape, dims) else lax.reduce_sum(size, dims)
    if order == float("-inf"):
        return lax.reduce_min(size, dims)
    if order == 0:
        return lax.reduce_sum(cast(nonzero(size), size.dtype), dims)
    if order == 1:
        return lax.reduce_sum(size, dims)
    exponent = np.asarray(order, size.dtype)
    added = staged.total(ctx, lax.pow(size, lax.full_like(size, exponent)), dims)
    return lax.pow(added, lax.full_like(added, np.asarray(1.0 / order, size.dtype)))


def _norm(ctx: Context, x: jax.Array, order: Any, dims: Dims) -> jax.Array:
    wanted = compute_dtype(ctx.dtype)
    if not is_complex(x.dtype):
        x = cast(x, wanted)
    elif real_dtype(x.dtype) != wanted:
        x = cast(x, np.dtype(np.complex128 if wanted == np.float64 else np.complex64))
    return finish(ctx, norm_over(ctx, x, 2.0 if order is None else float(order), axes(dims, x.ndim)))


@op("linalg_vector_norm")
def _vector_norm(ctx: Context, x: jax.Array, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return _norm(ctx, x, ord, dim)


@op("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype")
def _legacy_norm(ctx: Context, x: jax.Array, p: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> jax.Array:
    """norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor"""
    return _norm(ctx, x, p, dim)


@op("logsumexp")
def _logsumexp(ctx: Context, x: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    """logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    x, dims = widened(ctx, x), axes(dim, x.ndim)
    if not count(x.shape, dims):
        return finish(ctx, lax.log(lax.reduce_sum(x, dims)))
    real = lax.real(x) if is_complex(x.dtype) else x
    peak = lax.reduce_max(real, dims)
    peak = lax.select(lax.is_finite(peak), peak, lax.full_like(peak, 0))
    shift = cast(peak, x.dtype)
    added = staged.total(ctx, lax.exp(lax.sub(x, keep_reduced(shift, x.shape, dims))), dims)
    return finish(ctx, lax.add(lax.log(added), shift))


@op("trace", autocast=Autocast.FLOAT32, beyond_cpu=frozenset({torch.bool}))
def _trace(ctx: Context, x: jax.Array) -> jax.Array:
    """trace(Tensor self) -> Tensor"""
    rows, columns = (lax.broadcasted_iota(np.int32, x.shape, dim) for dim in (0, 1))
    x = widened(ctx, x)
    return finish(ctx, total(ctx, lax.select(lax.eq(rows, columns), x, lax.full_like(x, 0)), (0, 1)))

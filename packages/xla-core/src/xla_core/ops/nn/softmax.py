"""Softmax and its kin: plain, logarithmic, safe for fully masked rows, masked; and their gradients."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from xla_core.ops.cpu import staged
from xla_core.ops.facts import Autocast
from xla_core.ops.promote import cast, compute_dtype, expand
from xla_core.ops.table import Context, op, without_lowering


def _axes(x: jax.Array, dim: int) -> tuple[int, ...]:
    return (dim % x.ndim,) if x.ndim else ()


def _spread(reduced: jax.Array, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """A reduction of `x` over `axes`, back in the shape of `x`."""
    return lax.broadcast_in_dim(reduced, x.shape, [i for i in range(x.ndim) if i not in axes])


def shifted(ctx: Context, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`x` minus its maximum over `axes`, so that exponentials do not overflow."""
    return lax.sub(x, _spread(staged.largest(ctx, x, axes), x, axes))


def softmax_over(ctx: Context, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Softmax over `axes`, in the dtype of `x`."""
    weights = lax.exp(shifted(ctx, x, axes))
    return lax.div(weights, _spread(staged.total(ctx, weights, axes), x, axes))


def softmax_gradient(ctx: Context, grad: jax.Array, output: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Gradient of softmax over `axes`: output * (grad - sum(grad * output))."""
    weighted = lax.mul(grad, output)
    return lax.sub(weighted, lax.mul(output, _spread(staged.total(ctx, weighted, axes), output, axes)))


without_lowering("softmax", "log_softmax", autocast=Autocast.FLOAT32)


@op("_softmax", shown_as="aten::softmax")
def softmax(ctx: Context, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return cast(softmax_over(ctx, cast(x, compute_dtype(ctx.dtype)), _axes(x, dim)), ctx.dtype)


@op("_log_softmax", shown_as="aten::log_softmax")
def log_softmax(ctx: Context, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    """_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    axes = _axes(x, dim)
    low = shifted(ctx, cast(x, compute_dtype(ctx.dtype)), axes)
    total = staged.total(ctx, lax.exp(low), axes)
    return cast(lax.sub(low, _spread(lax.log(total), low, axes)), ctx.dtype)


@op("_softmax_backward_data")
def softmax_backward(ctx: Context, grad: jax.Array, output: jax.Array, dim: int, input_dtype: object) -> jax.Array:
    """_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""
    dtype = compute_dtype(output.dtype)
    return cast(softmax_gradient(ctx, cast(grad, dtype), cast(output, dtype), _axes(grad, dim)), ctx.dtype)


@op("_log_softmax_backward_data")
def log_softmax_backward(ctx: Context, grad: jax.Array, output: jax.Array, dim: int, input_dtype: object) -> jax.Array:
    """_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"""
    dtype, axes = compute_dtype(output.dtype), _axes(grad, dim)
    grad, output = cast(grad, dtype), cast(output, dtype)
    total = _spread(staged.total(ctx, grad, axes), grad, axes)
    return cast(lax.sub(grad, lax.mul(lax.exp(output), total)), ctx.dtype)


@op("_safe_softmax")
def safe_softmax(ctx: Context, x: jax.Array, dim: int, dtype: object = None) -> jax.Array:
    """_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor: rows of -inf alone give 0, not NaN"""
    axes = _axes(x, dim)
    low = cast(x, compute_dtype(ctx.dtype))
    empty = lax.reduce_and(lax.eq(low, lax.full_like(low, -np.inf)), axes)
    return cast(lax.select(_spread(empty, low, axes), lax.full_like(low, 0), softmax_over(ctx, low, axes)), ctx.dtype)


def mask_like(x: jax.Array, mask: jax.Array, mask_type: int | None) -> jax.Array:
    """The mask of `_masked_softmax` in the shape of `x`; type 0 is L x L, type 1 batch x L of a (batch, heads, L, L) input."""
    mask = cast(mask, np.dtype(np.bool_))
    if mask_type == 1 and mask.ndim == 2 and x.ndim == 4:
        return lax.broadcast_in_dim(mask, x.shape, (0, 3))
    return expand(mask, x.shape)


@op("_masked_softmax")
def masked_softmax(ctx: Context, x: jax.Array, mask: jax.Array, dim: int | None = None, mask_type: int | None = None) -> jax.Array:
    """_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> Tensor: True leaves out; an empty row is NaN"""
    axes = _axes(x, -1 if dim is None else dim)
    wide = cast(x, compute_dtype(ctx.dtype))
    low = lax.select(mask_like(x, mask, mask_type), lax.full_like(wide, -np.inf), wide)
    return cast(softmax_over(ctx, low, axes), ctx.dtype)


@op("_masked_softmax_backward")
def masked_softmax_backward(ctx: Context, grad: jax.Array, output: jax.Array, mask: jax.Array, dim: int | None = None) -> jax.Array:
    """_masked_softmax_backward(Tensor grad_output, Tensor output, Tensor mask, int? dim=None) -> Tensor"""
    axes, dtype = _axes(output, -1 if dim is None else dim), compute_dtype(output.dtype)
    hidden = expand(cast(mask, np.dtype(np.bool_)), output.shape)
    zero = lax.full(output.shape, 0, dtype)
    kept = [lax.select(hidden, zero, cast(v, dtype)) for v in (grad, output)]
    return cast(softmax_gradient(ctx, kept[0], kept[1], axes), ctx.dtype)

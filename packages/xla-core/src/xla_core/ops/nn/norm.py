"""Layer, group and RMS normalisation with gradients, weight normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from xla_core.ops.cpu import staged
from xla_core.ops.facts import HALF
from xla_core.ops.promote import Number, cast, compute_dtype, expand, full
from xla_core.ops.table import Context, op

Real = Number | jax.Array
Maybe = jax.Array | None


def _mean(ctx: Context, x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Mean over `axes`, which stay as dimensions of size 1."""
    count = math.prod(x.shape[i] for i in axes)
    total = lax.expand_dims(staged.total(ctx, x, tuple(axes)), tuple(axes))
    return lax.div(total, full(count, total.shape, x.dtype))


def _centre(ctx: Context, x: jax.Array, axes: Sequence[int], eps: Real) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x - mean, the mean, and the inverse standard deviation over `axes`; the last two keep the axes with size 1."""
    mean = _mean(ctx, x, axes)
    centred = lax.sub(x, expand(mean, x.shape))
    variance = _mean(ctx, lax.mul(centred, centred), axes)
    return centred, mean, lax.rsqrt(lax.add(variance, full(eps, variance.shape, x.dtype)))


def _scaled(x: jax.Array, factor: Maybe, addend: Maybe = None) -> jax.Array:
    """x * factor + addend, either of which may be absent."""
    if factor is not None:
        x = lax.mul(x, expand(cast(factor, x.dtype), x.shape))
    return x if addend is None else lax.add(x, expand(cast(addend, x.dtype), x.shape))


def _as_inferred(ctx: Context, index: int, value: jax.Array) -> jax.Array:
    """`value` in the inferred shape and dtype."""
    out = ctx.out[index]
    return value if out is None else lax.reshape(cast(value, np.dtype(out.dtype)), out.shape)


def _normalised_gradient(ctx: Context, grad: jax.Array, unit: jax.Array, rstd: jax.Array, axes: Sequence[int]) -> jax.Array:
    """The gradient through normalised values `unit`: without its mean and without its part along them."""
    along = lax.mul(unit, expand(_mean(ctx, lax.mul(grad, unit), axes), unit.shape))
    level = lax.sub(grad, expand(_mean(ctx, grad, axes), unit.shape))
    return lax.mul(lax.sub(level, along), expand(rstd, unit.shape))


@op("native_layer_norm", scalars=("eps",))
def native_layer_norm(
    ctx: Context, x: jax.Array, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: Real
) -> tuple[jax.Array, ...]:
    """native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (output, mean, rstd)"""
    axes = range(x.ndim - len(normalized_shape), x.ndim)
    centred, mean, rstd = _centre(ctx, cast(x, compute_dtype(x.dtype)), axes, eps)
    output = _scaled(lax.mul(centred, expand(rstd, x.shape)), weight, bias)
    return cast(output, ctx.dtype), _as_inferred(ctx, 1, mean), _as_inferred(ctx, 2, rstd)


@op("native_layer_norm_backward", beyond_cpu=HALF)  # its statistics are in float32, as those of batch normalisation
def native_layer_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """native_layer_norm_backward(grad_out, input, SymInt[] normalized_shape, mean, rstd, weight?, bias?, bool[3] output_mask)"""
    dtype = compute_dtype(x.dtype)
    axes, rows = range(x.ndim - len(normalized_shape), x.ndim), tuple(range(x.ndim - len(normalized_shape)))
    grad, x, mean, rstd = (cast(v, dtype) for v in (grad, x, mean, rstd))
    unit = lax.mul(lax.sub(x, expand(mean, x.shape)), expand(rstd, x.shape))
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        to_x = _as_inferred(ctx, 0, _normalised_gradient(ctx, _scaled(grad, weight), unit, rstd, axes))
    if output_mask[1] and weight is not None:
        to_weight = _as_inferred(ctx, 1, staged.total(ctx, lax.mul(grad, unit), rows))
    if output_mask[2] and bias is not None:
        to_bias = _as_inferred(ctx, 2, staged.total(ctx, grad, rows))
    return to_x, to_weight, to_bias


def _grouped(x: jax.Array, batch: int, channels: int, inner: int, groups: int) -> jax.Array:
    """(batch, groups, channels of a group, positions), in the compute dtype."""
    return lax.reshape(cast(x, compute_dtype(x.dtype)), (batch, groups, channels // groups, inner))


def _by_channel(parameter: Maybe, groups: int) -> Maybe:
    return None if parameter is None else lax.reshape(parameter, (1, groups, parameter.shape[0] // groups, 1))


@op("native_group_norm", scalars=("eps",))
def native_group_norm(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, n: int, c: int, hxw: int, group: int, eps: Real
) -> tuple[jax.Array, ...]:
    """native_group_norm(input, weight?, bias?, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (output, mean, rstd)"""
    split = _grouped(x, n, c, hxw, group)
    centred, mean, rstd = _centre(ctx, split, (2, 3), eps)
    output = _scaled(lax.mul(centred, expand(rstd, split.shape)), _by_channel(weight, group), _by_channel(bias, group))
    return lax.reshape(cast(output, ctx.dtype), ctx.shape), _as_inferred(ctx, 1, mean), _as_inferred(ctx, 2, rstd)


@op("native_group_norm_backward")
def native_group_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """native_group_norm_backward(grad_out, input, mean, rstd, weight?, N, C, HxW, int group, bool[3] output_mask)"""
    split, grad = _grouped(x, n, c, hxw, group), _grouped(grad, n, c, hxw, group)
    mean, rstd = (lax.reshape(cast(v, split.dtype), (n, group, 1, 1)) for v in (mean, rstd))
    unit = lax.mul(lax.sub(split, expand(mean, split.shape)), expand(rstd, split.shape))
    # All that is summed are these two: each sum over the maps is kernels of its own, to be compiled and to read the maps again.
    level, along = (lax.expand_dims(staged.total(ctx, each, (3,)), (3,)) for each in (grad, lax.mul(grad, unit)))
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        factor, count = _by_channel(weight, group), full(c // group * hxw, mean.shape, split.dtype)
        level_of_group, along_of_group = (lax.div(_kept_sum(ctx, _scaled(each, factor), (2,)), count) for each in (level, along))
        centred = lax.sub(_scaled(grad, factor), expand(level_of_group, grad.shape))
        inward = lax.mul(unit, expand(along_of_group, unit.shape))
        to_x = _as_inferred(ctx, 0, lax.mul(lax.sub(centred, inward), expand(rstd, unit.shape)))
    if output_mask[1]:
        to_weight = _as_inferred(ctx, 1, staged.total(ctx, along, (0, 3)))
    if output_mask[2]:
        to_bias = _as_inferred(ctx, 2, staged.total(ctx, level, (0, 3)))
    return to_x, to_weight, to_bias


@op("_fused_rms_norm")
def fused_rms_norm(
    ctx: Context, x: jax.Array, normalized_shape: Sequence[int], weight: Maybe, eps: float | None
) -> tuple[jax.Array, jax.Array]:
    """_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (output, rstd)"""
    axes = range(x.ndim - len(normalized_shape), x.ndim)
    wide = cast(x, compute_dtype(x.dtype))
    small = float(np.finfo(wide.dtype).eps) if eps is None else eps
    squares = _mean(ctx, lax.mul(wide, wide), axes)
    rstd = lax.rsqrt(lax.add(squares, full(small, squares.shape, wide.dtype)))
    output = _scaled(lax.mul(wide, expand(rstd, x.shape)), weight)
    return cast(output, ctx.dtype), _as_inferred(ctx, 1, rstd)


@op("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    normalized_shape: Sequence[int],
    rstd: jax.Array,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    """_fused_rms_norm_backward(grad_out, input, int[] normalized_shape, rstd, weight?, bool[2] output_mask) -> (Tensor, Tensor)"""
    dtype = compute_dtype(x.dtype)
    axes, rows = range(x.ndim - len(normalized_shape), x.ndim), tuple(range(x.ndim - len(normalized_shape)))
    grad, x, rstd = (cast(v, dtype) for v in (grad, x, rstd))
    unit = lax.mul(x, expand(rstd, x.shape))
    to_x = to_weight = None
    if output_mask[0]:
        scaled = _scaled(grad, weight)
        along = lax.mul(unit, expand(_mean(ctx, lax.mul(scaled, unit), axes), x.shape))
        to_x = _as_inferred(ctx, 0, lax.mul(lax.sub(scaled, along), expand(rstd, x.shape)))
    if output_mask[1] and weight is not None:
        to_weight = _as_inferred(ctx, 1, staged.total(ctx, lax.mul(grad, unit), rows))
    return to_x, to_weight


def _others(x: jax.Array, dim: int) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != dim % x.ndim)


def _kept_sum(ctx: Context, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return lax.expand_dims(staged.total(ctx, x, axes), axes)


@op("_weight_norm_interface")
def weight_norm(ctx: Context, v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (g * v / norm, norm), the norm over all dimensions but `dim`"""
    wide = cast(v, compute_dtype(v.dtype))
    norm = lax.sqrt(_kept_sum(ctx, lax.mul(wide, wide), _others(v, dim)))
    factor = lax.div(lax.reshape(cast(g, wide.dtype), norm.shape), norm)
    return cast(lax.mul(wide, expand(factor, v.shape)), ctx.dtype), _as_inferred(ctx, 1, norm)


@op("_weight_norm_interface_backward", beyond_cpu=HALF)
def weight_norm_backward(
    ctx: Context, grad: jax.Array, v: jax.Array, g: jax.Array, norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    """_weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, int dim) -> (grad of v, grad of g)"""
    dtype, axes = compute_dtype(v.dtype), _others(v, dim)
    grad, v = cast(grad, dtype), cast(v, dtype)
    along = _kept_sum(ctx, lax.mul(grad, v), axes)
    g, norms = (lax.reshape(cast(x, dtype), along.shape) for x in (g, norms))
    inward = lax.mul(v, expand(lax.div(along, lax.mul(norms, norms)), v.shape))
    to_v = lax.mul(expand(lax.div(g, norms), v.shape), lax.sub(grad, inward))
    return _as_inferred(ctx, 0, to_v), _as_inferred(ctx, 1, lax.div(along, norms))

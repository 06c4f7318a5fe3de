"""Batch normalisation in all its functional forms, its gradient, and the pieces of SyncBatchNorm.

`native_batch_norm`, `_native_batch_norm_legit` and `_batch_norm_with_update` also change their running statistics. A row cannot:
the frontend calls the functional form, which returns the new statistics, and writes them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.private_torch import suggested_memory_format
from xla_core.ops.cpu import staged
from xla_core.ops.cpu.in_memory import channels_first, channels_last, in_memory
from xla_core.ops.facts import HALF, Autocast
from xla_core.ops.memory_format import like_input
from xla_core.ops.promote import Number, cast, compute_dtype, full
from xla_core.ops.table import Context, op, scalar, without_lowering

Real = Number | jax.Array
Maybe = jax.Array | None


def _once(x: jax.Array) -> jax.Array:
    """`x` with the channels last, in the compute dtype."""
    return cast(channels_last(x), compute_dtype(x.dtype))


def _repeatedly(ctx: Context, x: jax.Array) -> jax.Array:
    """The same of an array that is read several times: computed once."""
    return cast(in_memory(ctx, channels_last(x)), compute_dtype(x.dtype))


def _spread(per_channel: jax.Array, like: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(per_channel, like.shape, (like.ndim - 1,))


def _result(x: jax.Array, dtype: np.dtype) -> jax.Array:
    return channels_first(cast(x, dtype))


def _count(x: jax.Array) -> int:
    """The number of values of each channel."""
    return x.size // x.shape[-1]


def _total(ctx: Context, x: jax.Array) -> jax.Array:
    """The sum over all but the channels."""
    return staged.total(ctx, x, range(x.ndim - 1))


def moments(ctx: Context, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and sum of squared deviations per channel."""
    mean = lax.div(_total(ctx, x), scalar(_count(x), x.dtype))
    centred = lax.sub(x, _spread(mean, x))
    return mean, _total(ctx, lax.mul(centred, centred))


def _inverse_deviation(variance: jax.Array, eps: Real) -> jax.Array:
    return lax.rsqrt(lax.add(variance, full(eps, variance.shape, variance.dtype)))


def _affine(x: jax.Array, mean: jax.Array, inverse: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    """(x - mean) * inverse * weight + bias as one multiplication and one addition per value."""
    slope = inverse if weight is None else lax.mul(inverse, cast(weight, x.dtype))
    offset = lax.neg(lax.mul(mean, slope))
    if bias is not None:
        offset = lax.add(offset, cast(bias, x.dtype))
    return lax.add(lax.mul(x, _spread(slope, x)), _spread(offset, x))


def _blend(running: jax.Array, new: jax.Array, momentum: Real) -> jax.Array:
    """(1 - momentum) * running + momentum * new, in the dtype of `running`."""
    share = scalar(momentum, new.dtype)
    old = lax.mul(lax.sub(lax.full_like(share, 1), share), cast(running, new.dtype))
    return cast(lax.add(old, lax.mul(share, new)), running.dtype)


def _as_inferred(ctx: Context, index: int, value: jax.Array) -> jax.Array:
    """`value` as the inferred result: some forms have an empty tensor instead."""
    out = ctx.out[index]
    if out is None or out.shape == value.shape:
        return value if out is None else cast(value, np.dtype(out.dtype))
    return lax.full(out.shape, 0, out.dtype)


def _normalise(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, running: tuple[Maybe, Maybe], training: bool, momentum: Real, eps: Real
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[Maybe, Maybe]]:
    """(output, saved mean, saved inverse deviation), and the running statistics after the step."""
    mean, variance = running
    if not training and mean is not None and variance is not None:
        wide = _once(x)
        mean, variance = cast(mean, wide.dtype), cast(variance, wide.dtype)
        inverse = _inverse_deviation(variance, eps)
        after = running
    else:
        wide = _repeatedly(ctx, x)
        mean, squares = moments(ctx, wide)
        inverse = _inverse_deviation(lax.div(squares, scalar(_count(wide), wide.dtype)), eps)
        unbiased = lax.div(squares, scalar(_count(wide) - 1, wide.dtype))
        updates = [None if old is None else _blend(old, new, momentum) for old, new in zip(running, (mean, unbiased), strict=True)]
        after = (updates[0], updates[1])
    output = _result(_affine(wide, mean, inverse, weight, bias), ctx.dtype)
    return (output, _as_inferred(ctx, 1, mean), _as_inferred(ctx, 2, inverse)), after


@op("native_batch_norm", scalars=("momentum", "eps"), shapes=like_input("native_batch_norm.default"))
def native_batch_norm(
    ctx: Context,
    x: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: Real,
    eps: Real,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """native_batch_norm(input, weight?, bias?, running_mean?, running_var?, bool training, momentum, eps), without the update"""
    return _normalise(ctx, x, weight, bias, (running_mean, running_var), training, momentum, eps)[0]


@op("_native_batch_norm_legit.no_stats", scalars=("momentum", "eps"), shapes=like_input("_native_batch_norm_legit.no_stats"))
def batch_norm_no_stats(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, training: bool, momentum: Real, eps: Real
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """_native_batch_norm_legit.no_stats(input, weight?, bias?, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    return _normalise(ctx, x, weight, bias, (None, None), True, momentum, eps)[0]


def _results_without_training(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nothing is saved on the CPU; torch's own promises statistics on other devices."""
    return torch.empty_like(x, memory_format=suggested_memory_format(x)), x.new_empty(0), x.new_empty(0)


@op("_native_batch_norm_legit_no_training", scalars=("momentum", "eps"), shapes=_results_without_training)
def batch_norm_no_training(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, running_mean: jax.Array, running_var: jax.Array, momentum: Real, eps: Real
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """_native_batch_norm_legit_no_training(input, weight?, bias?, running_mean, running_var, momentum, eps) -> (output, empty, empty)"""
    return _normalise(ctx, x, weight, bias, (running_mean, running_var), False, momentum, eps)[0]


@op("_batch_norm_no_update", scalars=("momentum", "eps"))
def batch_norm_no_update(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, momentum: Real, eps: Real
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """_batch_norm_no_update(input, weight?, bias?, running_mean?, running_var?, momentum, eps) -> (output, mean, inverse, reserve)"""
    results = _normalise(ctx, x, weight, bias, (running_mean, running_var), False, momentum, eps)[0]
    return *results, _reserve(ctx, 3)


def _updated(ctx: Context, start: int, statistics: tuple[Maybe, Maybe]) -> list[Maybe]:
    """Running statistics as inferred, from result `start` on."""
    return [None if value is None else _as_inferred(ctx, start + place, value) for place, value in enumerate(statistics)]


def _reserve(ctx: Context, index: int) -> jax.Array:
    out = ctx.out[index]
    return lax.full((0,) if out is None else out.shape, 0, np.uint8 if out is None else out.dtype)


@op("_native_batch_norm_legit_functional", scalars=("momentum", "eps"), shapes=like_input("_native_batch_norm_legit_functional.default"))
def batch_norm_functional(
    ctx: Context,
    x: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    training: bool,
    momentum: Real,
    eps: Real,
) -> tuple[Maybe, ...]:
    """_native_batch_norm_legit_functional(...) -> (output, mean, inverse, running_mean_out, running_var_out)"""
    results, after = _normalise(ctx, x, weight, bias, (running_mean, running_var), training, momentum, eps)
    return *results, *_updated(ctx, 3, after)


@op("_batch_norm_with_update_functional", scalars=("momentum", "eps"))
def batch_norm_with_update_functional(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, running_mean: jax.Array, running_var: jax.Array, momentum: Real, eps: Real
) -> tuple[Maybe, ...]:
    """_batch_norm_with_update_functional(...) -> (output, mean, inverse, reserve, running_mean_out, running_var_out)"""
    results, after = _normalise(ctx, x, weight, bias, (running_mean, running_var), True, momentum, eps)
    return *results, _reserve(ctx, 3), *_updated(ctx, 4, after)


def _gradients(
    ctx: Context, grad: jax.Array, x: jax.Array, mean: jax.Array, inverse: jax.Array, weight: Maybe, train: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of input, weight and bias, in the compute dtype."""
    count = scalar(_count(x), x.dtype)
    to_bias = _total(ctx, grad)
    # The deviation, not the value, meets the gradient: means far from zero cancel before anything is summed.
    centred = lax.sub(x, _spread(mean, x))
    along = _total(ctx, lax.mul(grad, centred))
    to_weight = lax.mul(along, inverse)
    slope = inverse if weight is None else lax.mul(inverse, cast(weight, x.dtype))
    if not train:
        return lax.mul(grad, _spread(slope, x)), to_weight, to_bias
    pull = lax.div(lax.mul(to_weight, inverse), count)
    level = lax.sub(grad, _spread(lax.div(to_bias, count), x))
    return lax.mul(lax.sub(level, lax.mul(centred, _spread(pull, x))), _spread(slope, x)), to_weight, to_bias


def _wanted_gradients(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """As asked for; torch's own promises the input's gradient always."""
    found = torch.ops.aten.native_batch_norm_backward.default(*args)
    return tuple(one if wanted else None for one, wanted in zip(found, args[-1], strict=True))


without_lowering("batch_norm", autocast=Autocast.FLOAT32)


# Accelerators keep statistics in float32, where the CPU's gradients want half precision.
@op("native_batch_norm_backward", scalars=("eps",), shapes=_wanted_gradients, beyond_cpu=HALF)
def native_batch_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: Real,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    """native_batch_norm_backward(grad_out, input, weight?, running and saved statistics?, bool train, float eps, bool[3] output_mask)"""
    dtype = compute_dtype(x.dtype)
    grad, x = _repeatedly(ctx, grad), _repeatedly(ctx, x)
    if train and save_mean is not None and save_invstd is not None:
        mean, inverse = cast(save_mean, dtype), cast(save_invstd, dtype)
    elif running_mean is not None and running_var is not None:
        mean, inverse = cast(running_mean, dtype), _inverse_deviation(cast(running_var, dtype), eps)
    else:
        mean, squares = moments(ctx, x)
        inverse = _inverse_deviation(lax.div(squares, scalar(_count(x), dtype)), eps)
    to_x, *others = _gradients(ctx, grad, x, mean, inverse, weight, train)
    found = (channels_first(to_x), *others)
    inferred = zip(found, ctx.out, output_mask, strict=True)
    return tuple(cast(g, np.dtype(out.dtype)) if wanted and out is not None else None for g, out, wanted in inferred)


@op("batch_norm_backward", scalars=("eps",), beyond_cpu=HALF)
def batch_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    update: bool,
    eps: Real,
    output_mask: Sequence[bool],
    reserve: jax.Array,
) -> tuple[Maybe, ...]:
    """batch_norm_backward(grad_out, input, weight, running and saved statistics?, bool update, eps, output_mask, reserve)"""
    return native_batch_norm_backward(ctx, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask)


@op("batch_norm_stats", scalars=("eps",))
def batch_norm_stats(ctx: Context, x: jax.Array, eps: Real) -> tuple[jax.Array, jax.Array]:
    """batch_norm_stats(Tensor input, float eps) -> (mean, inverse deviation)"""
    wide = _repeatedly(ctx, x)
    mean, squares = moments(ctx, wide)
    return _as_inferred(ctx, 0, mean), _as_inferred(ctx, 1, _inverse_deviation(lax.div(squares, scalar(_count(wide), wide.dtype)), eps))


@op("batch_norm_elemt", scalars=("eps",))
def batch_norm_elemt(ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, mean: jax.Array, invstd: jax.Array, eps: Real) -> jax.Array:
    """batch_norm_elemt(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor invstd, float eps) -> Tensor"""
    wide = _once(x)
    return _result(_affine(wide, cast(mean, wide.dtype), cast(invstd, wide.dtype), weight, bias), ctx.dtype)


@op("batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Maybe,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Maybe, ...]:
    """batch_norm_backward_reduce(...) -> (sum_dy, sum_dy_xmu, grad_weight, grad_bias)"""
    dtype = compute_dtype(x.dtype)
    grad, x = _repeatedly(ctx, grad), _once(x)
    centred = lax.sub(x, _spread(cast(mean, dtype), x))
    total, along = _total(ctx, grad), _total(ctx, lax.mul(grad, centred))
    found = (total, along, lax.mul(along, cast(invstd, dtype)), total)
    wanted = (input_g, input_g, weight_g, bias_g)
    return tuple(_as_inferred(ctx, i, value) if want else None for i, (value, want) in enumerate(zip(found, wanted, strict=True)))


@op("batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Maybe,
    sum_dy: jax.Array,
    sum_dy_xmu: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """batch_norm_backward_elemt(grad_out, input, mean, invstd, weight?, sum_dy, sum_dy_xmu, count): `count` values per process"""
    dtype = compute_dtype(x.dtype)
    grad, x, inverse = _once(grad), _once(x), cast(invstd, dtype)
    total = cast(lax.reduce_sum(count, tuple(range(count.ndim))), dtype)
    centred = lax.sub(x, _spread(cast(mean, dtype), x))
    pull = lax.div(lax.mul(cast(sum_dy_xmu, dtype), lax.mul(inverse, inverse)), total)
    level = lax.sub(grad, _spread(lax.div(cast(sum_dy, dtype), total), x))
    slope = inverse if weight is None else lax.mul(inverse, cast(weight, dtype))
    return _result(lax.mul(lax.sub(level, lax.mul(centred, _spread(pull, x))), _spread(slope, x)), ctx.dtype)

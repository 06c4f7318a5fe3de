"""Loss functions and their gradients: elementwise ones share one reduction, class losses pick by target index."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import jax
import numpy as np
from jax import lax

from xla_core.ops.checks import Fault, not_a_share, outside
from xla_core.ops.cpu import staged
from xla_core.ops.facts import Autocast
from xla_core.ops.platforms import positions
from xla_core.ops.promote import Number, broadcast, cast, compute_dtype, expand, full
from xla_core.ops.table import Context, op, without_lowering

Real = Number | jax.Array


class Reduction(IntEnum):
    """torch's numbers for `reduction='none' | 'mean' | 'sum'`."""

    NONE = 0
    MEAN = 1
    SUM = 2


def _const(value: Real, like: jax.Array) -> jax.Array:
    return full(value, like.shape, like.dtype)


def _total(ctx: Context, x: jax.Array) -> jax.Array:
    return staged.total(ctx, x, tuple(range(x.ndim)))


def _reduce(ctx: Context, values: jax.Array, reduction: int) -> jax.Array:
    """Losses per element as the result that `reduction` asks for."""
    if reduction == Reduction.NONE:
        return cast(values, ctx.dtype)
    total = _total(ctx, values)
    return cast(lax.div(total, _const(values.size, total)) if reduction == Reduction.MEAN else total, ctx.dtype)


def _weighted(grad: jax.Array, slope: jax.Array, reduction: int, size: int) -> jax.Array:
    """The incoming gradient times the loss's own slope, and the mean's share. size: elements of the input, as CPU torch counts them."""
    result = lax.mul(*broadcast(cast(grad, slope.dtype), slope))
    return lax.div(result, _const(size, result)) if reduction == Reduction.MEAN else result


def _wide(ctx: Context, *tensors: jax.Array) -> list[jax.Array]:
    return broadcast(*(cast(x, compute_dtype(ctx.dtype)) for x in tensors))


def _pointwise(name: str, scalars: tuple[str, ...] = ()) -> Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]:
    """Register `loss(x, target, *parameters)` for rows called (self, target, reduction, *parameters); autocast runs them in float32."""

    def add(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        @op(name, scalars=scalars, autocast=Autocast.FLOAT32)
        def lowering(ctx: Context, x: jax.Array, target: jax.Array, reduction: int = 1, *parameters: Real, **named: Real) -> jax.Array:
            return _reduce(ctx, loss(*_wide(ctx, x, target), *parameters, **named), reduction)

        lowering.__doc__ = loss.__doc__
        return loss

    return add


def _pointwise_backward(name: str, scalars: tuple[str, ...] = ()) -> Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]:
    """Register `slope(x, target, *parameters)` for rows called (grad_output, self, target, reduction, *parameters)."""

    def add(slope: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        @op(name, scalars=scalars)
        def lowering(ctx: Context, grad: jax.Array, x: jax.Array, target: jax.Array, reduction: int, *parameters: Real) -> jax.Array:
            return cast(_weighted(grad, slope(*_wide(ctx, x, target), *parameters), reduction, x.size), ctx.dtype)

        lowering.__doc__ = slope.__doc__
        return slope

    return add


without_lowering(
    *("cosine_embedding_loss", "cross_entropy_loss", "hinge_embedding_loss", "kl_div", "l1_loss", "margin_ranking_loss"),
    *("nll_loss", "nll_loss2d", "nll_loss_nd", "poisson_nll_loss", "triplet_margin_loss"),
    autocast=Autocast.FLOAT32,
)


@_pointwise("mse_loss")
def mse_loss(x: jax.Array, target: jax.Array) -> jax.Array:
    """mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"""
    difference = lax.sub(x, target)
    return lax.mul(difference, difference)


@_pointwise_backward("mse_loss_backward")
def mse_loss_backward(x: jax.Array, target: jax.Array) -> jax.Array:
    """mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor"""
    return lax.mul(_const(2, x), lax.sub(x, target))


@_pointwise("smooth_l1_loss", scalars=("beta",))
def smooth_l1_loss(x: jax.Array, target: jax.Array, beta: Real = 1.0) -> jax.Array:
    """smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor"""
    distance, knee, half = lax.abs(lax.sub(x, target)), _const(beta, x), _const(0.5, x)
    near = lax.div(lax.mul(half, lax.mul(distance, distance)), knee)
    return lax.select(lax.lt(distance, knee), near, lax.sub(distance, lax.mul(half, knee)))


@_pointwise_backward("smooth_l1_loss_backward", scalars=("beta",))
def smooth_l1_loss_backward(x: jax.Array, target: jax.Array, beta: Real) -> jax.Array:
    """smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor"""
    difference, knee = lax.sub(x, target), _const(beta, x)
    above = lax.select(lax.ge(difference, knee), _const(1, x), lax.div(difference, knee))
    return lax.select(lax.le(difference, lax.neg(knee)), _const(-1, x), above)


@_pointwise("huber_loss", scalars=("delta",))
def huber_loss(x: jax.Array, target: jax.Array, delta: Real = 1.0) -> jax.Array:
    """huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor"""
    distance, knee, half = lax.abs(lax.sub(x, target)), _const(delta, x), _const(0.5, x)
    far = lax.mul(knee, lax.sub(distance, lax.mul(half, knee)))
    return lax.select(lax.le(distance, knee), lax.mul(half, lax.mul(distance, distance)), far)


@_pointwise_backward("huber_loss_backward", scalars=("delta",))
def huber_loss_backward(x: jax.Array, target: jax.Array, delta: Real) -> jax.Array:
    """huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> Tensor"""
    knee = _const(delta, x)
    return lax.min(lax.max(lax.sub(x, target), lax.neg(knee)), knee)


@_pointwise("soft_margin_loss")
def soft_margin_loss(x: jax.Array, target: jax.Array) -> jax.Array:
    """soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor"""
    return lax.log1p(lax.exp(lax.neg(lax.mul(target, x))))


@_pointwise_backward("soft_margin_loss_backward")
def soft_margin_loss_backward(x: jax.Array, target: jax.Array) -> jax.Array:
    """soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor"""
    return lax.neg(lax.mul(target, lax.logistic(lax.neg(lax.mul(target, x)))))


def _times(values: jax.Array, weight: jax.Array | None) -> jax.Array:
    return values if weight is None else lax.mul(values, expand(cast(weight, values.dtype), values.shape))


@op("binary_cross_entropy", autocast=Autocast.FLOAT32)
def binary_cross_entropy(ctx: Context, x: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = 1) -> jax.Array:
    """binary_cross_entropy(self, target, Tensor? weight=None, int reduction=1) -> Tensor: logarithms no lower than -100"""
    x, target = _wide(ctx, x, target)
    for shares in (x, target):
        ctx.check(Fault.LIKELIHOOD, not_a_share(shares))
    one, floor = _const(1, x), _const(-100, x)
    positive, negative = lax.max(lax.log(x), floor), lax.max(lax.log1p(lax.neg(x)), floor)
    values = lax.sub(lax.mul(lax.sub(target, one), negative), lax.mul(target, positive))
    return _reduce(ctx, _times(values, weight), reduction)


@op("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    ctx: Context, grad: jax.Array, x: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    """binary_cross_entropy_backward(grad_output, self, target, Tensor? weight=None, int reduction=1) -> Tensor"""
    size = x.size
    x, target = _wide(ctx, x, target)
    spread = lax.max(lax.mul(lax.sub(_const(1, x), x), x), _const(1e-12, x))
    return cast(_weighted(grad, _times(lax.div(lax.sub(x, target), spread), weight), reduction, size), ctx.dtype)


@op("binary_cross_entropy_with_logits", autocast=Autocast.FLOAT32)
def binary_cross_entropy_with_logits(
    ctx: Context, x: jax.Array, target: jax.Array, weight: jax.Array | None = None, pos_weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    """binary_cross_entropy_with_logits(self, target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor"""
    x, target = _wide(ctx, x, target)
    one = _const(1, x)
    log_sigmoid = lax.sub(lax.min(x, _const(0, x)), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))
    if pos_weight is not None:
        scale = lax.add(lax.mul(lax.sub(expand(cast(pos_weight, x.dtype), x.shape), one), target), one)
        log_sigmoid = lax.mul(scale, log_sigmoid)
    values = lax.sub(lax.mul(lax.sub(one, target), x), log_sigmoid)
    return _reduce(ctx, _times(values, weight), reduction)


def _class_weights(x: jax.Array, target: jax.Array, weight: jax.Array | None, ignore_index: int) -> jax.Array:
    """Each target's weight: its class's, or 0 where ignored."""
    if weight is None or x.shape[1] == 0:
        each = lax.full(target.shape, 1, x.dtype)
    else:
        each = cast(weight, x.dtype).at[_without_ignored(target, ignore_index)].get(mode="fill", fill_value=np.nan)
    return lax.select(_ignored(target, ignore_index), lax.full_like(each, 0), each)


def _ignored(target: jax.Array, ignore_index: int) -> jax.Array:
    return lax.eq(target, lax.full_like(target, ignore_index))


def _without_ignored(target: jax.Array, ignore_index: int) -> jax.Array:
    """Targets made harmless where ignored."""
    return lax.select(_ignored(target, ignore_index), lax.full_like(target, 0), target)


def _own_class(x: jax.Array, target: jax.Array) -> jax.Array:
    """For (N, C, ...) values and (N, ...) targets: whether each class is the target's."""
    classes = lax.broadcasted_iota(np.dtype(target.dtype), x.shape, 1)
    return lax.eq(classes, lax.broadcast_in_dim(target, x.shape, [i for i in range(x.ndim) if i != 1]))


def _picked(ctx: Context, x: jax.Array, target: jax.Array) -> jax.Array:
    """x[target] per target. A target outside the classes gives NaN, where CPU torch raises, and the checks do."""
    if ctx.platform == "tpu":  # a sum over all classes becomes part of what computes `x`; a gather is five kernels
        total = lax.reduce_sum(lax.select(_own_class(x, target), x, lax.full_like(x, 0)), (1,))
        return lax.select(outside(target, x.shape[1]), lax.full_like(total, np.nan), total)
    # Negative indices would count from the end.
    index = lax.select(lax.lt(target, lax.full_like(target, 0)), lax.full_like(target, x.shape[1]), target)
    return lax.squeeze(jax.numpy.take_along_axis(x, lax.expand_dims(index, (1,)), axis=1, mode="fill", fill_value=np.nan), (1,))


def _batched(ctx: Context, x: jax.Array, target: jax.Array, ignore_index: int) -> tuple[jax.Array, jax.Array]:
    """Values in the dtype of computation, and targets as positions; a single example (C,) with target () as a batch of one."""
    x, target = cast(x, compute_dtype(ctx.dtype)), positions(target, ignore_index, ctx.platform)
    return (x, target) if x.ndim > 1 else (lax.expand_dims(x, (0,)), lax.reshape(target, (1,)))


@op("nll_loss_forward", shown_as="aten::nll_loss")
@op("nll_loss2d_forward")
def nll_loss_forward(
    ctx: Context, x: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    """nll_loss_forward(self, target, Tensor? weight, int reduction, SymInt ignore_index) -> (output, total_weight)"""
    wide, target = _batched(ctx, x, target, ignore_index)
    safe, each = _without_ignored(target, ignore_index), _class_weights(wide, target, weight, ignore_index)
    ctx.check(Fault.TARGET, outside(safe, wide.shape[1]), safe, wide.shape[1])
    costs = lax.neg(_picked(ctx, wide, safe))
    if weight is not None:
        costs = lax.mul(costs, each)
    # A cost without weight counts nothing, even if it is infinite.
    values, total = lax.select(lax.ne(each, lax.full_like(each, 0)), costs, lax.full_like(costs, 0)), _total(ctx, each)
    if reduction == Reduction.NONE and x.ndim > 1:
        return cast(values, ctx.dtype), lax.full((), 0, ctx.dtype)
    loss = _total(ctx, values)
    return cast(lax.div(loss, total) if reduction == Reduction.MEAN else loss, ctx.dtype), cast(total, ctx.dtype)


@op("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    """nll_loss_backward(grad_output, self, target, Tensor? weight, int reduction, SymInt ignore_index, total_weight) -> Tensor"""
    wide, target = _batched(ctx, x, target, ignore_index)
    over_classes = [i for i in range(wide.ndim) if i != 1]
    slope, chosen = lax.neg(cast(grad, wide.dtype)), _own_class(wide, target)
    if reduction == Reduction.MEAN:
        slope = lax.div(slope, cast(total_weight, wide.dtype))
    if weight is not None:
        each = _class_weights(wide, target, weight, ignore_index)
        slope = lax.mul(expand(slope, each.shape), each)
        chosen = lax.bitwise_and(chosen, lax.broadcast_in_dim(lax.ne(each, lax.full_like(each, 0)), wide.shape, over_classes))
    elif 0 <= ignore_index < wide.shape[1]:  # the others are no class
        chosen = lax.bitwise_and(chosen, lax.broadcast_in_dim(lax.bitwise_not(_ignored(target, ignore_index)), wide.shape, over_classes))
    spread = lax.broadcast_in_dim(expand(slope, target.shape), wide.shape, over_classes)
    return lax.reshape(cast(lax.select(chosen, spread, lax.full_like(spread, 0)), ctx.dtype), ctx.shape)

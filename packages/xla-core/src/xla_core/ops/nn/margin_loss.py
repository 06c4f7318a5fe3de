"""Multi-class and multi-label margin losses with gradients."""

from __future__ import annotations

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.checks import Fault, outside
from xla_core.ops.facts import HALF, Autocast
from xla_core.ops.nn.loss import Reduction
from xla_core.ops.promote import Number, cast, compute_dtype, full
from xla_core.ops.table import Context, op, without_lowering

Real = Number | jax.Array


def _rows(x: jax.Array, target: jax.Array, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    """Scores as (N, C) and targets as (N,); a single example becomes a batch of one."""
    if x.ndim > 1:
        return cast(x, dtype), target
    return lax.reshape(cast(x, dtype), (1, x.size)), lax.reshape(target, (1,))


def _spread(column: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One value per example over all classes."""
    return lax.broadcast_in_dim(column, shape, (0,))


def _finish(ctx: Context, each: jax.Array, reduction: int) -> jax.Array:
    """Losses per example as the result that `reduction` asks for."""
    if reduction == Reduction.NONE:
        return lax.reshape(cast(each, ctx.dtype), ctx.shape)
    total = lax.reduce_sum(each, (0,))
    return cast(lax.div(total, full(each.shape[0], (), total.dtype)) if reduction == Reduction.MEAN else total, ctx.dtype)


def _incoming(grad: jax.Array, rows: int, dtype: np.dtype, reduction: int) -> jax.Array:
    """The gradient of each example's loss."""
    grad = cast(grad, dtype)
    if reduction == Reduction.NONE:
        return lax.reshape(grad, (rows,))
    each = lax.broadcast(lax.reshape(grad, ()), (rows,))
    return lax.div(each, full(rows, (rows,), dtype)) if reduction == Reduction.MEAN else each


def _violations(x: jax.Array, target: jax.Array, margin: Real) -> tuple[jax.Array, jax.Array]:
    """By how much each other class comes within the margin of the target's, and which class is the target's."""
    classes = lax.broadcasted_iota(np.dtype(target.dtype), x.shape, 1)
    own = lax.eq(classes, _spread(target, x.shape))
    chosen = lax.reduce_sum(lax.select(own, x, lax.full_like(x, 0)), (1,))
    short = lax.add(lax.sub(full(margin, x.shape, x.dtype), _spread(chosen, x.shape)), x)
    zero = lax.full_like(short, 0)
    return lax.select(lax.bitwise_or(own, lax.le(short, zero)), zero, short), own


def _per_target(weight: jax.Array | None, target: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Each example's weight divided by the number of classes, over all classes."""
    if weight is None:
        return full(1 / shape[1], shape, dtype)
    chosen = cast(weight, dtype).at[target].get(mode="fill", fill_value=np.nan)
    return _spread(lax.div(chosen, full(shape[1], chosen.shape, dtype)), shape)


@op("multi_margin_loss", scalars=("margin",), autocast=Autocast.FLOAT32, beyond_cpu=HALF)
def multi_margin_loss(
    ctx: Context, x: jax.Array, target: jax.Array, p: float = 1, margin: Real = 1, weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    """multi_margin_loss(self, target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor"""
    x, target = _rows(x, target, compute_dtype(ctx.dtype))
    ctx.check(Fault.MARGIN_TARGET, outside(target, x.shape[1]), target, x.shape[1])
    short, _ = _violations(x, target, margin)
    powered = short if p == 1 else lax.mul(short, short)
    each = lax.reduce_sum(lax.mul(powered, _per_target(weight, target, x.shape, powered.dtype)), (1,))
    return _finish(ctx, each, reduction)


def _like_input(grad: torch.Tensor, x: torch.Tensor, *_: object) -> torch.Tensor:
    """Torch has no meta kernels of the gradients."""
    return x.new_empty(x.shape)


@op("multi_margin_loss_backward", scalars=("margin",), shapes=_like_input, beyond_cpu=HALF)
def multi_margin_loss_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    p: float,
    margin: Real,
    weight: jax.Array | None = None,
    reduction: int = 1,
) -> jax.Array:
    """multi_margin_loss_backward(grad_output, self, target, Scalar p, Scalar margin, Tensor? weight=None, int reduction=1) -> Tensor"""
    x, target = _rows(x, target, compute_dtype(ctx.dtype))
    short, own = _violations(x, target, margin)
    slope = lax.sign(short) if p == 1 else lax.mul(full(2, short.shape, short.dtype), short)
    slope = lax.mul(slope, _per_target(weight, target, x.shape, x.dtype))
    slope = lax.select(own, lax.neg(_spread(lax.reduce_sum(slope, (1,)), x.shape)), slope)
    return lax.reshape(cast(lax.mul(slope, _spread(_incoming(grad, x.shape[0], x.dtype, reduction), x.shape)), ctx.dtype), ctx.shape)


def _labels(target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Targets (N, C) as one-hot (N, position, class), and whether each class is one: labels end at the first negative number."""
    shape = (*target.shape, target.shape[1])
    ended = lax.cummax(lax.convert_element_type(lax.lt(target, lax.full_like(target, 0)), np.int32), axis=1)
    open_ = lax.broadcast_in_dim(lax.eq(ended, lax.full_like(ended, 0)), shape, (0, 1))
    classes = lax.broadcasted_iota(np.dtype(target.dtype), shape, 2)
    one_hot = lax.bitwise_and(open_, lax.eq(classes, lax.broadcast_in_dim(target, shape, (0, 1))))
    return one_hot, lax.reduce_or(one_hot, (1,))


def _label_violations(x: jax.Array, one_hot: jax.Array, labelled: jax.Array) -> jax.Array:
    """1 - x[label] + x[other] where positive, for each label position and each class that is no label; else 0."""
    shape = one_hot.shape
    over_classes = lax.broadcast_in_dim(x, shape, (0, 2))
    chosen = lax.reduce_sum(lax.select(one_hot, over_classes, lax.full_like(over_classes, 0)), (2,))
    short = lax.add(lax.sub(lax.full_like(over_classes, 1), lax.broadcast_in_dim(chosen, shape, (0, 1))), over_classes)
    used = lax.broadcast_in_dim(lax.reduce_or(one_hot, (2,)), shape, (0, 1))
    free = lax.bitwise_not(lax.broadcast_in_dim(labelled, shape, (0, 2)))
    counted = lax.bitwise_and(lax.bitwise_and(used, free), lax.gt(short, lax.full_like(short, 0)))
    return lax.select(counted, short, lax.full_like(short, 0))


def _label_margin_results(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One example without a batch gives a number; torch's own promises a vector."""
    return x.new_empty(x.shape[:1] if x.dim() > 1 and not reduction else ()), x.new_empty(target.shape)


without_lowering("multilabel_margin_loss", autocast=Autocast.FLOAT32)


@op("multilabel_margin_loss_forward", shapes=_label_margin_results, beyond_cpu=HALF)
def multilabel_margin_loss_forward(ctx: Context, x: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    """multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor is_target)"""
    shape = target.shape
    x, target = _label_rows(x, target, compute_dtype(ctx.dtype))
    ctx.check(Fault.MARGIN_TARGET, outside(target, x.shape[1], -1), target, x.shape[1])
    one_hot, labelled = _labels(target)
    short = _label_violations(x, one_hot, labelled)
    each = lax.div(lax.reduce_sum(short, (1, 2)), full(x.shape[1], (x.shape[0],), x.dtype))
    return _finish(ctx, each, reduction), lax.reshape(cast(labelled, ctx.dtype), shape)


def _label_rows(x: jax.Array, target: jax.Array, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    shape = x.shape if x.ndim == 2 else (1, x.size)
    return lax.reshape(cast(x, dtype), shape), lax.reshape(target, shape)


@op("multilabel_margin_loss_backward", shapes=_like_input, beyond_cpu=HALF)
def multilabel_margin_loss_backward(
    ctx: Context, grad: jax.Array, x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    """multilabel_margin_loss_backward(grad_output, self, target, int reduction, is_target) -> Tensor"""
    x, target = _label_rows(x, target, compute_dtype(ctx.dtype))
    one_hot, labelled = _labels(target)
    hits = lax.sign(_label_violations(x, one_hot, labelled))
    pushed = lax.reduce_sum(hits, (1,))
    pulls = lax.broadcast_in_dim(lax.reduce_sum(hits, (2,)), one_hot.shape, (0, 1))
    pulled = lax.reduce_sum(lax.select(one_hot, pulls, lax.full_like(pulls, 0)), (1,))
    slope = lax.div(lax.sub(pushed, pulled), full(x.shape[1], x.shape, x.dtype))
    incoming = _incoming(grad, x.shape[0], x.dtype, reduction)
    return lax.reshape(cast(lax.mul(slope, _spread(incoming, x.shape)), ctx.dtype), ctx.shape)

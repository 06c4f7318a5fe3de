"""The fused optimizer steps and the gradient scaler's helpers: whole lists of parameters in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from xla_core.ops.promote import Number, as_array, cast, compute_dtype
from xla_core.ops.table import Context, op

Value = Number | jax.Array
Arrays = list[jax.Array]
_DOUBLE = np.dtype(np.float64)


def _double(value: Value) -> jax.Array:
    """A hyperparameter in float64: bias corrections such as 1 - 0.999 ** step lose too much in float32."""
    array = as_array(value, _DOUBLE)
    return lax.reshape(array, ()) if array.ndim else array


def _like(value: Value, x: jax.Array) -> jax.Array:
    """A hyperparameter, in any dtype, broadcast to the tensor it acts on."""
    array = as_array(value, x.dtype)
    return lax.broadcast(lax.reshape(array, ()) if array.ndim else array, x.shape)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Number) and value == 0


@dataclass(frozen=True, slots=True)
class _Gradient:
    """The treatment of a gradient before any optimizer sees it, and whether the step is taken at all."""

    scale: jax.Array | None
    found_inf: jax.Array | None
    maximize: bool

    def unscaled(self, grad: jax.Array) -> jax.Array:
        """The gradient without the loss scale, in its compute dtype."""
        grad = cast(grad, compute_dtype(grad.dtype))
        return grad if self.scale is None else lax.div(grad, _like(self.scale, grad))

    def ascent(self, grad: jax.Array) -> jax.Array:
        return lax.neg(grad) if self.maximize else grad

    def keep(self, old: jax.Array, new: jax.Array) -> jax.Array:
        """`new` in the dtype of `old`, or `old` when the step must be skipped."""
        new = cast(new, old.dtype)
        if self.found_inf is None:
            return new
        return lax.select(lax.eq(_like(self.found_inf, old), lax.full_like(old, 1)), old, new)


def _decayed(grad: jax.Array, param: jax.Array, weight_decay: Value) -> jax.Array:
    return grad if _is_zero(weight_decay) else grad + param * _like(weight_decay, param)


def _rows(x: jax.Array) -> Arrays:
    return [lax.index_in_dim(x, row, keepdims=False) for row in range(x.shape[0])]


def _transposed(rows: Sequence[tuple[jax.Array, ...]], width: int) -> Arrays:
    """Per-parameter results as the flat output list: all of the first kind, then all of the second …"""
    return [row[i] for i in range(width) for row in rows]


@dataclass(frozen=True, slots=True)
class _Adam:
    """Hyperparameters of one Adam step."""

    lr: Value
    beta1: Value
    beta2: Value
    weight_decay: Value
    eps: Value
    decoupled: bool

    def corrected(self, ctx: Context, steps: Arrays) -> tuple[jax.Array, jax.Array]:
        """The rate by the correction of the mean, and the root of that of the square, a row for each parameter.

        All at once: a TPU has no float64, and XLA makes hundreds of instructions of each power. There they are `-expm1(step * log(beta))`
        in float32, which loses nothing where 1 - beta is small.
        """
        dtype = np.dtype(np.float32) if ctx.platform == "tpu" else _DOUBLE
        counts = lax.concatenate([lax.reshape(cast(step, dtype), (1,)) for step in steps], 0)

        def correction(beta: Value) -> jax.Array:
            if dtype == _DOUBLE:
                return 1 - lax.pow(_like(beta, counts), counts)
            return lax.neg(lax.expm1(counts * lax.log1p(_like(_double(beta) - 1, counts))))

        return _like(self.lr, counts) / correction(self.beta1), lax.sqrt(correction(self.beta2))

    def step(
        self,
        gradient: _Gradient,
        param: jax.Array,
        grad: jax.Array,
        mean: jax.Array,
        square: jax.Array,
        largest: jax.Array | None,
        rate: jax.Array,
        root: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """New parameter, gradient, moments and, for amsgrad, the largest second moment. rate, root: as `corrected` gives them."""
        raw = gradient.unscaled(grad)
        ascent, wide = gradient.ascent(raw), cast(param, compute_dtype(param.dtype))
        if self.decoupled:
            wide = wide * _like(1 - _double(self.lr) * _double(self.weight_decay), wide)
        else:
            ascent = _decayed(ascent, wide, self.weight_decay)
        new_mean = cast(mean, ascent.dtype)
        new_mean = new_mean + (ascent - new_mean) * _like(1 - _double(self.beta1), ascent)
        new_square = cast(square, ascent.dtype) * _like(self.beta2, ascent) + _like(1 - _double(self.beta2), ascent) * ascent * ascent
        bound = new_square if largest is None else lax.max(cast(largest, ascent.dtype), new_square)
        denominator = lax.sqrt(bound) / _like(root, bound) + _like(self.eps, bound)
        new_param = wide - _like(rate, wide) * new_mean / denominator
        pairs = [(param, new_param), (grad, raw), (mean, new_mean), (square, new_square)]
        if largest is not None:
            pairs.append((largest, bound))
        return tuple(gradient.keep(old, new) for old, new in pairs)


def _register_adam(name: str, decoupled: bool) -> None:
    @op(name, f"{name}.tensor_lr", scalars=("lr", "beta1", "beta2", "weight_decay", "eps"))
    def adam(
        ctx: Context,
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        amsgrad: bool,
        maximize: bool,
        grad_scale: jax.Array | None = None,
        found_inf: jax.Array | None = None,
        **hyper: Value,
    ) -> Arrays:
        gradient, rule = _Gradient(grad_scale, found_inf, maximize), _Adam(**hyper, decoupled=decoupled)
        largest: Sequence[jax.Array | None] = max_exp_avg_sqs if amsgrad else [None] * len(self)
        if not self:
            return []
        rates, roots = rule.corrected(ctx, state_steps)
        columns = zip(self, grads, exp_avgs, exp_avg_sqs, largest, _rows(rates), _rows(roots), strict=True)
        results = _transposed([rule.step(gradient, *column) for column in columns], 5 if amsgrad else 4)
        return results if amsgrad else results + list(max_exp_avg_sqs)

    adam.__doc__ = f"{name}: one step over lists -> (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)."


_register_adam("_fused_adam", decoupled=False)
_register_adam("_fused_adamw", decoupled=True)


@op("_fused_sgd", "_fused_sgd.tensor_lr", scalars=("lr", "weight_decay", "dampening"))
def _sgd(
    ctx: Context,
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: Value,
    momentum: float,
    lr: Value,
    dampening: Value,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> Arrays:
    """_fused_sgd(...) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] momentum_buffer_list_out)."""
    gradient = _Gradient(grad_scale, found_inf, maximize)
    params, new_grads, buffers = [], [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        raw, wide = gradient.unscaled(grad), cast(param, compute_dtype(param.dtype))
        update = _decayed(gradient.ascent(raw), wide, weight_decay)
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            blend = cast(old, update.dtype) * _like(momentum, update) + update * _like(1 - _double(dampening), update)
            buffer = update if is_first_step else blend
            update = update + buffer * _like(momentum, buffer) if nesterov else buffer
            buffers.append(gradient.keep(old, buffer))
        params.append(gradient.keep(param, wide - update * _like(lr, update)))
        new_grads.append(gradient.keep(grad, raw))
    return params + new_grads + buffers


@op("_fused_adagrad", "_fused_adagrad.tensor_lr", scalars=("lr", "lr_decay", "weight_decay", "eps"))
def _adagrad(
    ctx: Context,
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Value,
    lr_decay: Value,
    weight_decay: Value,
    eps: Value,
    maximize: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> Arrays:
    """_fused_adagrad(...) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] state_sums_out, Tensor[] state_steps_out)."""
    gradient = _Gradient(grad_scale, found_inf, maximize)
    rows = []
    for param, grad, total, step in zip(self, grads, state_sums, state_steps, strict=True):
        raw, wide = gradient.unscaled(grad), cast(param, compute_dtype(param.dtype))
        ascent = _decayed(gradient.ascent(raw), wide, weight_decay)
        new_total = cast(total, ascent.dtype) + ascent * ascent
        rate = _double(lr) / (1 + (_double(step) - 1) * _double(lr_decay))
        new_param = wide - _like(rate, wide) * ascent / (lax.sqrt(new_total) + _like(eps, new_total))
        rows.append((gradient.keep(param, new_param), gradient.keep(grad, raw), gradient.keep(total, new_total)))
    results = _transposed(rows, 3)
    return results + list(state_steps) if len(ctx.out) == 4 * len(self) else results


@op("_amp_foreach_non_finite_check_and_unscale")
def _unscale(ctx: Context, self: Arrays, found_inf: jax.Array, inv_scale: jax.Array) -> Arrays:
    """_amp_foreach_non_finite_check_and_unscale(Tensor[] self, Tensor found_inf, Tensor inv_scale) -> (Tensor[], Tensor)."""
    bad = lax.ne(found_inf, lax.full_like(found_inf, 0))
    for grad in self:
        finite = lax.reduce_and(lax.is_finite(grad), tuple(range(grad.ndim)))
        bad = bad | lax.broadcast(lax.bitwise_not(finite), bad.shape)
    scaled = []
    for grad in self:
        wide = cast(grad, compute_dtype(grad.dtype))
        scaled.append(cast(wide * _like(inv_scale, wide), grad.dtype))
    return [*scaled, lax.select(bad, lax.full_like(found_inf, 1), found_inf)]


@op("_amp_update_scale", scalars=("scale_growth_factor", "scale_backoff_factor"))
def _update_scale(
    ctx: Context,
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: Value,
    scale_backoff_factor: Value,
    growth_interval: int,
) -> tuple[jax.Array, jax.Array]:
    """_amp_update_scale(Tensor self, Tensor growth_tracker, Tensor found_inf, float, float, int) -> (Tensor, Tensor)."""
    bad = lax.ne(found_inf, lax.full_like(found_inf, 0))
    streak = growth_tracker + 1
    due = lax.eq(streak, lax.full_like(streak, growth_interval))
    grown = self * _like(scale_growth_factor, self)
    grown = lax.select(lax.is_finite(grown), grown, self)
    scale = lax.select(bad, self * _like(scale_backoff_factor, self), lax.select(due, grown, self))
    return scale, lax.select(bad | due, lax.full_like(streak, 0), streak)

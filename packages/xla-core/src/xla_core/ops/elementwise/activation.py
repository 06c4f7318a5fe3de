"""Activation functions of torch.nn and their gradients, computed in float32 for half precision as CPU torch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Unpack

import jax
from jax import lax

from xla_core.ops.facts import HALF, Autocast, Facts
from xla_core.ops.promote import Number, broadcast, cast, compute_dtype, expand, full, is_complex
from xla_core.ops.table import Context, op, scalar, without_lowering

Real = Number | jax.Array
Compute = Callable[..., jax.Array]


def wide(*names: str, tensors: int = 1, scalars: tuple[str, ...] = (), **facts: Unpack[Facts]) -> Callable[[Compute], Compute]:
    """Register `f(*arrays, *parameters)`: its first `tensors` arguments come in the compute dtype, its result is cast back."""

    def add(compute: Compute) -> Compute:
        def lowering(ctx: Context, *args: Real, **parameters: Real) -> jax.Array:
            dtype = compute_dtype(ctx.dtype)
            arrays = broadcast(*(cast(x, dtype) for x in args[:tensors] if isinstance(x, jax.Array)))
            return cast(compute(*arrays, *args[tensors:], **parameters), ctx.dtype)

        lowering.__doc__ = compute.__doc__
        op(*names, scalars=scalars, **facts)(lowering)
        return compute

    return add


def _const(value: Real, like: jax.Array) -> jax.Array:
    """`value` in the shape and dtype of `like`."""
    return full(value, like.shape, like.dtype)


def _zero_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    return lax.select(condition, _const(0, x), x)


without_lowering("prelu", autocast=Autocast.LOWER)


@op("relu", autocast=Autocast.LOWER)
def relu_of(ctx: Context, x: jax.Array) -> jax.Array:
    """relu(Tensor self) -> Tensor"""
    return relu(x)


def relu(x: jax.Array) -> jax.Array:
    """The larger of `x` and 0, in its own dtype: nothing is rounded, and what is wider is not kept for a gradient."""
    return lax.max(x, _const(0, x))


@wide("threshold", scalars=("threshold", "value"), overlapping_writes=True)
def threshold(x: jax.Array, threshold: Real, value: Real) -> jax.Array:
    """threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor: NaN stays"""
    return lax.select(lax.le(x, _const(threshold, x)), _const(value, x), x)


@op("threshold_backward", scalars=("threshold",))
def threshold_backward(ctx: Context, grad: jax.Array, x: jax.Array, threshold: Real) -> jax.Array:
    """threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor"""
    if isinstance(threshold, jax.Array) or threshold != 0:  # 0, of ReLUs, is the same number in all dtypes
        x = cast(x, compute_dtype(x.dtype))
    hidden, grad = broadcast(lax.le(x, _const(threshold, x)), cast(grad, ctx.dtype))
    return _zero_where(hidden, grad)


@wide("hardtanh", scalars=("min_val", "max_val"))
def hardtanh(x: jax.Array, min_val: Real = -1, max_val: Real = 1) -> jax.Array:
    """hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"""
    return lax.min(lax.max(x, _const(min_val, x)), _const(max_val, x))


@wide("hardtanh_backward", tensors=2, scalars=("min_val", "max_val"))
def hardtanh_backward(grad: jax.Array, x: jax.Array, min_val: Real, max_val: Real) -> jax.Array:
    """hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor"""
    return _zero_where(lax.bitwise_or(lax.le(x, _const(min_val, x)), lax.ge(x, _const(max_val, x))), grad)


@wide("leaky_relu", scalars=("negative_slope",))
def leaky_relu(x: jax.Array, negative_slope: Real = 0.01) -> jax.Array:
    """leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""
    return leaky_relu_backward(x, x, negative_slope)


@wide("leaky_relu_backward", tensors=2, scalars=("negative_slope",))
def leaky_relu_backward(grad: jax.Array, x: jax.Array, negative_slope: Real, self_is_result: bool = False) -> jax.Array:
    """leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor"""
    return lax.select(lax.gt(x, _const(0, x)), grad, lax.mul(grad, _const(negative_slope, x)))


@wide("elu", scalars=("alpha", "scale", "input_scale"))
def elu(x: jax.Array, alpha: Real = 1, scale: Real = 1, input_scale: Real = 1) -> jax.Array:
    """elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"""
    wide_alpha, wide_scale, rate = (_const(value, x) for value in (alpha, scale, input_scale))
    negative = lax.mul(lax.expm1(lax.mul(x, rate)), lax.mul(wide_alpha, wide_scale))
    return lax.select(lax.lt(x, _const(0, x)), negative, lax.mul(x, wide_scale))


@wide("elu_backward", tensors=1, scalars=("alpha", "scale", "input_scale"))
def elu_backward(grad: jax.Array, alpha: Real, scale: Real, input_scale: Real, is_result: bool, self_or_result: jax.Array) -> jax.Array:
    """elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor"""
    grad, x = broadcast(grad, cast(self_or_result, grad.dtype))
    wide_alpha, wide_scale, rate = (_const(value, x) for value in (alpha, scale, input_scale))
    coefficient = lax.mul(wide_alpha, wide_scale)
    slope = lax.add(x, coefficient) if is_result else lax.mul(coefficient, lax.exp(lax.mul(x, rate)))
    return lax.select(lax.le(x, _const(0, x)), lax.mul(lax.mul(grad, rate), slope), lax.mul(grad, wide_scale))


@wide("celu", scalars=("alpha",))
def celu(x: jax.Array, alpha: Real = 1.0) -> jax.Array:
    """celu(Tensor self, Scalar alpha=1.) -> Tensor"""
    rate = scalar(alpha, x.dtype)
    return elu(x, alpha, 1, lax.div(lax.full_like(rate, 1), rate))


def _gelu_tanh_argument(x: jax.Array) -> jax.Array:
    cube = lax.mul(lax.mul(x, x), x)
    return lax.mul(_const(math.sqrt(2 / math.pi), x), lax.add(x, lax.mul(_const(0.044715, x), cube)))


@wide("gelu")
def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """gelu(Tensor self, *, str approximate="none") -> Tensor"""
    if approximate == "tanh":
        gate = lax.tanh(_gelu_tanh_argument(x))
    else:
        gate = lax.erf(lax.mul(x, _const(math.sqrt(0.5), x)))
    return lax.mul(lax.mul(_const(0.5, x), x), lax.add(_const(1, x), gate))


@wide("gelu_backward", tensors=2)
def gelu_backward(grad: jax.Array, x: jax.Array, *, approximate: str = "none") -> jax.Array:
    """gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor"""
    half, one = _const(0.5, x), _const(1, x)
    if approximate == "tanh":
        gate = lax.tanh(_gelu_tanh_argument(x))
        inner = lax.mul(_const(math.sqrt(2 / math.pi), x), lax.add(one, lax.mul(_const(3 * 0.044715, x), lax.mul(x, x))))
        slope = lax.mul(lax.mul(lax.mul(half, x), lax.sub(one, lax.mul(gate, gate))), inner)
    else:
        gate = lax.erf(lax.mul(x, _const(math.sqrt(0.5), x)))
        density = lax.mul(_const(1 / math.sqrt(2 * math.pi), x), lax.exp(lax.mul(_const(-0.5, x), lax.mul(x, x))))
        slope = lax.mul(x, density)
    return lax.mul(grad, lax.add(lax.mul(half, lax.add(one, gate)), slope))


def _sigmoid(x: jax.Array) -> jax.Array:
    if is_complex(x.dtype):
        one = _const(1, x)
        return lax.div(one, lax.add(one, lax.exp(lax.neg(x))))
    return lax.logistic(x)


@wide("silu")
def silu(x: jax.Array) -> jax.Array:
    """silu(Tensor self) -> Tensor"""
    return lax.mul(x, _sigmoid(x))


@wide("silu_backward", tensors=2)
def silu_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    """silu_backward(Tensor grad_output, Tensor self) -> Tensor"""
    gate, one = _sigmoid(x), _const(1, x)
    return lax.mul(lax.mul(grad, gate), lax.add(one, lax.mul(x, lax.sub(one, gate))))


@wide("mish")
def mish(x: jax.Array) -> jax.Array:
    """mish(Tensor self) -> Tensor"""
    return lax.mul(x, lax.tanh(lax.log1p(lax.exp(x))))


@wide("mish_backward", tensors=2)
def mish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    """mish_backward(Tensor grad_output, Tensor self) -> Tensor"""
    gate = lax.tanh(lax.log1p(lax.exp(x)))
    slope = lax.mul(lax.mul(x, lax.logistic(x)), lax.sub(_const(1, x), lax.mul(gate, gate)))
    return lax.mul(grad, lax.add(gate, slope))


@wide("hardsigmoid")
def hardsigmoid(x: jax.Array) -> jax.Array:
    """hardsigmoid(Tensor self) -> Tensor"""
    return lax.div(hardtanh(lax.add(x, _const(3, x)), 0, 6), _const(6, x))


@wide("hardsigmoid_backward", tensors=2)
def hardsigmoid_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    """hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor"""
    inside = lax.bitwise_and(lax.gt(x, _const(-3, x)), lax.lt(x, _const(3, x)))
    return lax.select(inside, lax.mul(grad, _const(1 / 6, x)), _const(0, x))


@wide("hardswish")
def hardswish(x: jax.Array) -> jax.Array:
    """hardswish(Tensor self) -> Tensor"""
    return lax.div(lax.mul(x, hardtanh(lax.add(x, _const(3, x)), 0, 6)), _const(6, x))


@wide("hardswish_backward", tensors=2)
def hardswish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    """hardswish_backward(Tensor grad_output, Tensor self) -> Tensor"""
    middle = lax.mul(grad, lax.add(lax.div(x, _const(3, x)), _const(0.5, x)))
    inner = lax.select(lax.lt(x, _const(3, x)), middle, grad)
    return _zero_where(lax.le(x, _const(-3, x)), inner)


@wide("softplus", scalars=("beta", "threshold"))
def softplus(x: jax.Array, beta: Real = 1, threshold: Real = 20) -> jax.Array:
    """softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"""
    rate = _const(beta, x)
    scaled = lax.mul(x, rate)
    return lax.select(lax.gt(scaled, _const(threshold, x)), x, lax.div(lax.log1p(lax.exp(scaled)), rate))


@wide("softplus_backward", tensors=2, scalars=("beta", "threshold"))
def softplus_backward(grad: jax.Array, x: jax.Array, beta: Real, threshold: Real) -> jax.Array:
    """softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor"""
    scaled = lax.mul(x, _const(beta, x))
    return lax.select(lax.gt(scaled, _const(threshold, x)), grad, lax.mul(grad, lax.logistic(scaled)))


def _within(x: jax.Array, bound: Real) -> jax.Array:
    limit = _const(bound, x)
    return lax.bitwise_and(lax.ge(x, lax.neg(limit)), lax.le(x, limit))


@wide("hardshrink", scalars=("lambd",))
def hardshrink(x: jax.Array, lambd: Real = 0.5) -> jax.Array:
    """hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""
    return _zero_where(_within(x, lambd), x)


@wide("hardshrink_backward", "softshrink_backward", tensors=2, scalars=("lambd",))
def shrink_backward(grad: jax.Array, x: jax.Array, lambd: Real) -> jax.Array:
    """hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor, and softshrink's"""
    return _zero_where(_within(x, lambd), grad)


@wide("softshrink", scalars=("lambd",))
def softshrink(x: jax.Array, lambd: Real = 0.5) -> jax.Array:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor: NaN stays"""
    limit = _const(lambd, x)
    shifted = lax.select(lax.gt(x, limit), lax.sub(x, limit), lax.add(x, limit))
    return lax.select(_within(x, lambd), lax.mul(x, _const(0, x)), shifted)


@op("log_sigmoid_forward")
def log_sigmoid_forward(ctx: Context, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer): the buffer is empty off the CPU, and never read here"""
    wide_x = cast(x, compute_dtype(ctx.dtype))
    decay = lax.exp(lax.neg(lax.abs(wide_x)))
    output = cast(lax.sub(lax.min(wide_x, _const(0, wide_x)), lax.log1p(decay)), ctx.dtype)
    inferred = ctx.out[1]
    if inferred is not None and inferred.shape != x.shape:
        return output, lax.full(inferred.shape, 0, inferred.dtype)
    return output, cast(decay, ctx.dtype)


@wide("log_sigmoid_backward", tensors=2)
def log_sigmoid_backward(grad: jax.Array, x: jax.Array, buffer: jax.Array) -> jax.Array:
    """log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor"""
    return lax.mul(grad, lax.logistic(lax.neg(x)))


def halves(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
    """The two halves of `x` along `dim`."""
    dim %= x.ndim
    middle = x.shape[dim] // 2
    return lax.slice_in_dim(x, 0, middle, axis=dim), lax.slice_in_dim(x, middle, None, axis=dim)


@wide("glu")
def glu(x: jax.Array, dim: int = -1) -> jax.Array:
    """glu(Tensor self, int dim=-1) -> Tensor"""
    value, gate = halves(x, dim)
    return lax.mul(value, lax.logistic(gate))


@wide("glu_backward", tensors=1)
def glu_backward(grad: jax.Array, x: jax.Array, dim: int) -> jax.Array:
    """glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor"""
    value, gate = halves(cast(x, grad.dtype), dim)
    opened = lax.logistic(gate)
    to_value = lax.mul(grad, opened)
    to_gate = lax.mul(lax.mul(to_value, lax.sub(_const(1, opened), opened)), value)
    return lax.concatenate([to_value, to_gate], dim % x.ndim)


@wide("glu_jvp", tensors=1)
def glu_jvp(result: jax.Array, x: jax.Array, dx: jax.Array, dim: int) -> jax.Array:
    """glu_jvp(Tensor glu, Tensor x, Tensor dx, int dim) -> Tensor"""
    d_value, d_gate = halves(cast(dx, result.dtype), dim)
    opened = lax.logistic(halves(cast(x, result.dtype), dim)[1])
    return lax.add(lax.mul(d_value, opened), lax.mul(result, lax.sub(d_gate, lax.mul(opened, d_gate))))


@wide("_prelu_kernel", tensors=2)
def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    """_prelu_kernel(Tensor self, Tensor weight) -> Tensor"""
    return lax.select(lax.gt(x, _const(0, x)), x, lax.mul(weight, x))


@op("_prelu_kernel_backward")
def prelu_backward(ctx: Context, grad: jax.Array, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor), both of self's shape"""
    grad, x, weight = broadcast(*(cast(v, compute_dtype(ctx.dtype)) for v in (grad, x, weight)))
    positive = lax.gt(x, _const(0, x))
    to_x = lax.select(positive, grad, lax.mul(weight, grad))
    to_weight = _zero_where(positive, lax.mul(x, grad))
    return tuple(cast(v, ctx.dtype) for v in (to_x, to_weight))  # type: ignore[return-value]


@wide("rrelu_with_noise_backward", tensors=3, scalars=("lower", "upper"), beyond_cpu=HALF)
def rrelu_backward(
    grad: jax.Array, x: jax.Array, noise: jax.Array, lower: Real, upper: Real, training: bool, self_is_result: bool
) -> jax.Array:
    """rrelu_with_noise_backward(grad_output, self, noise, Scalar lower, Scalar upper, bool training, bool self_is_result) -> Tensor"""
    if training and not (isinstance(lower, float | int) and isinstance(upper, float | int) and upper - lower <= 1e-6):
        return lax.mul(noise, grad)
    slope = lax.div(lax.add(scalar(lower, x.dtype), scalar(upper, x.dtype)), scalar(2, x.dtype))
    return leaky_relu_backward(grad, x, expand(slope, ()))

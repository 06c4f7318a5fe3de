"""Functions of two tensors, element by element, besides arithmetic, comparison and bits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np
from jax import lax

from xla_core.ops.elementwise.unary import copysign, exp2, isinf, isnan
from xla_core.ops.kernel import Function, Kernel, computing, exact, register_kernel
from xla_core.ops.promote import Operand, as_array, broadcast, cast, compute_dtype, is_complex, is_integral, operands_as, real_dtype
from xla_core.ops.table import Context, op


def hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    """sqrt(x * x + y * y) without overflow on the way; infinite when one side is, even beside NaN."""
    x, y = lax.abs(x), lax.abs(y)
    large, small = lax.max(x, y), lax.min(x, y)
    zero = lax.full_like(x, 0)
    ratio = lax.select(lax.eq(large, zero), zero, lax.div(small, large))
    length = lax.mul(large, lax.sqrt(1 + ratio * ratio))
    return lax.select(isinf(x) | isinf(y), lax.full_like(x, math.inf), length)


def xlogy(x: jax.Array, y: jax.Array) -> jax.Array:
    """x * log(y), 0 where x is 0 and y is a number."""
    return _zero_beats(x, y, lax.mul(x, lax.log(y)))


def xlog1py(x: jax.Array, y: jax.Array) -> jax.Array:
    """x * log(1 + y), 0 where x is 0 and y is a number."""
    return _zero_beats(x, y, lax.mul(x, lax.log1p(y)))


def _zero_beats(x: jax.Array, y: jax.Array, product: jax.Array) -> jax.Array:
    zero = lax.full_like(x, 0)
    return lax.select(lax.eq(x, zero) & lax.eq(y, y), zero, product)


def logaddexp(x: jax.Array, y: jax.Array) -> jax.Array:
    """log(exp(x) + exp(y))."""
    return _logaddexp(x, y, 1.0)


def logaddexp2(x: jax.Array, y: jax.Array) -> jax.Array:
    """log2(2 ** x + 2 ** y)."""
    return _logaddexp(x, y, math.log(2))


def _logaddexp(x: jax.Array, y: jax.Array, log_base: float) -> jax.Array:
    """log of the sum of powers of a base; complex operands are ordered by their real parts."""
    if is_complex(x.dtype):
        real_x, real_y = lax.real(x), lax.real(y)
        swap, same_infinity = lax.lt(real_x, real_y), isinf(real_x) & lax.eq(real_x, real_y)
        high, low = lax.select(swap, y, x), lax.select(swap, x, y)
    else:
        high, low = lax.max(x, y), lax.min(x, y)
        same_infinity = isinf(x) & lax.eq(x, y)
    rest = lax.log1p(lax.exp((low - high) * log_base)) / log_base
    return lax.select(same_infinity, x, high + rest)


def fmax(x: jax.Array, y: jax.Array) -> jax.Array:
    """The larger operand; a number beats NaN."""
    return lax.select(isnan(x), y, lax.select(isnan(y), x, lax.max(x, y)))


def fmin(x: jax.Array, y: jax.Array) -> jax.Array:
    """The smaller operand; a number beats NaN."""
    return lax.select(isnan(x), y, lax.select(isnan(y), x, lax.min(x, y)))


def heaviside(x: jax.Array, at_zero: jax.Array) -> jax.Array:
    """0 for negative x and NaN, 1 for positive x, `at_zero` for 0."""
    zero = lax.full_like(x, 0)
    return lax.select(lax.eq(x, zero), at_zero, lax.convert_element_type(lax.gt(x, zero), x.dtype))


def _magnitude(x: jax.Array) -> jax.Array:
    """|x| as an unsigned integer, so that the smallest integer has one too."""
    return lax.convert_element_type(x if x.dtype.kind == "u" else lax.abs(x), np.dtype(f"uint{x.dtype.itemsize * 8}"))


def gcd(x: jax.Array, y: jax.Array) -> jax.Array:
    """The greatest common divisor, by Euclid."""

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.numpy.any(lax.ne(state[1], lax.full_like(state[1], 0)))

    def divide(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        high, low = state
        done = lax.eq(low, lax.full_like(low, 0))
        rest = lax.rem(high, lax.select(done, lax.full_like(low, 1), low))
        return lax.select(done, high, low), lax.select(done, low, rest)

    found, _ = lax.while_loop(unfinished, divide, (_magnitude(x), _magnitude(y)))
    return lax.convert_element_type(found, x.dtype)


def lcm(x: jax.Array, y: jax.Array) -> jax.Array:
    """The least common multiple, 0 where an operand is 0."""
    first, second = _magnitude(x), _magnitude(y)
    divisor = lax.max(_magnitude(gcd(x, y)), lax.full_like(first, 1))
    return lax.convert_element_type(lax.mul(lax.div(first, divisor), second), x.dtype)


def igamma(a: jax.Array, x: jax.Array) -> jax.Array:
    """The regularized lower incomplete gamma function, with its limits at a = 0 and a = inf."""
    return _incomplete_gamma(a, x, lax.igamma(a, x), at_zero=1.0)


def igammac(a: jax.Array, x: jax.Array) -> jax.Array:
    """The regularized upper incomplete gamma function, with its limits at a = 0 and a = inf."""
    return _incomplete_gamma(a, x, lax.igammac(a, x), at_zero=0.0)


def _incomplete_gamma(a: jax.Array, x: jax.Array, value: jax.Array, at_zero: float) -> jax.Array:
    zero, nan = lax.full_like(a, 0), lax.full_like(a, math.nan)
    value = lax.select(isinf(a) & (x >= 0), lax.select(isinf(x), nan, lax.full_like(a, 1 - at_zero)), value)
    value = lax.select(lax.eq(a, zero) & (x > 0), lax.full_like(a, at_zero), value)
    return lax.select((a < 0) | (x < 0) | (lax.eq(a, zero) & lax.eq(x, zero)), nan, value)


_ZETA_STEPS = 1_000_000


def _from_positive(x: jax.Array, q: jax.Array) -> jax.Array:
    """zeta(x, q) for negative q between the poles: the terms up to the first positive one, and XLA's zeta, made for q > 0, from there."""
    start = lax.max(q, lax.full_like(q, -_ZETA_STEPS))

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.numpy.any(state[0] < 0)

    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        position, total = state
        negative = position < 0
        term = lax.select(negative, lax.pow(position, -x), lax.full_like(x, 0))
        return lax.select(negative, position + 1, position), total + term

    position, total = lax.while_loop(unfinished, add_term, (start, lax.full_like(q, 0)))
    return total + lax.zeta(x, position)


def zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    """The Hurwitz zeta function; infinite at the poles q = 0, -1, -2 …"""
    infinity, one = lax.full_like(x, math.inf), lax.full_like(x, 1)
    pole = lax.le(q, lax.full_like(q, 0)) & lax.eq(q, lax.floor(q))
    value = lax.select(pole, infinity, _from_positive(x, lax.select(pole, one, q)))
    value = lax.select(lax.lt(x, one), lax.full_like(x, math.nan), value)
    return lax.select(lax.eq(x, one), infinity, value)


COMPUTED: Mapping[str, Function] = {
    "atan2": lax.atan2,
    "hypot": hypot,
    "igamma": igamma,
    "igammac": igammac,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "special_xlog1py": xlog1py,
    "special_xlog1py.other_scalar": xlog1py,
    "special_xlog1py.self_scalar": xlog1py,
    "special_zeta": zeta,
    "special_zeta.other_scalar": zeta,
    "special_zeta.self_scalar": zeta,
    "xlogy.Scalar_Other": xlogy,
    "xlogy.Scalar_Self": xlogy,
    "xlogy.Tensor": xlogy,
}
SELECTED: Mapping[str, Function] = {
    "copysign.Scalar": copysign,
    "copysign.Tensor": copysign,
    "fmax": fmax,
    "fmin": fmin,
    "gcd": gcd,
    "heaviside": heaviside,
    "lcm": lcm,
    "maximum": lax.max,
    "minimum": lax.min,
    "nextafter": lax.nextafter,
}
KERNELS: Mapping[str, Kernel] = {
    **{name: computing(function) for name, function in COMPUTED.items()},
    **{name: exact(function) for name, function in SELECTED.items()},
}

for _name, _kernel in KERNELS.items():
    register_kernel(_kernel, _name, scalars=("self", "other") if "." in _name else ())


@op("ldexp.Tensor")
def ldexp(ctx: Context, x: jax.Array, exponent: jax.Array) -> jax.Array:
    """ldexp.Tensor(Tensor self, Tensor other) -> Tensor; the power of two is rounded to float32 first when `other` is whole."""
    power_dtype = np.dtype(np.float32) if is_integral(exponent.dtype) else compute_dtype(exponent.dtype)
    power = exp2(cast(exponent, power_dtype))
    x, power = broadcast(cast(x, compute_dtype(ctx.dtype)), cast(power, compute_dtype(ctx.dtype)))
    return cast(lax.mul(x, power), ctx.dtype)


@op("complex")
def complex_of(ctx: Context, real: jax.Array, imag: jax.Array) -> jax.Array:
    """complex(Tensor real, Tensor imag) -> Tensor."""
    return lax.complex(*operands_as(real_dtype(ctx.dtype), real, imag))


@op("polar")
def polar(ctx: Context, absolute: jax.Array, angle: jax.Array) -> jax.Array:
    """polar(Tensor abs, Tensor angle) -> Tensor."""
    absolute, angle = operands_as(real_dtype(ctx.dtype), absolute, angle)
    return lax.complex(lax.mul(absolute, lax.cos(angle)), lax.mul(absolute, lax.sin(angle)))


def sigmoid_backward(dtype: np.dtype, grad: Operand, y: jax.Array) -> jax.Array:
    """grad * conj((1 - y) * y)."""
    grad, y = broadcast(as_array(grad, compute_dtype(dtype)), cast(y, compute_dtype(dtype)))
    slope = (1 - y) * y
    return cast(lax.mul(grad, lax.conj(slope) if is_complex(dtype) else slope), dtype)


def tanh_backward(dtype: np.dtype, grad: Operand, y: jax.Array) -> jax.Array:
    """grad * conj(1 - y * y)."""
    grad, y = broadcast(as_array(grad, compute_dtype(dtype)), cast(y, compute_dtype(dtype)))
    slope = 1 - y * y
    return cast(lax.mul(grad, lax.conj(slope) if is_complex(dtype) else slope), dtype)


register_kernel(sigmoid_backward, "sigmoid_backward")
register_kernel(tanh_backward, "tanh_backward")

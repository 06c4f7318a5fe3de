"""Sums, products, quotients, remainders and powers of two tensors, or of a tensor and a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.checks import Fault
from xla_core.ops.elementwise.unary import copysign, reciprocal, rsqrt, trunc
from xla_core.ops.kernel import Kernel, computing, lowered, register_kernel
from xla_core.ops.promote import Number, Operand, as_array, cast, compute_dtype, is_complex, is_integral, operands_as, widened_operands
from xla_core.ops.table import Context, op


def _scaled(y: jax.Array, alpha: Number | jax.Array) -> jax.Array:
    if isinstance(alpha, Number) and alpha == 1:
        return y
    return lax.mul(y, lax.broadcast(as_array(alpha, y.dtype), y.shape))


def add(dtype: np.dtype, x: Operand, y: Operand, alpha: Number | jax.Array = 1) -> jax.Array:
    """x + alpha * y; bool adds as `or`."""
    x, y = widened_operands(dtype, x, y)
    if dtype.kind == "b":
        return lax.bitwise_or(x, lax.bitwise_and(y, lax.broadcast(as_array(alpha, dtype), y.shape)))
    return cast(lax.add(x, _scaled(y, alpha)), dtype)


def subtract(dtype: np.dtype, x: Operand, y: Operand, alpha: Number | jax.Array = 1) -> jax.Array:
    """x - alpha * y."""
    x, y = widened_operands(dtype, x, y)
    return cast(lax.sub(x, _scaled(y, alpha)), dtype)


def subtract_reversed(dtype: np.dtype, x: Operand, y: Operand, alpha: Number | jax.Array = 1) -> jax.Array:
    """y - alpha * x."""
    return subtract(dtype, y, x, alpha)


def multiply(dtype: np.dtype, x: Operand, y: Operand) -> jax.Array:
    """x * y; bool multiplies as `and`. Half precision takes a number or 0-d operand unrounded, as torch does."""
    x, y = operands_as(compute_dtype(dtype), x, y)
    if dtype.kind == "b":
        return lax.bitwise_and(x, y)
    return cast(_complex_product(x, y) if is_complex(x.dtype) else lax.mul(x, y), dtype)


def _complex_product(x: jax.Array, y: jax.Array) -> jax.Array:
    """x * y with each product rounded, as torch's kernels do; `lax.mul` leaves one of each two unrounded on the CPU."""
    real, imag, other_real, other_imag = lax.real(x), lax.imag(x), lax.real(y), lax.imag(y)
    return lax.complex(
        lax.sub(_rounded(lax.mul(real, other_real)), _rounded(lax.mul(imag, other_imag))),
        lax.add(_rounded(lax.mul(real, other_imag)), _rounded(lax.mul(imag, other_real))),
    )


def _rounded(product: jax.Array) -> jax.Array:
    """A product that is not contracted with an addition behind it: LLVM fuses the two into one instruction, but not through a select."""
    return lax.select(lax.ne(product, product), lax.full_like(product, np.nan), product)


def _integer_floor(x: jax.Array, y: jax.Array) -> jax.Array:
    quotient = lax.div(x, y)
    if x.dtype.kind == "u":
        return quotient
    zero = lax.full_like(x, 0)
    inexact = lax.ne(lax.rem(x, y), zero) & lax.ne(lax.lt(x, zero), lax.lt(y, zero))
    return lax.sub(quotient, lax.convert_element_type(inexact, x.dtype))


def _float_floor(x: jax.Array, y: jax.Array) -> jax.Array:
    """floor(x / y) that agrees with `remainder`: taken from the exact remainder, not from the rounded quotient."""
    zero, one = lax.full_like(x, 0), lax.full_like(x, 1)
    true_quotient = lax.div(x, y)
    rest = lax.rem(x, y)
    quotient = lax.div(lax.sub(x, rest), y)
    uneven = lax.ne(rest, zero) & lax.ne(lax.lt(y, zero), lax.lt(rest, zero))
    quotient = lax.select(uneven, lax.sub(quotient, one), quotient)
    whole = lax.floor(quotient)
    whole = lax.select(lax.sub(quotient, whole) > 0.5, lax.add(whole, one), whole)
    whole = lax.select(lax.eq(quotient, zero), copysign(zero, true_quotient), whole)
    return lax.select(lax.eq(y, zero), true_quotient, whole)


def divide(dtype: np.dtype, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> jax.Array:
    """x / y, truncated or floored when asked."""
    x, y = operands_as(compute_dtype(dtype), x, y)
    if rounding_mode == "floor":
        return cast(_integer_floor(x, y) if is_integral(x.dtype) else _float_floor(x, y), dtype)
    quotient = cast(lax.div(x, y), dtype)  # torch rounds half precision before it truncates
    return trunc(quotient) if rounding_mode == "trunc" and not is_integral(dtype) else quotient


def floor_divide(dtype: np.dtype, x: Operand, y: Operand) -> jax.Array:
    """floor(x / y)."""
    return divide(dtype, x, y, rounding_mode="floor")


def _remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    """x modulo y, with the sign of y."""
    rest, zero = lax.rem(x, y), lax.full_like(x, 0)
    if x.dtype.kind == "u":
        return rest
    opposite = lax.ne(rest, zero) & lax.ne(lax.lt(rest, zero), lax.lt(y, zero))
    return lax.select(opposite, lax.add(rest, y), rest)


def _whole_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """base ** exponent of integers, modulo the word size, by repeated squaring; negative exponents truncate to -1, 0 or 1."""
    one, zero = lax.full_like(base, 1), lax.full_like(base, 0)
    odd = lax.ne(lax.bitwise_and(exponent, one), zero)

    def left(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jax.numpy.any(lax.gt(state[2], zero))

    def square(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        result, factor, rest = state
        used = lax.ne(lax.bitwise_and(rest, one), zero)
        return lax.select(used, lax.mul(result, factor), result), lax.mul(factor, factor), lax.shift_right_logical(rest, one)

    positive, _, _ = lax.while_loop(left, square, (one, base, lax.max(exponent, zero)))
    if base.dtype.kind == "u":
        return positive
    minus = lax.neg(one)
    inverse = lax.select(lax.eq(base, minus), lax.select(odd, minus, one), lax.select(lax.eq(base, one), one, zero))
    return lax.select(lax.lt(exponent, zero), inverse, positive)


_EXPONENTS: Mapping[Number, Any] = {
    0: lambda x: lax.full_like(x, 1),
    1: lambda x: x,
    2: lambda x: lax.mul(x, x),
    3: lambda x: lax.mul(lax.mul(x, x), x),
    0.5: lax.sqrt,
    -0.5: rsqrt,
    -1: reciprocal,
    -2: lambda x: reciprocal(lax.mul(x, x)),
}
"""Exponents for which torch does not call `pow`."""


def power(dtype: np.dtype, x: Operand, y: Operand) -> jax.Array:
    """x ** y."""
    if dtype.kind == "b":
        x, y = operands_as(dtype, x, y)
        return lax.bitwise_or(x, lax.bitwise_not(y))
    if isinstance(y, Number) and not isinstance(x, Number):
        return _power_of_number(dtype, x, y)
    base, exponent = widened_operands(dtype, x, y)
    if is_integral(dtype):
        return _whole_power(base, exponent)
    return cast(lax.pow(base, exponent), dtype)


def _power_of_number(dtype: np.dtype, x: Operand, exponent: Number) -> jax.Array:
    base = cast(as_array(x, dtype), compute_dtype(dtype))
    if is_integral(dtype):
        return lax.integer_pow(base, int(exponent.real))
    special = None if is_complex(dtype) and exponent not in (0, 1, 2, 3) else _EXPONENTS.get(exponent)
    if special:
        return cast(special(base), dtype)
    return cast(lax.pow(base, lax.broadcast(cast(as_array(exponent, dtype), base.dtype), base.shape)), dtype)


register_kernel(add, "add.Tensor", scalars=("other", "alpha"), adds_gradients=True)
register_kernel(add, "add.Scalar", scalars=("other", "alpha"))
register_kernel(subtract, "sub.Tensor", "sub.Scalar", scalars=("other", "alpha"))
register_kernel(subtract_reversed, "rsub.Tensor", "rsub.Scalar", scalars=("other", "alpha"))
register_kernel(multiply, "mul.Tensor", "mul.Scalar", scalars=("other",))


def _checking_divisor(kernel: Kernel, *names: str, scalars: tuple[str, ...] = ("other",)) -> None:
    """Register `kernel` for aten overloads `names`; with integers, a divisor of zero raises."""
    lower = lowered(kernel)

    def checked(ctx: Context, x: Operand, y: Operand, **kwargs: Any) -> jax.Array:
        if is_integral(ctx.dtype) and not isinstance(y, Number):
            divisor = as_array(y, ctx.dtype)
            ctx.check(Fault.DIVISION, lax.eq(divisor, lax.full_like(divisor, 0)))
        result: jax.Array = lower(ctx, x, y, **kwargs)
        return result

    checked.__doc__ = lower.__doc__
    op(*names, scalars=scalars)(checked)


register_kernel(divide, "div.Tensor", "div.Scalar", scalars=("other",))
_checking_divisor(divide, "div.Tensor_mode", "div.Scalar_mode")
_checking_divisor(floor_divide, "floor_divide", "floor_divide.Scalar")
REMAINDER: Kernel = computing(_remainder)
_checking_divisor(REMAINDER, "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", scalars=("self", "other"))
_checking_divisor(computing(lax.rem), "fmod.Tensor", "fmod.Scalar")
register_kernel(power, "pow.Tensor_Tensor", "pow.Scalar", scalars=("self",))
register_kernel(power, "pow.Tensor_Scalar", scalars=("exponent",))

"""Functions of one tensor, element by element; `KERNELS` holds them by aten name for the `_foreach_*` family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.kernel import Function, Kernel, computing, copied, exact, register_kernel, scipy_special
from xla_core.ops.promote import Number, as_array, broadcast, cast, compute_dtype, finfo, is_complex, is_float, is_integral, real_dtype
from xla_core.ops.table import Context, op


def reciprocal(x: jax.Array) -> jax.Array:
    """1 / x."""
    return lax.div(lax.full_like(x, 1), x)


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x))."""
    return reciprocal(1 + lax.exp(-x)) if is_complex(x.dtype) else lax.logistic(x)


def rsqrt(x: jax.Array) -> jax.Array:
    """1 / sqrt(x)."""
    return reciprocal(lax.sqrt(x)) if is_complex(x.dtype) else lax.rsqrt(x)


def exp2(x: jax.Array) -> jax.Array:
    """2 ** x."""
    return lax.exp(x * math.log(2)) if is_complex(x.dtype) else lax.exp2(x)


def _log_base(base: float) -> Function:
    def log(x: jax.Array) -> jax.Array:
        return lax.div(lax.log(x), lax.full_like(x, math.log(base)))

    return log


def sinc(x: jax.Array) -> jax.Array:
    """sin(pi x) / (pi x), 1 at 0."""
    scaled = x * math.pi
    return lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 1), lax.div(lax.sin(scaled), scaled))


def frac(x: jax.Array) -> jax.Array:
    """The fractional part, with the sign of x."""
    return lax.sub(x, trunc(x))


def trunc(x: jax.Array) -> jax.Array:
    """x rounded towards zero."""
    return lax.select(lax.lt(x, lax.full_like(x, 0)), lax.ceil(x), lax.floor(x))


def digamma(x: jax.Array) -> jax.Array:
    """digamma; at a signed zero the infinity of the opposite sign."""
    at_zero = copysign(lax.full_like(x, math.inf), lax.neg(x))
    return lax.select(lax.eq(x, lax.full_like(x, 0)), at_zero, lax.digamma(x))


def copysign(magnitude: jax.Array, sign: jax.Array) -> jax.Array:
    """|magnitude| with the sign bit of `sign`."""
    positive = lax.abs(magnitude)
    return lax.select(signbit(sign), lax.neg(positive), positive)


def signbit(x: jax.Array) -> jax.Array:
    """The sign bit, also of -0.0 and NaN; unsigned values have none."""
    if is_float(x.dtype):
        x = lax.bitcast_convert_type(x, np.dtype(f"int{x.dtype.itemsize * 8}"))
    return lax.full_like(x, False, np.dtype(bool)) if x.dtype.kind in "ub" else lax.lt(x, lax.full_like(x, 0))


def logit(x: jax.Array) -> jax.Array:
    """log(x / (1 - x))."""
    return lax.log(lax.div(x, 1 - x))


def _complex_in_double(function: Function) -> Function:
    """`function`, for complex64 computed in complex128: XLA's formulas lose digits near zeros and poles. TPUs have no complex128."""

    def accurate(x: jax.Array) -> jax.Array:
        if x.dtype != np.complex64:
            return function(x)
        rounded: jax.Array = lax.platform_dependent(x, tpu=function, default=lambda x: cast(function(cast(x, np.dtype("c16"))), x.dtype))
        return rounded

    return accurate


FLOATING: Mapping[str, Function] = {
    "acos": lax.acos,
    "acosh": lax.acosh,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "cos": lax.cos,
    "cosh": _complex_in_double(lax.cosh),
    "deg2rad": lambda x: x * (math.pi / 180),
    "digamma": digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": lax.exp,
    "exp2": exp2,
    "expm1": _complex_in_double(lax.expm1),
    "i0": scipy_special("i0"),
    "lgamma": lax.lgamma,
    "log": lax.log,
    "log10": _log_base(10),
    "log1p": lax.log1p,
    "log2": _log_base(2),
    "rad2deg": lambda x: x * (180 / math.pi),
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "sin": lax.sin,
    "sinc": sinc,
    "sinh": _complex_in_double(lax.sinh),
    "sqrt": lax.sqrt,
    "tan": _complex_in_double(lax.tan),
    "tanh": _complex_in_double(lax.tanh),
}
"""Functions whose result is floating-point (or complex) whatever the input is."""


def _unless_integral(function: Function) -> Function:
    """`function` for floating-point operands; integers are already whole."""
    return lambda x: x if is_integral(x.dtype) else function(x)


def negative(x: jax.Array) -> jax.Array:
    """-x; integers wrap."""
    return lax.neg(x)


def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; x / |x| for complex."""
    if x.dtype.kind == "b":
        return x
    if is_complex(x.dtype):
        size = cast(lax.abs(x), x.dtype)
        return lax.select(lax.eq(size, lax.full_like(size, 0)), size, lax.div(x, size))
    zero = lax.full_like(x, 0)
    return lax.sub(lax.convert_element_type(lax.gt(x, zero), x.dtype), lax.convert_element_type(lax.lt(x, zero), x.dtype))


PRESERVING: Mapping[str, Function] = {
    "ceil": _unless_integral(lax.ceil),
    "floor": _unless_integral(lax.floor),
    "frac": frac,
    "neg": negative,
    "round": _unless_integral(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    "sgn": sign,
    "sign": sign,
    "trunc": _unless_integral(trunc),
    "_conj_physical": lambda x: lax.conj(x) if is_complex(x.dtype) else x,
}
"""Functions that return their input's dtype."""


def absolute(dtype: np.dtype, x: jax.Array) -> jax.Array:
    """abs(Tensor self) -> Tensor; the modulus of complex numbers."""
    return cast(x if x.dtype.kind in "ub" else lax.abs(x), dtype)


def angle(dtype: np.dtype, x: jax.Array) -> jax.Array:
    """angle(Tensor self) -> Tensor; 0 or pi for real numbers, NaN for NaN."""
    if is_complex(x.dtype):
        return cast(lax.atan2(lax.imag(x), lax.real(x)), dtype)
    x = cast(x, compute_dtype(dtype))
    half_turn = lax.select(lax.lt(x, lax.full_like(x, 0)), lax.full_like(x, math.pi), lax.full_like(x, 0))
    return cast(lax.select(lax.ne(x, x), x, half_turn), dtype)


KERNELS: Mapping[str, Kernel] = {
    **{name: computing(function) for name, function in FLOATING.items()},
    **{name: exact(function) for name, function in PRESERVING.items()},
    "abs": absolute,
    "angle": angle,
    "clone": copied,
}

for _name, _kernel in KERNELS.items():
    if _name not in ("abs", "clone"):
        register_kernel(_kernel, _name)
register_kernel(absolute, "abs", beyond_cpu=frozenset({torch.bool}))


def isnan(x: jax.Array) -> jax.Array:
    """x is not a number, in either part."""
    return lax.full_like(x, False, np.dtype(bool)) if is_integral(x.dtype) else lax.ne(x, x)


def _is_infinity(x: jax.Array, sign: int) -> jax.Array:
    return lax.full_like(x, False, np.dtype(bool)) if is_integral(x.dtype) else lax.eq(x, lax.full_like(x, sign * math.inf))


def isinf(x: jax.Array) -> jax.Array:
    """x is infinite, in either part."""
    if is_complex(x.dtype):
        return isinf(lax.real(x)) | isinf(lax.imag(x))
    return _is_infinity(x, 1) | _is_infinity(x, -1)


def logical_not(x: jax.Array) -> jax.Array:
    """x equals zero."""
    return lax.eq(x, lax.full_like(x, 0))


PREDICATES: Mapping[str, Function] = {
    "isinf": isinf,
    "isnan": isnan,
    "isneginf": lambda x: _is_infinity(x, -1),
    "isposinf": lambda x: _is_infinity(x, 1),
    "logical_not": logical_not,
    "signbit": signbit,
}
"""Questions about each element; `logical_not` may be asked for another dtype than bool through `out=`."""


def _predicate(function: Function) -> Kernel:
    def kernel(dtype: np.dtype, x: jax.Array) -> jax.Array:
        return cast(function(x), dtype)

    kernel.__doc__ = function.__doc__
    return kernel


for _name, _function in PREDICATES.items():
    register_kernel(_predicate(_function), _name)


@op("round.decimals")
def round_decimals(ctx: Context, x: jax.Array, *, decimals: int) -> jax.Array:
    """round.decimals(Tensor self, *, int decimals) -> Tensor."""
    if is_integral(x.dtype):
        return x
    x = cast(x, compute_dtype(ctx.dtype))
    shift = as_array(float(10.0 ** abs(decimals)), x.dtype)
    scaled = x / shift if decimals < 0 else x * shift
    whole = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
    return cast(whole * shift if decimals < 0 else whole / shift, ctx.dtype)


@op("logit", scalars=("eps",))
def logit_clamped(ctx: Context, x: jax.Array, eps: Number | jax.Array | None = None) -> jax.Array:
    """logit(Tensor self, float? eps=None) -> Tensor."""
    x = cast(x, compute_dtype(ctx.dtype))
    if eps is None:
        return cast(logit(x), ctx.dtype)
    low = as_array(eps, x.dtype)
    return cast(logit(lax.clamp(low, x, 1 - low)), ctx.dtype)


@op("logit_backward", scalars=("eps",))
def logit_backward(ctx: Context, grad: jax.Array, x: jax.Array, eps: Number | jax.Array | None = None) -> jax.Array:
    """logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor; outside [eps, 1 - eps] 0, or NaN without eps."""
    grad, x = broadcast(*(cast(a, compute_dtype(ctx.dtype)) for a in (grad, x)))
    low = as_array(0.0 if eps is None else eps, x.dtype)
    outside = (x < low) | (x > 1 - low)
    return cast(lax.select(outside, lax.full_like(x, math.nan if eps is None else 0), lax.div(grad, x * (1 - x))), ctx.dtype)


def _replace_non_finite(x: jax.Array, replacements: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    nan, high, low = (lax.broadcast(value, x.shape) for value in replacements)
    x = lax.select(lax.ne(x, x), nan, x)
    x = lax.select(_is_infinity(x, 1), high, x)
    return lax.select(_is_infinity(x, -1), low, x)


@op("nan_to_num", scalars=("nan", "posinf", "neginf"))
def nan_to_num(ctx: Context, x: jax.Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> jax.Array:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor."""
    if is_integral(x.dtype):
        return x
    part = real_dtype(ctx.dtype)
    limits = finfo(part)
    defaults = zip((nan, posinf, neginf), (0.0, limits.max, limits.min), strict=True)
    nan, posinf, neginf = (as_array(default if given is None else given, part) for given, default in defaults)
    if is_complex(x.dtype):
        return lax.complex(*(_replace_non_finite(side(x), (nan, posinf, neginf)) for side in (lax.real, lax.imag)))
    return _replace_non_finite(x, (nan, posinf, neginf))


@op("frexp.Tensor")
def frexp(ctx: Context, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)."""
    mantissa, exponent = jax.numpy.frexp(cast(x, compute_dtype(ctx.dtype)))
    return cast(mantissa, ctx.dtype), cast(exponent, np.dtype(np.int32))

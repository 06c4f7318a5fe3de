"""Special functions of `torch.special` that jax has, and those that follow from them in a few lines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np
from jax import lax

from xla_core.ops.elementwise.binary import zeta
from xla_core.ops.elementwise.unary import digamma, isinf
from xla_core.ops.kernel import Function, computing, register_kernel, scipy_special
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op


def erfcx(x: jax.Array) -> jax.Array:
    """exp(x * x) * erfc(x), by a continued fraction where the factors leave the range of the dtype."""
    far = 5.0 if x.dtype == np.float64 else 2.0
    size = lax.abs(x)
    near = lax.exp(size * size) * lax.erfc(size)
    fraction = lax.max(size, lax.full_like(size, far))
    distance = fraction
    for level in range(40, 0, -1):
        fraction = distance + (0.5 * level) / fraction
    tail = 1 / (math.sqrt(math.pi) * fraction)
    positive = lax.select(size < far, near, lax.select(isinf(x), lax.full_like(x, 0), tail))
    return lax.select(x < 0, 2 * lax.exp(x * x) - positive, positive)


def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    """sin(x) / x; 1 at 0, 0 at infinity."""
    nonzero = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 1), x)
    ratio = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 1), lax.sin(nonzero) / nonzero)
    return lax.select(isinf(x), lax.full_like(x, 0), ratio)


FUNCTIONS: Mapping[str, Function] = {
    "special_entr": scipy_special("entr"),
    "special_erfcx": erfcx,
    "special_i0e": scipy_special("i0e"),
    "special_i1": scipy_special("i1"),
    "special_i1e": scipy_special("i1e"),
    "special_log_ndtr": scipy_special("log_ndtr"),
    "special_modified_bessel_i0": scipy_special("i0"),
    "special_modified_bessel_i1": scipy_special("i1"),
    "special_ndtri": scipy_special("ndtri"),
    "special_spherical_bessel_j0": spherical_bessel_j0,
}

for _name, _function in FUNCTIONS.items():
    register_kernel(computing(_function), _name)


def _trigamma(x: jax.Array) -> jax.Array:
    """The derivative of digamma, by reflection for negative arguments."""
    negative = x < 0
    mirrored = lax.select(negative, 1 - x, x)
    value = lax.select(isinf(mirrored), lax.full_like(x, 0), lax.zeta(lax.full_like(x, 2), mirrored))
    sine = lax.sin(math.pi * x)
    return lax.select(negative, (math.pi * math.pi) / (sine * sine) - value, value)


@op("polygamma")
def polygamma(ctx: Context, n: int, x: jax.Array) -> jax.Array:
    """polygamma(int n, Tensor self) -> Tensor."""
    x = cast(x, compute_dtype(ctx.dtype))
    if n == 0:
        return cast(digamma(x), ctx.dtype)
    if n == 1:
        return cast(_trigamma(x), ctx.dtype)
    factor = math.factorial(n) if n < 170 else math.inf
    return cast((factor if n % 2 else -factor) * zeta(lax.full_like(x, n + 1), x), ctx.dtype)


@op("mvlgamma")
def mvlgamma(ctx: Context, x: jax.Array, p: int) -> jax.Array:
    """mvlgamma(Tensor self, int p) -> Tensor."""
    x = cast(x, compute_dtype(ctx.dtype))
    total = lax.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    for step in range(p):
        total = total + lax.lgamma(x - step / 2)
    return cast(total, ctx.dtype)

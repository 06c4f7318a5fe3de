"""Bessel and Airy functions, from their integrals: entire or fast-decaying integrands, for which few equidistant nodes give all digits.

Everything is computed in float64 and rounded once; arguments too large for the nodes use the asymptotic series.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np
from jax import lax

from xla_core.ops.kernel import Function, register_kernel
from xla_core.ops.promote import Operand, as_array, cast

_DOUBLE = np.dtype(np.float64)
_FAR = 25.0  # from here on the asymptotic series of J and Y is exact to float64
_EULER = 0.57721566490153286061
_NODES = 40
_ANGLES = (np.arange(_NODES) + 0.5) * (math.pi / 2 / _NODES)
_SINES = np.sin(_ANGLES)
_TERMS = np.arange(1, 33)
_SIGNS = (-1.0) ** _TERMS
_Y0_WEIGHTS = -4 / math.pi * (np.cos(2 * np.outer(_ANGLES, _TERMS)) @ (_SIGNS / _TERMS))
_Y1_WEIGHTS = -2 / math.pi * (np.sin(np.outer(_ANGLES, 2 * _TERMS + 1)) @ (_SIGNS * (2 * _TERMS + 1) / (_TERMS * (_TERMS + 1))))


def _over(x: jax.Array, nodes: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """`x` and constant nodes, broadcast over an added last dimension."""
    shape = (*x.shape, nodes.size)
    return lax.broadcast_in_dim(x, shape, tuple(range(x.ndim))), lax.broadcast(jax.numpy.asarray(nodes), x.shape)


def _mean(values: jax.Array) -> jax.Array:
    return lax.reduce_sum(values, (values.ndim - 1,)) / values.shape[-1]


def _near(x: jax.Array, order: int, weights: np.ndarray) -> jax.Array:
    """The mean over the nodes of weight * cos(x sin t) (order 0) or weight * sin(x sin t) (order 1), for moderate x."""
    wide, sines = _over(lax.min(x, lax.full_like(x, _FAR)), _SINES)
    wave = lax.cos if order == 0 else lax.sin
    return _mean(wave(wide * sines) * lax.broadcast(jax.numpy.asarray(weights), x.shape))


def _far(x: jax.Array, order: int, sine: bool) -> jax.Array:
    """Hankel's asymptotic series: J for cosine, Y for sine."""
    x = lax.max(x, lax.full_like(x, _FAR))
    p, q, coefficient, power = lax.full_like(x, 1), lax.full_like(x, 0), 1.0, lax.full_like(x, 1)
    for k in range(1, 24):
        coefficient *= (4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        power = power / x
        term = (coefficient * (-1.0) ** (k // 2)) * power
        p, q = (p, q + term) if k % 2 else (p + term, q)
    phase = x - (order / 2 + 0.25) * math.pi
    cosine, sin = lax.cos(phase), lax.sin(phase)
    amplitude = lax.sqrt(2 / (math.pi * x))
    return amplitude * (p * sin + q * cosine if sine else p * cosine - q * sin)


def bessel_j0(x: jax.Array) -> jax.Array:
    """J of order 0."""
    size = lax.abs(x)
    return lax.select(size > _FAR, _far(size, 0, sine=False), _near(size, 0, np.ones(_NODES)))


def bessel_j1(x: jax.Array) -> jax.Array:
    """J of order 1, an odd function."""
    size = lax.abs(x)
    value = lax.select(size > _FAR, _far(size, 1, sine=False), _near(size, 1, _SINES))
    return lax.select(x < 0, -value, value)


def _second_kind(x: jax.Array, near: jax.Array, far: jax.Array) -> jax.Array:
    value = lax.select(x > _FAR, far, near)
    value = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, -math.inf), value)
    return lax.select(x < 0, lax.full_like(x, math.nan), value)


def bessel_y0(x: jax.Array) -> jax.Array:
    """Y of order 0."""
    near = 2 / math.pi * (lax.log(x / 2) + _EULER) * bessel_j0(x) + _near(x, 0, _Y0_WEIGHTS)
    return _second_kind(x, near, _far(x, 0, sine=True))


def bessel_y1(x: jax.Array) -> jax.Array:
    """Y of order 1."""
    near = 2 / math.pi * ((lax.log(x / 2) + (_EULER - 1)) * bessel_j1(x) - bessel_j0(x) / x) + _near(x, 1, _Y1_WEIGHTS)
    return _second_kind(x, near, _far(x, 1, sine=True))


_K_NODES = 96
_K_SMALL = 1e-8  # below, the first term of the series is exact


def _trapezoid(values: jax.Array, reach: jax.Array) -> jax.Array:
    """The integral from 0 to `reach` of values at equidistant nodes from 0 on (last dimension); at `reach` they vanish."""
    first = lax.index_in_dim(values, 0, axis=values.ndim - 1, keepdims=False)
    return (_mean(values) - first / (2 * values.shape[-1])) * reach


def _scaled_k(x: jax.Array, order: int) -> jax.Array:
    """exp(x) * K(x): the integral of exp(-x (cosh t - 1)) cosh(order t)."""
    safe = lax.max(x, lax.full_like(x, _K_SMALL))
    reach = 2 * lax.asinh(lax.sqrt(22.5 / safe))
    fractions = np.arange(_K_NODES) / _K_NODES
    wide, _ = _over(safe, fractions)
    far, share = _over(reach, fractions)
    t = far * share
    half = lax.sinh(t / 2)
    values = lax.exp(-2 * wide * half * half) * (lax.cosh(t) if order else lax.full_like(t, 1))
    near_zero = 1 / x if order else -lax.log(x / 2) - _EULER
    value = lax.select(x < _K_SMALL, near_zero, _trapezoid(values, reach))
    value = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, math.inf), value)
    value = lax.select(lax.eq(x, lax.full_like(x, math.inf)), lax.full_like(x, 0), value)
    return lax.select(x < 0, lax.full_like(x, math.nan), value)


_AIRY_FAR = -9.0  # below, the asymptotic series is exact to float64
_AIRY_NODES = 400


def _airy_far(x: jax.Array) -> jax.Array:
    """The oscillating asymptotic series for negative arguments."""
    size = lax.max(-x, lax.full_like(x, -_AIRY_FAR))
    phase = 2 / 3 * size * lax.sqrt(size)
    even, odd, coefficient, power = lax.full_like(x, 1), lax.full_like(x, 0), 1.0, lax.full_like(x, 1)
    for k in range(1, 20):
        coefficient *= (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1))
        power = power / phase
        term = (coefficient * (-1.0) ** (k // 2)) * power
        even, odd = (even, odd + term) if k % 2 else (even + term, odd)
    turned = phase + math.pi / 4
    return (lax.sin(turned) * even - lax.cos(turned) * odd) / (math.sqrt(math.pi) * lax.sqrt(lax.sqrt(size)))


def airy_ai(x: jax.Array) -> jax.Array:
    """The Airy function Ai: its Fourier integral along a line on which the integrand decays like a Gaussian."""
    safe = lax.max(x, lax.full_like(x, _AIRY_FAR))
    height = lax.sqrt(lax.max(safe, lax.full_like(x, 0.25)))
    reach = lax.sqrt(42 / height)
    far, share = _over(reach, np.arange(_AIRY_NODES) / _AIRY_NODES)
    lift, _ = _over(height, np.zeros(_AIRY_NODES))
    slope, _ = _over(safe - height * height, np.zeros(_AIRY_NODES))
    u = far * share
    values = lax.exp(-lift * u * u) * lax.cos(u * (u * u / 3 + slope))
    near = lax.exp(height * (height * height / 3 - safe)) * _trapezoid(values, reach) / math.pi
    return lax.select(x < _AIRY_FAR, _airy_far(x), near)


FUNCTIONS: Mapping[str, Function] = {
    "special_airy_ai": airy_ai,
    "special_bessel_j0": bessel_j0,
    "special_bessel_j1": bessel_j1,
    "special_bessel_y0": bessel_y0,
    "special_bessel_y1": bessel_y1,
    "special_modified_bessel_k0": lambda x: lax.exp(-x) * _scaled_k(x, 0),
    "special_modified_bessel_k1": lambda x: lax.exp(-x) * _scaled_k(x, 1),
    "special_scaled_modified_bessel_k0": lambda x: _scaled_k(x, 0),
    "special_scaled_modified_bessel_k1": lambda x: _scaled_k(x, 1),
}


def _register(name: str, function: Function) -> None:
    def kernel(dtype: np.dtype, x: Operand) -> jax.Array:
        return cast(function(as_array(x, _DOUBLE)), dtype)

    kernel.__doc__ = function.__doc__
    register_kernel(kernel, name, notes="computed in float64")


for _name, _function in FUNCTIONS.items():
    _register(_name, _function)

"""Orthogonal polynomials of `torch.special`, by their three-term recurrences up to the largest degree asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from xla_core.ops.kernel import computing, register_kernel

Array = jax.Array


@dataclass(frozen=True, slots=True)
class Family:
    """first: the polynomial of degree 1. following: degree k + 1 from (x, k, degree k, degree k - 1), with k as a float array."""

    first: Callable[[Array], Array]
    following: Callable[[Array, Array, Array, Array], Array]
    shifted: bool = False
    most: Mapping[str, int] | None = None  # degrees from here on overflow; torch answers NaN


def _chebyshev(x: Array, k: Array, current: Array, previous: Array) -> Array:
    return 2 * x * current - previous


_HERMITE_MOST = {"float32": 128, "float64": 512}
_CHEBYSHEV: Mapping[str, Callable[[Array], Array]] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
FAMILIES: Mapping[str, Family] = {
    **{f"chebyshev_polynomial_{kind}": Family(first, _chebyshev) for kind, first in _CHEBYSHEV.items()},
    **{f"shifted_chebyshev_polynomial_{kind}": Family(first, _chebyshev, shifted=True) for kind, first in _CHEBYSHEV.items()},
    "hermite_polynomial_h": Family(lambda x: 2 * x, lambda x, k, now, old: 2 * x * now - 2 * k * old, most=_HERMITE_MOST),
    "hermite_polynomial_he": Family(lambda x: x, lambda x, k, now, old: x * now - k * old, most=_HERMITE_MOST),
    "laguerre_polynomial_l": Family(lambda x: 1 - x, lambda x, k, now, old: ((2 * k + 1 - x) * now - k * old) / (k + 1)),
    "legendre_polynomial_p": Family(lambda x: x, lambda x, k, now, old: ((2 * k + 1) * x * now - k * old) / (k + 1)),
}


def _evaluated(family: Family, x: Array, degree: Array) -> Array:
    """The polynomial of each element's own degree; 0 for negative degrees."""
    if family.shifted:
        x = 2 * x - 1
    wanted = lax.convert_element_type(degree, np.int64)  # torch truncates too
    one = lax.full_like(x, 1)
    start = lax.select(wanted > 0, family.first(x), lax.select(wanted < 0, lax.full_like(x, 0), one))
    last = lax.reduce_max(wanted, tuple(range(wanted.ndim)))

    def step(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        now, old, result = state
        following = family.following(x, lax.broadcast(lax.convert_element_type(k, x.dtype), x.shape), now, old)
        return following, now, lax.select(wanted > k, following, result)

    result: Array = lax.fori_loop(np.int64(1), last, step, (family.first(x), one, start))[2]
    if family.most is not None:
        result = lax.select(wanted > family.most[x.dtype.name], lax.full_like(x, math.nan), result)
    return result


def _register(name: str, family: Family) -> None:
    def polynomial(x: Array, degree: Array) -> Array:
        return _evaluated(family, x, degree)

    polynomial.__doc__ = f"special_{name}(Tensor x, Tensor n) -> Tensor."
    names = (f"special_{name}", f"special_{name}.x_scalar", f"special_{name}.n_scalar")
    register_kernel(computing(polynomial), *names, scalars=("x",))


for _name, _family in FAMILIES.items():
    _register(_name, _family)

"""Comparisons and logic of two tensors, or of a tensor and a number."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax import lax

from xla_core.ops.kernel import Function, Kernel, register_kernel
from xla_core.ops.promote import Number, Weak, as_array, broadcast, cast, promote

COMPARISONS: Mapping[str, Function] = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
LOGIC: Mapping[str, Function] = {
    "logical_and": lax.bitwise_and,
    "logical_or": lax.bitwise_or,
    "logical_xor": lax.bitwise_xor,
}


def _with_tensor(compare: Function) -> Kernel:
    def kernel(dtype: np.dtype, x: jax.Array, y: jax.Array | Number) -> jax.Array:
        return cast(compare(*broadcast(*promote(x, y))), dtype)

    return kernel


def _with_scalar(compare: Function) -> Kernel:
    def kernel(dtype: np.dtype, x: jax.Array, y: jax.Array | Number) -> jax.Array:
        return cast(compare(*broadcast(*promote(x, Weak(y)))), dtype)

    return kernel


def _logical(combine: Function) -> Kernel:
    def kernel(dtype: np.dtype, x: jax.Array, y: jax.Array) -> jax.Array:
        truths = (as_array(operand, np.dtype(bool)) for operand in (x, y))
        return cast(combine(*broadcast(*truths)), dtype)

    return kernel


for _name, _function in COMPARISONS.items():
    register_kernel(_with_tensor(_function), f"{_name}.Tensor")
    register_kernel(_with_scalar(_function), f"{_name}.Scalar", scalars=("other",))
for _name, _function in LOGIC.items():
    register_kernel(_logical(_function), _name)

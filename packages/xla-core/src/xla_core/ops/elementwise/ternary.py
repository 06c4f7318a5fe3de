"""Functions of three tensors or bounds: where, clamp, lerp, addcmul, addcdiv."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from xla_core.ops.kernel import register_kernel
from xla_core.ops.promote import Number, Operand, broadcast, cast, compute_dtype, operands_as


def where(dtype: np.dtype, condition: jax.Array, x: Operand, y: Operand) -> jax.Array:
    """x where the condition holds, y elsewhere."""
    condition, x, y = broadcast(cast(condition, np.dtype(bool)), *operands_as(dtype, x, y))
    return lax.select(condition, x, y)


def clamp(dtype: np.dtype, x: jax.Array, min: Operand | None = None, max: Operand | None = None) -> jax.Array:
    """x raised to `min`, then lowered to `max`; NaN anywhere gives NaN."""
    result = cast(x, dtype)
    if min is not None:
        result = lax.max(*operands_as(dtype, result, min))
    if max is not None:
        result = lax.min(*operands_as(dtype, result, max))
    return result


def clamp_max(dtype: np.dtype, x: jax.Array, max: Operand) -> jax.Array:
    """x lowered to `max`."""
    return clamp(dtype, x, None, max)


def lerp(dtype: np.dtype, start: Operand, end: Operand, weight: Operand) -> jax.Array:
    """start + weight * (end - start), counted from the nearer end so that weight 1 gives exactly `end`."""
    start, end, weight = operands_as(compute_dtype(dtype), start, end, weight)
    near_start = lax.abs(weight) < 0.5
    share, base = lax.select(near_start, weight, weight - 1), lax.select(near_start, start, end)
    return cast(base + share * (end - start), dtype)


def addcmul(dtype: np.dtype, x: Operand, y: Operand, z: Operand, *, value: Number | jax.Array = 1) -> jax.Array:
    """x + value * y * z."""
    x, y, z, value = operands_as(compute_dtype(dtype), x, y, z, value)
    return cast(x + value * y * z, dtype)


def addcdiv(dtype: np.dtype, x: Operand, y: Operand, z: Operand, *, value: Number | jax.Array = 1) -> jax.Array:
    """x + value * y / z."""
    x, y, z, value = operands_as(compute_dtype(dtype), x, y, z, value)
    return cast(x + value * y / z, dtype)


register_kernel(where, "where.self")
register_kernel(clamp, "clamp", "clamp_min", scalars=("min", "max"))
register_kernel(clamp, "clamp.Tensor", "clamp_min.Tensor")
register_kernel(clamp_max, "clamp_max", scalars=("max",))
register_kernel(clamp_max, "clamp_max.Tensor")
register_kernel(lerp, "lerp.Scalar", "lerp.Tensor", scalars=("weight",))
register_kernel(addcmul, "addcmul", scalars=("value",))
register_kernel(addcdiv, "addcdiv", scalars=("value",))

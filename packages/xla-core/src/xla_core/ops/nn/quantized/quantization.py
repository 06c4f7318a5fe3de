"""Integers that stand for numbers, by a scale and a zero point for all of them or for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

Numbers = Sequence[float] | Sequence[int] | jax.Array


def quantized(x: jax.Array, scale: Numbers, zero_point: Numbers, low: int, high: int, dtype: Any, axis: int) -> jax.Array:
    """round(x / scale) + zero_point between low and high, as `dtype`. axis: of the channels; below 0 there is one scale for all."""
    wide = x if x.dtype == np.float64 else lax.convert_element_type(x, np.float32)
    # As torch: one scale is inverted in double precision, those of channels in single.
    inverse = np.asarray(1.0 / np.float64(scale[0]), wide.dtype) if axis < 0 else lax.div(np.float32(1), _channels(scale, x, axis))
    moved = lax.add(lax.round(lax.mul(wide, _like(inverse, wide)), lax.RoundingMethod.TO_NEAREST_EVEN), _zero(zero_point, wide, axis))
    bounds = [np.asarray(bound, wide.dtype) for bound in (low, high)]
    return lax.convert_element_type(lax.clamp(bounds[0], moved, bounds[1]), dtype)


def dequantized(x: jax.Array, scale: Numbers, zero_point: Numbers, axis: int) -> jax.Array:
    """(x - zero_point) * scale in float32."""
    wide = lax.convert_element_type(x, np.float32)
    factor = np.float32(scale[0]) if axis < 0 else _channels(scale, x, axis)
    return lax.mul(lax.sub(wide, _zero(zero_point, wide, axis)), _like(factor, wide))


def _zero(zero_point: Numbers, wide: jax.Array, axis: int) -> jax.Array:
    return _like(np.asarray(zero_point[0], wide.dtype) if axis < 0 else _channels(zero_point, wide, axis), wide)


def _like(value: Any, wide: jax.Array) -> jax.Array:
    found = lax.convert_element_type(value, wide.dtype)
    return found if found.ndim else lax.broadcast(found, wide.shape)


def _channels(values: Numbers, x: jax.Array, axis: int) -> jax.Array:
    array = values if isinstance(values, jax.Array) else np.asarray(values, np.float32)
    return lax.broadcast_in_dim(lax.convert_element_type(array, np.float32), x.shape, (axis,))

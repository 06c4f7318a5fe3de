"""Pooling over maps of open height and width, by XLA's own reduction of windows: recorded programs have faster ways for fixed sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.nn.conv.shape import spatial_arguments
from xla_core.ops.promote import cast, compute_dtype, is_float
from xla_core.ops.table import Context

_INT64 = np.dtype(np.int64)


def _windows(rank: int, x: jax.Array, *settings: Sequence[int]) -> dict[str, Any]:
    """The arguments of `lax.reduce_window`: kernel, stride, padding and perhaps dilation over the last dimensions."""
    kernel, stride, padding, dilation = spatial_arguments(rank, *settings)
    lead = x.ndim - rank
    ones = (1,) * lead
    return {
        "window_dimensions": (*ones, *kernel),
        "window_strides": (*ones, *stride),
        "padding": [(0, 0)] * lead + [(size, size) for size in padding],
        "window_dilation": (*ones, *dilation),
    }


def _refuse_ceiling(ceil_mode: bool) -> None:
    if ceil_mode:
        raise UnsupportedOperationError("pooling with ceil_mode=True over open sizes cannot be exported: pad the input, or fix its sizes")


def max_pool(
    rank: int,
    context: Context,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """max_pool2d_with_indices: the largest of each window, and its position in the map; NaN wins, and the first of equals."""
    _refuse_ceiling(ceil_mode)
    place = lax.broadcasted_iota(_INT64, x.shape, x.ndim - 1)
    for dim in range(x.ndim - rank, x.ndim - 1):
        place += lax.broadcasted_iota(_INT64, x.shape, dim) * jax.numpy.asarray(math.prod(x.shape[dim + 1 :]))
    least = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    initial = np.asarray(least, x.dtype), np.asarray(np.iinfo(_INT64).max, _INT64)
    windows = _windows(rank, x, kernel_size, stride or kernel_size, padding, dilation)
    best, where = lax.reduce_window((x, place), initial, _better, **windows)
    return best, where


def _better(one: Any, other: Any) -> Any:
    (value, place), (value2, place2) = one, other
    nan, nan2 = lax.ne(value, value), lax.ne(value2, value2)
    above = lax.bitwise_or(lax.gt(value, value2), lax.bitwise_and(nan, lax.bitwise_not(nan2)))
    equal = lax.bitwise_or(lax.eq(value, value2), lax.bitwise_and(nan, nan2))
    first = lax.bitwise_or(above, lax.bitwise_and(equal, lax.lt(place, place2)))
    return lax.select(first, value, value2), lax.select(first, place, place2)


def avg_pool(
    rank: int,
    context: Context,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """avg_pool2d: the mean of each window, over the map's own elements only if padding does not count."""
    _refuse_ceiling(ceil_mode)
    wide = cast(x, compute_dtype(x.dtype))
    windows = _windows(rank, x, kernel_size, stride or kernel_size, padding, (1,))
    zero = np.asarray(0, wide.dtype)
    added = lax.reduce_window(wide, zero, lax.add, **windows)
    if divisor_override is None and not count_include_pad:
        return cast(lax.div(added, lax.reduce_window(lax.full_like(wide, 1), zero, lax.add, **windows)), context.dtype)
    size = divisor_override or math.prod(windows["window_dimensions"])
    return cast(lax.div(added, lax.full_like(added, size)), context.dtype)

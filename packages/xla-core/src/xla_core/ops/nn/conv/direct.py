"""Convolution as one XLA convolution, and its two gradients, on channels-last operands (N, *spatial, C) and torch weights (O, I, *kernel).

XLA:CPU computes channels-last itself and would transpose anyway; said here, its transposes meet those of the next operation and cancel.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from xla_core.ops.nn.conv.shape import Ints, Window


def _numbers(rank: int) -> lax.ConvDimensionNumbers:
    """x (N, *spatial, C), weight (*kernel, I, O), out (N, *spatial, O)."""
    data = (0, rank + 1, *range(1, rank + 1))
    return lax.ConvDimensionNumbers(data, (rank + 1, rank, *range(rank)), data)


def _last(weight: jax.Array) -> jax.Array:
    """(O, I, *kernel) as (*kernel, I, O)."""
    return lax.transpose(weight, (*range(2, weight.ndim), 1, 0))


def _padding(size: Ints, out: Ints, kernel: Ints, window: Window) -> list[tuple[int, int]]:
    """Padding per dimension for an output of exactly `out`: a transposed convolution may leave off the end of its result."""
    pairs = []
    for whole, wanted, k, stride, low, dilation in zip(size, out, kernel, window.stride, window.padding, window.dilation, strict=True):
        reach = (k - 1) * dilation + 1
        natural = (whole + 2 * low - reach) // stride + 1
        pairs.append((low, low if natural == wanted else (wanted - 1) * stride + reach - whole - low))
    return pairs


def forward(x: jax.Array, weight: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The convolution itself, (N, *out, O)."""
    return lax.conv_general_dilated(
        x,
        _last(weight),
        window.stride,
        _padding(x.shape[1:-1], out, weight.shape[2:], window),
        rhs_dilation=window.dilation,
        dimension_numbers=_numbers(x.ndim - 2),
        feature_group_count=window.groups,
    )


def _transposed(linear: Callable[[jax.Array], jax.Array], shape: Ints, grad: jax.Array) -> jax.Array:
    """The transpose of a linear function of an array of `shape`, applied to `grad`."""
    like = jax.ShapeDtypeStruct(shape, grad.dtype)
    back: jax.Array = jax.linear_transpose(linear, like)(grad)[0]
    return back


def data_gradient(grad: jax.Array, weight: jax.Array, size: Ints, window: Window) -> jax.Array:
    """The gradient of an input of spatial shape `size`, from `grad` (N, *out, O)."""
    shape = (grad.shape[0], *size, weight.shape[1] * window.groups)
    return _transposed(lambda x: forward(x, weight, window, grad.shape[1:-1]), shape, grad)


def weight_gradient(x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    """The gradient of the weight, (O, I, *kernel)."""
    shape = (grad.shape[-1], x.shape[-1] // window.groups, *kernel)
    return _transposed(lambda weight: forward(x, weight, window, grad.shape[1:-1]), shape, grad)

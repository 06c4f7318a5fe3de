"""Convolution over three dimensions by one over the last two, which XLA:CPU runs many times faster.

Planes along the first dimension join the batch, and the planes that one result reads, for each kernel offset, lie side by side in the
channels. The same three functions as `conv_direct`, for one group of channels; each takes the one that computes planes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import jax
from jax import lax

from xla_core.ops.nn.conv.shape import Ints, Window

Compute = Callable[[jax.Array, jax.Array, Window, Ints], jax.Array]  # conv_direct.forward
Gradient = Callable[[jax.Array, jax.Array, Ints, Window], jax.Array]  # conv_direct.data_gradient and .weight_gradient


def _inner(window: Window) -> Window:
    return Window(window.stride[1:], window.padding[1:], window.dilation[1:], program=window.program)


def _zero(x: jax.Array) -> jax.Array:
    return lax.full((), 0, x.dtype)


def _joined(x: jax.Array) -> jax.Array:
    """(N, planes, *rest) as (N * planes, *rest)."""
    return lax.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _split(x: jax.Array, planes: int) -> jax.Array:
    """The inverse."""
    return lax.reshape(x, (x.shape[0] // planes, planes, *x.shape[1:]))


def _side_by_side(x: jax.Array, out: int, kernel: int, window: Window) -> jax.Array:
    """What each of `out` planes of results reads: (N * out, *rest, kernel * C)."""
    stride, low, dilation = window.stride[0], window.padding[0], window.dilation[0]
    reach = (out - 1) * stride + 1
    edges = (low, reach + (kernel - 1) * dilation - x.shape[1] - low, 0)
    whole = lax.pad(x, _zero(x), [(0, 0, 0), edges, *[(0, 0, 0)] * (x.ndim - 2)])
    parts = [lax.slice_in_dim(whole, offset * dilation, offset * dilation + reach, stride, 1) for offset in range(kernel)]
    return _joined(lax.concatenate(parts, x.ndim - 1))


def _merged(weight: jax.Array) -> jax.Array:
    """(O, I, kernel, *rest) as (O, kernel * I, *rest)."""
    swapped = lax.transpose(weight, (0, 2, 1, *range(3, weight.ndim)))
    return lax.reshape(swapped, (weight.shape[0], weight.shape[1] * weight.shape[2], *weight.shape[3:]))


def forward(compute: Compute, x: jax.Array, weight: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The convolution itself, (N, *out, O)."""
    planes = _side_by_side(x, out[0], weight.shape[2], window)
    return _split(compute(planes, _merged(weight), _inner(window), out[1:]), out[0])


def data_gradient(compute: Gradient, grad: jax.Array, weight: jax.Array, size: Ints, window: Window) -> jax.Array:
    """The gradient of an input of spatial shape `size`, from `grad` (N, *out, O)."""
    out, channels = grad.shape[1], weight.shape[1]
    sent = _split(compute(_joined(grad), _merged(weight), size[1:], _inner(window)), out)
    stride, low, dilation = window.stride[0], window.padding[0], window.dilation[0]
    parts = []
    for offset in range(weight.shape[2]):
        part = lax.slice_in_dim(sent, offset * channels, (offset + 1) * channels, axis=sent.ndim - 1)
        first = offset * dilation - low
        edges = (first, size[0] - first - ((out - 1) * stride + 1), stride - 1)
        parts.append(lax.pad(part, _zero(part), [(0, 0, 0), edges, *[(0, 0, 0)] * (sent.ndim - 2)]))
    return reduce(lax.add, parts)


def weight_gradient(compute: Gradient, x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    """The gradient of the weight, (O, I, *kernel)."""
    planes = _side_by_side(x, grad.shape[1], kernel[0], window)
    merged = compute(planes, _joined(grad), kernel[1:], _inner(window))
    split = lax.reshape(merged, (grad.shape[-1], kernel[0], x.shape[-1], *kernel[1:]))
    return lax.transpose(split, (0, 2, 1, *range(3, split.ndim)))

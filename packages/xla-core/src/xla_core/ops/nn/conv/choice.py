"""Which lowering a convolution gets: one XLA convolution, a product per tap, sums by channel, blocks of merged groups, or planes.

Only XLA:CPU needs the choice; elsewhere the compiler's own convolution is used. The numbers below come from timing both ways on
the layers of ResNet-18 and small CNNs, on two x86-64 cores. Operands are channels-last (N, *spatial, C), weights as torch has them,
(O, I, *kernel).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import has_open_sizes
from xla_core.ops.nn.conv import depthwise as conv_depthwise
from xla_core.ops.nn.conv import direct as conv_direct
from xla_core.ops.nn.conv import planes as conv_planes
from xla_core.ops.nn.conv import taps as conv_taps
from xla_core.ops.nn.conv.shape import Ints, Window, useful_share
from xla_core.ops.promote import is_integral

# Reading and adding up the result of one tap costs as much as multiplying with this many channels.
_TAP_OVERHEAD = 32
# A product per tap pays if, with that, it has less than this share of the convolution's work, which multiplies with padding too.
_WORTH = 0.8
# Groups are merged into blocks of at least so many channels, and into no more than so many blocks.
_BLOCK_CHANNELS = 32
_MAX_BLOCKS = 16


def _compiled(x: jax.Array, window: Window) -> bool:
    """Whether the compiler's convolution is taken without asking: off the CPU, save for integers, whose gradients JAX does not know, and
    where an exported program leaves sizes open.
    """
    return has_open_sizes(x) or (window.program.platform != "cpu" and not is_integral(np.dtype(x.dtype)))


def _taps_pay(x: jax.Array, slid: Ints, over: Ints, kernel: Ints, share: float, overhead: float) -> bool:
    """Whether a product per tap beats XLA:CPU's convolution, which slides `slid` over a map of shape `over`.

    Where the map has fewer positions than what slides over it, XLA:CPU leaves its fast path; a single tap is a plain product.
    """
    return prod(kernel) == 1 or prod(slid) > prod(over) or share * (1 + overhead) < _WORTH or is_integral(np.dtype(x.dtype))


def _depthwise(weight_inputs: int, window: Window) -> bool:
    return window.groups > 1 and weight_inputs == 1


def forward(x: jax.Array, weight: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The convolution itself, (N, *out, O)."""
    if _compiled(x, window):
        return conv_direct.forward(x, weight, window, out)
    if _depthwise(weight.shape[1], window):
        return conv_depthwise.forward(x, weight, window, out)
    if window.groups > 1:
        return _blocked(lambda x_, weight_, single: forward(x_, weight_, single, out), x, weight, window)
    if len(out) == 3:
        return conv_planes.forward(forward, x, weight, window, out)
    size, kernel = x.shape[1:-1], weight.shape[2:]
    share = useful_share(size, out, kernel, window)
    if _taps_pay(x, kernel, size, kernel, share, _TAP_OVERHEAD / max(weight.shape[1], 1)):
        return conv_taps.forward(x, weight, window, out)
    return conv_direct.forward(x, weight, window, out)


def data_gradient(grad: jax.Array, weight: jax.Array, size: Ints, window: Window) -> jax.Array:
    """The gradient of an input of spatial shape `size`, from `grad` (N, *out, O)."""
    if _compiled(grad, window):
        return conv_direct.data_gradient(grad, weight, size, window)
    if _depthwise(weight.shape[1], window):
        return conv_depthwise.data_gradient(grad, weight, size, window)
    if window.groups > 1:
        return _blocked(lambda grad_, weight_, single: data_gradient(grad_, weight_, size, single), grad, weight, window)
    if len(size) == 3:
        return conv_planes.data_gradient(data_gradient, grad, weight, size, window)
    out, kernel = grad.shape[1:-1], weight.shape[2:]
    share = useful_share(size, out, kernel, window)
    if _taps_pay(grad, kernel, out, kernel, share, _TAP_OVERHEAD / max(weight.shape[0], 1)):
        return conv_taps.data_gradient(grad, weight, size, window)
    return conv_direct.data_gradient(grad, weight, size, window)


def weight_gradient(x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    """The gradient of the weight, (O, I, *kernel)."""
    channels = x.shape[-1] // window.groups
    if _compiled(x, window):
        return conv_direct.weight_gradient(x, grad, kernel, window)
    if _depthwise(channels, window):
        return conv_depthwise.weight_gradient(x, grad, kernel, window)
    if window.groups > 1:
        return _blocked_weight_gradient(x, grad, kernel, window)
    if len(kernel) == 3:
        return conv_planes.weight_gradient(weight_gradient, x, grad, kernel, window)
    size, out = x.shape[1:-1], grad.shape[1:-1]
    share = useful_share(size, out, kernel, window)
    overhead = _TAP_OVERHEAD / max(channels, 1) + _TAP_OVERHEAD / max(grad.shape[-1], 1)
    if _taps_pay(x, out, size, kernel, share, overhead):
        return conv_taps.weight_gradient(x, grad, kernel, window)
    return conv_direct.weight_gradient(x, grad, kernel, window)


def _groups_per_block(groups: int, channels: int) -> int:
    """The number of groups to compute as one, so that no product is too small and the program not too long."""
    for merged in range(1, groups):
        if groups % merged == 0 and merged * channels >= _BLOCK_CHANNELS and groups // merged <= _MAX_BLOCKS:
            return merged
    return groups


def _blocks(x: jax.Array, axis: int, count: int) -> list[jax.Array]:
    return list(lax.split(x, [x.shape[axis] // count] * count, axis))


def _diagonal(merged: int, shape: Ints) -> jax.Array:
    """The mask of an array (group, O, group, I, *kernel) at equal groups."""
    own, other = (lax.broadcasted_iota(np.dtype(np.int32), shape, axis) for axis in (0, 2))
    return lax.eq(own, other)


def _merge(weight: jax.Array, merged: int) -> jax.Array:
    """Weights of `merged` groups (merged * o, i, *kernel) as those of one group, zero across groups."""
    outs, channels, kernel = weight.shape[0] // merged, weight.shape[1], weight.shape[2:]
    shape = (merged, outs, merged, channels, *kernel)
    split = lax.reshape(weight, (merged, outs, channels, *kernel))
    repeated = lax.broadcast_in_dim(split, shape, (0, 1, *range(3, len(shape))))
    alone = lax.select(_diagonal(merged, shape), repeated, lax.full_like(repeated, 0))
    return lax.reshape(alone, (merged * outs, merged * channels, *kernel))


def _unmerge(gradient: jax.Array, merged: int) -> jax.Array:
    """The inverse for gradients: what falls across groups is dropped."""
    outs, channels, kernel = gradient.shape[0] // merged, gradient.shape[1] // merged, gradient.shape[2:]
    shape = (merged, outs, merged, channels, *kernel)
    split = lax.reshape(gradient, shape)
    alone = lax.select(_diagonal(merged, shape), split, lax.full_like(split, 0))
    return lax.reshape(lax.reduce_sum(alone, (2,)), (merged * outs, channels, *kernel))


def _blocked(compute: Callable[[jax.Array, jax.Array, Window], jax.Array], x: jax.Array, weight: jax.Array, window: Window) -> jax.Array:
    """`compute` for each block of groups, results side by side in the channels."""
    merged = _groups_per_block(window.groups, weight.shape[1])
    count, single = window.groups // merged, dataclasses.replace(window, groups=1)
    parts = zip(_blocks(x, x.ndim - 1, count), _blocks(weight, 0, count), strict=True)
    return lax.concatenate([compute(part, _merge(share, merged), single) for part, share in parts], x.ndim - 1)


def _blocked_weight_gradient(x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    merged = _groups_per_block(window.groups, x.shape[-1] // window.groups)
    count, single = window.groups // merged, dataclasses.replace(window, groups=1)
    parts = zip(_blocks(x, x.ndim - 1, count), _blocks(grad, grad.ndim - 1, count), strict=True)
    return lax.concatenate([_unmerge(weight_gradient(part, g, kernel, single), merged) for part, g in parts], 0)

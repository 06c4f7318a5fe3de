"""Convolution with a group per input channel (depthwise), as sums of products, element by element.

The same three functions as `conv_direct`. XLA:CPU makes one vectorised loop over the channels of each sum, if what it reads is in memory
and the sum is short: its own grouped convolution mostly takes thirty times as long, and one loop of hundreds of products as well.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import ceil, prod

import jax
import numpy as np
from jax import lax

from xla_core.ops.nn.conv.shape import Ints, Window, taps

# So many products are added up in one loop: of 16, 32 and 64 the best for kernels of 7 × 7 to 31 × 31, on two x86-64 cores.
_UNROLLED = 32
# Kernels of more offsets are applied row by row, which runs hardly slower and compiles in a tenth of the time for 31 × 31.
_WRITTEN_OUT = 128


_Keep = Callable[[jax.Array], jax.Array]


def _in_memory(x: jax.Array) -> jax.Array:
    """`x`, computed once. XLA:CPU would compute a sum of products anew in every loop that reads it, and a loop into which
    slices at computed places are drawn is no longer vectorised.
    """
    kept: jax.Array = lax.optimization_barrier(x)
    return kept


# From jaxlib 0.12 on XLA:CPU keeps barriers in loops, and then cannot compile those that it fused.
_LOOPS_KEEP_BARRIERS = jax.__version_info__ >= (0, 12)


def _in_memory_of_a_loop(x: jax.Array) -> jax.Array:
    """The same inside the body of a loop, where that can be compiled."""
    return x if _LOOPS_KEEP_BARRIERS else _in_memory(x)


def _padded(x: jax.Array, out: Ints, kernel: Ints, window: Window) -> jax.Array:
    """All that the kernel reads for an output of shape `out`, from its first position on."""
    edges = []
    for size, wanted, k, stride, low, dilation in zip(
        x.shape[1:-1], out, kernel, window.stride, window.padding, window.dilation, strict=True
    ):
        edges.append((low, (wanted - 1) * stride + (k - 1) * dilation + 1 - size - low, 0))
    return _in_memory(lax.pad(x, lax.full((), 0, x.dtype), [(0, 0, 0), *edges, (0, 0, 0)]))


def _for_outputs(x: jax.Array, outs: int) -> jax.Array:
    """Each channel once for every output channel made of it."""
    shape = (*x.shape, outs // x.shape[-1])
    return lax.reshape(lax.broadcast_in_dim(x, shape, range(x.ndim)), (*x.shape[:-1], outs))


def _read(x: jax.Array, first: Ints, count: Ints, step: Ints) -> jax.Array:
    """The positions `first`, `first + step`, … of x (N, *spatial, C), `count` of them."""
    stop = tuple(f + (c - 1) * s + 1 for f, c, s in zip(first, count, step, strict=True))
    return lax.slice(x, (0, *first, 0), (x.shape[0], *stop, x.shape[-1]), (1, *step, 1))


def _channels_last(weight: jax.Array) -> jax.Array:
    """(O, 1, *kernel) as (*kernel, O), before all else: a later transpose may only rename dimensions, and channels lie apart in memory."""
    return lax.transpose(lax.squeeze(weight, (1,)), (*range(1, weight.ndim - 1), 0))


def forward(x: jax.Array, weight: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The convolution itself, (N, *out, O)."""
    factors = lax.reshape(_channels_last(weight), (*weight.shape[2:], *(1 for _ in out), weight.shape[0]))
    return _correlation(_for_outputs(x, weight.shape[0]), factors, window, out)


def data_gradient(grad: jax.Array, weight: jax.Array, size: Ints, window: Window) -> jax.Array:
    """The gradient of an input of spatial shape `size`, from `grad` (N, *out, O).

    Input position s·q + r, where s is the stride, sees the gradient at q + a through one offset of the kernel for each a.
    """
    cells = tuple(ceil(whole / stride) for whole, stride in zip(size, window.stride, strict=True))
    factors, padding = _turned(weight, window)
    ones = (1,) * len(size)
    total = _correlation(grad, factors, Window(ones, padding, ones, program=window.program), cells)
    total = lax.slice(total, (0,) * total.ndim, (grad.shape[0], *size, grad.shape[-1]))
    if grad.shape[-1] == window.groups:
        return total
    split = lax.reshape(total, (*total.shape[:-1], window.groups, grad.shape[-1] // window.groups))
    return lax.reduce_sum(split, (split.ndim - 1,))


def _turned(weight: jax.Array, window: Window) -> tuple[jax.Array, Ints]:
    """The weight (O, 1, *kernel) as factors (*steps, *stride, O) from the last offset to the first, and the padding of the gradient."""
    rank, edges, steps, padding = weight.ndim - 2, [], [], []
    for k, stride, low, dilation in zip(weight.shape[2:], window.stride, window.padding, window.dilation, strict=True):
        lead, reach = -low % stride, (k - 1) * dilation + 1
        count = ceil((lead + reach) / stride)
        edges.append((lead, count * stride - lead - reach, dilation - 1))
        steps.append(count)
        padding.append(count - 1 - (low + lead) // stride)
    whole = lax.pad(_channels_last(weight), lax.full((), 0, weight.dtype), [*edges, (0, 0, 0)])
    shape = [n for pair in zip(steps, window.stride, strict=True) for n in pair]
    split = lax.rev(lax.reshape(whole, (*shape, weight.shape[0])), range(0, 2 * rank, 2))
    return lax.transpose(split, (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank)), tuple(padding)


def _correlation(x: jax.Array, factors: jax.Array, window: Window, out: Ints) -> jax.Array:
    """Correlate x (N, *spatial, C) with factors (*kernel, *cell, C): a cell of results at each position of `out`, (N, *(out · cell), C)."""
    kernel, cell = factors.shape[: len(out)], factors.shape[len(out) : -1]
    offsets = [tap.offset for tap in taps(x.shape[1:-1], out, kernel, window)]
    by_row = len(out) > 1 and len(offsets) > _WRITTEN_OUT
    whole, factors = _padded(x, out, kernel, window), _in_memory(factors)
    total = _row_by_row(whole, factors, window, out) if by_row else _sum_of_products(whole, factors, offsets, window, out)
    return lax.reshape(total, (x.shape[0], *(o * c for o, c in zip(out, cell, strict=True)), x.shape[-1]))


def _no_sum(whole: jax.Array, factors: jax.Array, out: Ints) -> jax.Array:
    """Zeros of the shape that sums have: each dimension of `out` is followed by that of its cells."""
    cells = [n for pair in zip(out, factors.shape[len(out) : -1], strict=True) for n in pair]
    return lax.full((whole.shape[0], *cells, whole.shape[-1]), 0, whole.dtype)


def _sum_of_products(
    whole: jax.Array, factors: jax.Array, offsets: list[Ints], window: Window, out: Ints, keep: _Keep = _in_memory
) -> jax.Array:
    """The sum of products of the padded input with the kernel's `offsets` alone."""
    total = _no_sum(whole, factors, out)
    positions, cells = (0, *range(1, total.ndim - 1, 2), total.ndim - 1), (*range(2, total.ndim - 1, 2), total.ndim - 1)
    for number, offset in enumerate(offsets, 1):
        first = tuple(o * dilation for o, dilation in zip(offset, window.dilation, strict=True))
        part = lax.broadcast_in_dim(_read(whole, first, out, window.stride), total.shape, positions)
        total = lax.add(total, lax.mul(part, lax.broadcast_in_dim(factors[offset], total.shape, cells)))
        if number % _UNROLLED == 0 or number == len(offsets):
            total = keep(total)
    return total


def _row_by_row(whole: jax.Array, factors: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The same by all offsets, one row of the kernel after the other, in a loop of the program."""
    height = (out[0] - 1) * window.stride[0] + 1
    offsets = list(product((0,), *map(range, factors.shape[1 : len(out)])))

    def add_row(number: jax.Array, total: jax.Array) -> jax.Array:
        part = lax.dynamic_slice_in_dim(whole, lax.mul(number, np.int64(window.dilation[0])), height, 1)
        row = lax.dynamic_slice_in_dim(factors, number, 1)
        keep = _in_memory_of_a_loop
        return lax.add(total, _sum_of_products(keep(part), keep(row), offsets, window, out, keep))

    result: jax.Array = lax.fori_loop(np.int64(0), np.int64(factors.shape[0]), add_row, _no_sum(whole, factors, out))
    return result


def weight_gradient(x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    """The gradient of the weight, (O, 1, *kernel).

    A sum over all positions for each offset would be a loop of its own that adds up one number after the other. Here sums of shape
    (N, *kernel, O) take in one strip of the gradient, of positions in its last dimension, after the other.
    """
    strips = ceil(grad.shape[-2] / _UNROLLED)
    width = ceil(grad.shape[-2] / strips)
    edges = [*[(0, 0, 0)] * len(kernel), (0, strips * width - grad.shape[-2], 0), (0, 0, 0)]
    grad = _in_memory(lax.pad(grad, lax.full((), 0, grad.dtype), edges))
    whole = _padded(_for_outputs(x, grad.shape[-1]), grad.shape[1:-1], kernel, window)
    counts = (*grad.shape[1:-2], strips)

    def add_strip(number: jax.Array, sums: jax.Array) -> jax.Array:
        *rows, strip = _place(number, counts)
        return _add_products(sums, whole, grad, (*rows, lax.mul(strip, np.int64(width))), width, window)

    sums = lax.full((grad.shape[0], *kernel, grad.shape[-1]), 0, x.dtype)
    total = lax.reduce_sum(lax.fori_loop(np.int64(0), np.int64(prod(counts)), add_strip, sums), (0,))
    return lax.expand_dims(lax.transpose(total, (len(kernel), *range(len(kernel)))), (1,))


def _place(number: jax.Array, counts: Ints) -> tuple[jax.Array, ...]:
    """The position of element `number` of an array of shape `counts`, in row-major order."""
    place = []
    for count in reversed(counts):
        place.append(lax.rem(number, np.int64(count)))
        number = lax.div(number, np.int64(count))
    return tuple(reversed(place))


def _add_products(
    sums: jax.Array, whole: jax.Array, grad: jax.Array, start: tuple[jax.Array, ...], width: int, window: Window
) -> jax.Array:
    """`sums` and the products of `width` positions of the gradient from `start` on with what the kernel reads there."""
    kernel, rows, zero = sums.shape[1:-1], (1,) * (len(start) - 1), np.int64(0)
    first = [lax.mul(s, np.int64(stride)) for s, stride in zip(start, window.stride, strict=True)]
    extent = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, window.dilation, strict=True)]
    extent[-1] += (width - 1) * window.stride[-1]
    seen = _in_memory_of_a_loop(lax.dynamic_slice(whole, [zero, *first, zero], (whole.shape[0], *extent, whole.shape[-1])))
    strip = _in_memory_of_a_loop(lax.dynamic_slice(grad, [zero, *start, zero], (grad.shape[0], *rows, width, grad.shape[-1])))
    strip = lax.reshape(strip, (grad.shape[0], width, grad.shape[-1]))
    for column in range(width):
        part = _read(seen, (*(0 for _ in rows), column * window.stride[-1]), kernel, window.dilation)
        sent = lax.squeeze(lax.slice_in_dim(strip, column, column + 1, axis=1), (1,))
        sums = lax.add(sums, lax.mul(part, lax.broadcast_in_dim(sent, part.shape, (0, part.ndim - 1))))
    return sums

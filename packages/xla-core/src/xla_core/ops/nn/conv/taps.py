"""Convolution as one matrix product per kernel offset ("tap"), over just the positions where that tap meets the input.

Nothing is multiplied with padding. The same three functions as `conv_direct`, for one group of channels.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod

import jax
from jax import lax

from xla_core.ops.cpu.in_memory import in_memory
from xla_core.ops.linalg.matmul import contract
from xla_core.ops.nn.conv.shape import Ints, Tap, Window, taps


def _read(x: jax.Array, tap: Tap, window: Window) -> jax.Array:
    """The input positions that `tap` reads, (N, *extent, C)."""
    stop = tuple(f + (e - 1) * s + 1 for f, e, s in zip(tap.first, tap.extent, window.stride, strict=True))
    return lax.slice(x, (0, *tap.first, 0), (x.shape[0], *stop, x.shape[-1]), (1, *window.stride, 1))


def _cut(grad: jax.Array, tap: Tap) -> jax.Array:
    """The output positions that `tap` writes."""
    return lax.slice(grad, (0, *tap.start, 0), (grad.shape[0], *tap.stop, grad.shape[-1]))


def _spread(part: jax.Array, size: Ints, first: Ints, stride: Ints) -> jax.Array:
    """`part` (N, *extent, C) laid into zeros of spatial shape `size`, from `first` on with `stride` between positions."""
    gaps = []
    for whole, low, step, extent in zip(size, first, stride, part.shape[1:-1], strict=True):
        gaps.append((low, whole - low - ((extent - 1) * step + 1), step - 1))
    return lax.pad(part, lax.full((), 0, part.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])


def _rows(x: jax.Array) -> jax.Array:
    return lax.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


def _across(x: jax.Array, matrix: jax.Array, contracted: int) -> jax.Array:
    """x (..., C) times an (O, I) matrix along its dimension `contracted`."""
    return lax.reshape(contract(_rows(x), matrix, ((1,), (contracted,))), (*x.shape[:-1], matrix.shape[1 - contracted]))


def _offsets_first(weight: jax.Array) -> jax.Array:
    """(O, I, *kernel) as (*kernel, O, I)."""
    return lax.transpose(weight, (*range(2, weight.ndim), 0, 1))


def forward(x: jax.Array, weight: jax.Array, window: Window, out: Ints) -> jax.Array:
    """The convolution itself, (N, *out, O)."""
    ordered = _offsets_first(weight)
    parts = [lax.full((x.shape[0], *out, weight.shape[0]), 0, x.dtype)]
    for tap in taps(x.shape[1:-1], out, weight.shape[2:], window):
        part = _across(_read(x, tap, window), ordered[tap.offset], 1)
        parts.append(_spread(part, out, tap.start, (1,) * len(out)))
    return in_memory(window.program, reduce(lax.add, parts))


def data_gradient(grad: jax.Array, weight: jax.Array, size: Ints, window: Window) -> jax.Array:
    """The gradient of an input of spatial shape `size`, from `grad` (N, *out, O)."""
    ordered = _offsets_first(weight)
    parts = [lax.full((grad.shape[0], *size, weight.shape[1]), 0, grad.dtype)]
    for tap in taps(size, grad.shape[1:-1], weight.shape[2:], window):
        parts.append(_spread(_across(_cut(grad, tap), ordered[tap.offset], 0), size, tap.first, window.stride))
    return in_memory(window.program, reduce(lax.add, parts))


def weight_gradient(x: jax.Array, grad: jax.Array, kernel: Ints, window: Window) -> jax.Array:
    """The gradient of the weight, (O, I, *kernel)."""
    channels = x.shape[-1]
    matrices = {offset: lax.full((grad.shape[-1], channels), 0, x.dtype) for offset in product(*map(range, kernel))}
    for tap in taps(x.shape[1:-1], grad.shape[1:-1], kernel, window):
        read, written = _rows(_read(x, tap, window)), _rows(_cut(grad, tap))
        matrices[tap.offset] = contract(written, read, ((0,), (0,)))
    stacked = lax.concatenate([lax.expand_dims(matrix, (0,)) for matrix in matrices.values()], 0)
    return lax.reshape(lax.transpose(stacked, (1, 2, 0)), (grad.shape[-1], channels, *kernel))

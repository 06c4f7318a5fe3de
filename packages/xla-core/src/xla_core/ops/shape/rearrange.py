"""Rearrange elements: concatenate, repeat, mirror, rotate, split into parts, lay on diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.private_torch import suggested_memory_format
from xla_core.ops.axes import axis, block_along, moved, slice_along
from xla_core.ops.checks import Fault
from xla_core.ops.facts import Autocast
from xla_core.ops.index.search import insertion_points
from xla_core.ops.memory_format import like_input
from xla_core.ops.promote import broadcast, cast, compute_dtype, full
from xla_core.ops.shape.views import VIEWS
from xla_core.ops.table import Context, op

_INT64 = np.dtype(np.int64)


@op("cat", autocast=Autocast.WIDEST)
def _cat(ctx: Context, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """cat(Tensor[] tensors, int dim=0) -> Tensor; empty 1-D tensors are ignored, as torch always did."""
    parts = [cast(x, ctx.dtype) for x in tensors if x.shape != (0,)]
    return lax.concatenate(parts, axis(dim, len(ctx.shape))) if parts else full(0, ctx.shape, ctx.dtype)


@op("stack", autocast=Autocast.WIDEST)
@op("_stack")
def _stack(ctx: Context, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    dim = axis(dim, len(ctx.shape))
    return lax.concatenate([lax.expand_dims(cast(x, ctx.dtype), (dim,)) for x in tensors], dim)


@op("_chunk_cat")
def _chunk_cat(ctx: Context, tensors: Sequence[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    """_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor; each padded to equal chunks, then joined chunk by chunk."""
    dim = axis(dim, tensors[0].ndim)
    parts = []
    for x in tensors:
        missing = -x.shape[dim] % num_chunks
        x = lax.pad(cast(x, ctx.dtype), full(0, (), ctx.dtype), [(0, missing if d == dim else 0, 0) for d in range(x.ndim)])
        parts.append(lax.reshape(x, (*x.shape[:dim], num_chunks, int(np.prod(x.shape[dim:], dtype=np.int64)) // num_chunks)))
    return lax.concatenate(parts, dim + 1)


@op("block_diag")
def _block_diag(ctx: Context, tensors: Sequence[jax.Array]) -> jax.Array:
    """block_diag(Tensor[] tensors) -> Tensor"""
    width, before, rows = ctx.shape[1], 0, []
    for x in tensors:
        block = lax.reshape(cast(x, ctx.dtype), x.shape if x.ndim == 2 else (1, x.size))
        after = width - before - block.shape[1]
        rows.append(lax.pad(block, full(0, (), ctx.dtype), [(0, 0, 0), (before, after, 0)]))
        before += block.shape[1]
    return lax.concatenate(rows, 0)


@op("repeat")
def _repeat(ctx: Context, x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    sizes = (1,) * (len(repeats) - x.ndim) + x.shape
    pairs = [size for pair in zip(repeats, sizes, strict=True) for size in pair]
    places = tuple(2 * dim + 1 for dim in range(len(sizes) - x.ndim, len(sizes)))
    return lax.reshape(lax.broadcast_in_dim(x, pairs, places), ctx.shape)


@op("flip")
def _flip(ctx: Context, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """flip(Tensor self, int[] dims) -> Tensor"""
    return lax.rev(x, [axis(dim, x.ndim) for dim in dims]) if x.ndim else x


def rolled(x: jax.Array, shift: int | jax.Array, dim: int) -> jax.Array:
    """`x` moved by `shift` places along `dim`, in a circle."""
    size = x.shape[dim]
    start = -shift % size if size else 0
    if not isinstance(start, int):
        return block_along(lax.concatenate([x, x], dim), dim, start, size)
    if not start:
        return x
    return lax.concatenate([slice_along(x, dim, start, size), slice_along(x, dim, 0, start)], dim)


def _rolled_shape(x: torch.Tensor, shifts: Any, dims: int | Sequence[int] = ()) -> torch.Tensor:
    """A roll along dimensions is a concatenation of two parts, one of all elements a view of a row."""
    result: torch.Tensor = torch.ops.aten.roll.default(x, shifts, dims)
    return torch.empty_like(result, memory_format=suggested_memory_format(x) if dims or isinstance(dims, int) else torch.contiguous_format)


@op("roll", scalars=("shifts",), shapes=_rolled_shape)
def _roll(ctx: Context, x: jax.Array, shifts: Any, dims: int | Sequence[int] = ()) -> jax.Array:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor; without dims over all elements in a row."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else (shifts,)
    dims = (dims,) if isinstance(dims, int) else dims
    if not dims:
        return lax.reshape(rolled(lax.reshape(x, (x.size,)), shifts[0], 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = rolled(x, shift, axis(dim, x.ndim)) if x.ndim else x
    return x


@op("rot90")
def _rot90(ctx: Context, x: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    """rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor"""
    first, second = (axis(dim, x.ndim) for dim in dims)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    mirrored = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[k % 4]
    x = lax.rev(x, mirrored)
    return lax.transpose(x, order) if k % 2 else x


@op("pixel_shuffle", shapes=like_input("pixel_shuffle.default"))
def _pixel_shuffle(ctx: Context, x: jax.Array, upscale_factor: int) -> jax.Array:
    """pixel_shuffle(Tensor self, int upscale_factor) -> Tensor"""
    r, (channels, height, width) = upscale_factor, x.shape[-3:]
    split = lax.reshape(x, (*x.shape[:-3], channels // r**2, r, r, height, width))
    n = x.ndim - 3
    return lax.reshape(lax.transpose(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2)), ctx.shape)


@op("pixel_unshuffle")
def _pixel_unshuffle(ctx: Context, x: jax.Array, downscale_factor: int) -> jax.Array:
    """pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor"""
    r, (channels, height, width) = downscale_factor, x.shape[-3:]
    split = lax.reshape(x, (*x.shape[:-3], channels, height // r, r, width // r, r))
    n = x.ndim - 3
    return lax.reshape(lax.transpose(split, (*range(n), n, n + 2, n + 4, n + 1, n + 3)), ctx.shape)


@op("channel_shuffle", shapes=like_input("channel_shuffle.default"))
@op("native_channel_shuffle", shapes=like_input("native_channel_shuffle.default"))
def _channel_shuffle(ctx: Context, x: jax.Array, groups: int) -> jax.Array:
    """channel_shuffle(Tensor self, SymInt groups) -> Tensor"""
    batch, channels, *rest = x.shape
    split = lax.reshape(x, (batch, groups, channels // groups, *rest))
    return lax.reshape(moved(split, 2, 1), x.shape)


@op("repeat_interleave.Tensor")
def _repeat_interleave(ctx: Context, repeats: jax.Array, *, output_size: int | None = None) -> jax.Array:
    """repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor; only with output_size is its shape known."""
    total = lax.reduce_sum(cast(repeats, _INT64), (0,))
    ctx.check(Fault.REPEATS, lax.ne(total, lax.full_like(total, ctx.shape[0])), total, ctx.shape[0])
    ends = lax.cumsum(cast(repeats, _INT64), 0)
    places = lax.broadcasted_iota(_INT64, (1, *ctx.shape), 1)
    return cast(lax.reshape(insertion_points(lax.reshape(ends, (1, ends.size)), places, True), ctx.shape), ctx.dtype)


def _parts(x: jax.Array, dim: int, sizes: Sequence[int]) -> list[jax.Array]:
    stops = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    return [slice_along(x, dim, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


@op("split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(ctx: Context, x: jax.Array, split_sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    """split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]"""
    return _parts(x, axis(dim, x.ndim), split_sizes)


@op("split_copy.Tensor", "unsafe_split.Tensor")
def _split(ctx: Context, x: jax.Array, split_size: int, dim: int = 0) -> list[jax.Array]:
    """split_copy.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]"""
    dim = axis(dim, x.ndim)
    return _parts(x, dim, [part.shape[dim] for part in ctx.out if part is not None])


@op("unbind_copy.int")
def _unbind(ctx: Context, x: jax.Array, dim: int = 0) -> list[jax.Array]:
    """unbind_copy.int(Tensor self, int dim=0) -> Tensor[]"""
    dim = axis(dim, x.ndim)
    return [lax.index_in_dim(x, index, dim, keepdims=False) for index in range(x.shape[dim])]


@op("narrow_copy")
def _narrow(ctx: Context, x: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    """narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor"""
    dim = axis(dim, x.ndim)
    start = start + x.shape[dim] if start < 0 else start
    return slice_along(x, dim, start, start + length)


@op("diag_embed")
def _diag_embed(ctx: Context, x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    """diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor"""
    return VIEWS["diagonal"].write(full(0, ctx.shape, ctx.dtype), x, offset, dim1, dim2)


@op("linalg_cross")
def _cross(ctx: Context, a: jax.Array, b: jax.Array, *, dim: int = -1) -> jax.Array:
    """linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor"""
    a, b = broadcast(*(cast(cast(x, ctx.dtype), compute_dtype(ctx.dtype)) for x in (a, b)))
    dim = axis(dim, a.ndim)
    ahead = lax.mul(rolled(a, -1, dim), rolled(b, -2, dim))
    return cast(lax.sub(ahead, lax.mul(rolled(a, -2, dim), rolled(b, -1, dim))), ctx.dtype)

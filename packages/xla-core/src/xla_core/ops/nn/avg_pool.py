"""Average pooling, plain and adaptive, with gradients: sums along one dimension after the other, then one division."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import is_open
from xla_core.ops.facts import HALF
from xla_core.ops.nn.max_pool import bins, take
from xla_core.ops.nn.windows import (
    Slide,
    at_offset,
    at_once,
    channels_first,
    channels_last,
    of_rank,
    over_input,
    padded,
    reduced,
    slides,
    starts,
)
from xla_core.ops.promote import cast, compute_dtype, full
from xla_core.ops.table import Context, op

# From so many summands on, a window is summed by XLA's own loop instead of slice by slice; slices of open sizes are long programs, too.
_SLICES = 16


def _sum_along(x: jax.Array, slide: Slide) -> jax.Array:
    """The sum of each window along one dimension."""
    x = padded(x, slide, 0)
    if slide.out == 1 and slide.dilation == 1:
        whole = lax.slice_in_dim(x, 0, slide.kernel, axis=slide.axis)
        return lax.expand_dims(lax.reduce_sum(whole, (slide.axis,)), (slide.axis,))
    if slide.kernel > _SLICES or is_open(slide.out):
        sizes, steps = ([n if i == slide.axis else 1 for i in range(x.ndim)] for n in (slide.kernel, slide.stride))
        part = lax.slice_in_dim(x, 0, (slide.out - 1) * slide.stride + slide.reach, axis=slide.axis)
        summed: jax.Array = lax.reduce_window(part, np.zeros((), x.dtype), lax.add, sizes, steps, "VALID")
        return summed
    total = at_offset(x, slide, 0)
    for offset in range(1, slide.kernel):
        total = total + at_offset(x, slide, offset)
    return total


def _sums(x: jax.Array, windows: list[Slide]) -> jax.Array:
    return reduced(x, windows, 0, lax.add)


def _spread_along(grad: jax.Array, slide: Slide) -> jax.Array:
    """Each input position's sum over the windows that cover it, along one dimension."""
    total = None
    for back in range(slide.overlap):
        part = over_input(grad, slide, back, 0)
        inside = (np.arange(slide.size) + slide.padding) % slide.stride + back * slide.stride < slide.kernel
        if not inside.all():
            kept = lax.broadcast_in_dim(inside, part.shape, (slide.axis,))
            part = lax.select(kept, part, lax.full_like(part, 0))
        total = part if total is None else total + part
    return grad if total is None else total


def _divided(total: jax.Array, windows: list[Slide], include_pad: bool, override: int | None) -> jax.Array:
    """`total` divided by how many positions each window counts."""
    if override is not None:
        return lax.div(total, full(override, total.shape, total.dtype))
    counts = _counts(windows, include_pad, total.ndim)
    if isinstance(counts, np.ndarray) and (counts == counts.flat[0]).all():
        return lax.div(total, full(int(counts.flat[0]), total.shape, total.dtype))
    return lax.div(total, jax.numpy.broadcast_to(counts.astype(total.dtype), total.shape))


def _counts(windows: list[Slide], include_pad: bool, ndim: int) -> np.ndarray | jax.Array:
    """The number of positions of each window, broadcastable to arrays of `ndim` dimensions."""
    counts: np.ndarray | jax.Array = np.ones((1,) * ndim, np.int64)
    for slide in windows:
        start = starts(slide)
        numbers: Any = jax.numpy if isinstance(start, jax.Array) else np
        past = numbers.minimum(start + slide.kernel, numbers.asarray(slide.size + slide.padding))
        if not include_pad:
            start, past = numbers.maximum(start, 0), numbers.minimum(past, numbers.asarray(slide.size))
        counts = counts * (past - start).reshape([-1 if i == slide.axis else 1 for i in range(ndim)])
    return counts


def avg_pool(
    ctx: Context,
    rank: int,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    """avg_pool2d(self, kernel_size, stride=[], padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None)"""
    windows = slides(rank, x.shape, ctx.shape, kernel_size, stride, padding)
    wide = cast(x, compute_dtype(ctx.dtype))
    if at_once(ctx, x, windows):
        total = channels_last(_sums(wide, windows), rank)
    else:
        total = channels_last(wide, rank)
        for slide in reversed(windows):
            total = _sum_along(total, slide)
    return channels_first(cast(_divided(total, windows, count_include_pad, divisor_override), ctx.dtype), rank)


def avg_pool_backward(
    ctx: Context,
    rank: int,
    grad: jax.Array,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> jax.Array:
    """avg_pool2d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, int? divisor_override)"""
    windows = slides(rank, x.shape, grad.shape, kernel_size, stride, padding)
    total = channels_last(cast(grad, compute_dtype(ctx.dtype)), rank)
    total = _divided(total, windows, count_include_pad, divisor_override)
    if grad.size and at_once(ctx, x, windows):
        spread = jax.linear_transpose(lambda values: _sums(values, windows), jax.ShapeDtypeStruct(x.shape, total.dtype))
        return cast(spread(channels_first(total, rank))[0], ctx.dtype)
    for slide in windows:
        total = _spread_along(total, slide)
    return channels_first(cast(total, ctx.dtype), rank)


def _bin_sums(x: jax.Array, axis: int, out: int) -> jax.Array:
    """The sum of each adaptive bin along one dimension."""
    size = x.shape[axis]
    if size % out == 0:
        split = lax.reshape(x, (*x.shape[:axis], out, size // out, *x.shape[axis + 1 :]))
        return lax.reduce_sum(split, (axis + 1,))
    first, past = bins(size, out)
    return _masked_takes(x, axis, first, past)


def _bin_spread(grad: jax.Array, axis: int, size: int) -> jax.Array:
    """For each of `size` positions along one dimension, the sum over the bins that hold it."""
    out = grad.shape[axis]
    # Position h is in bin b when b * size // out <= h < ceil((b + 1) * size / out).
    first = np.arange(size) * out // size
    past = -(-(np.arange(size) + 1) * out // size)
    return _masked_takes(grad, axis, first, past)


def _masked_takes(x: jax.Array, axis: int, first: np.ndarray, past: np.ndarray) -> jax.Array:
    """For each row of known bounds, the sum of x[first:past] along `axis`."""
    total = None
    for offset in range(int((past - first).max())):
        inside = first + offset < past
        part = take(x, np.minimum(first + offset, x.shape[axis] - 1), axis)
        if not inside.all():
            part = lax.select(lax.broadcast_in_dim(inside, part.shape, (axis,)), part, lax.full_like(part, 0))
        total = part if total is None else total + part
    return x if total is None else total


def _bin_counts(size: tuple[int, ...], out: tuple[int, ...], ndim: int) -> np.ndarray:
    """The number of positions of each adaptive bin, broadcastable to arrays of `ndim` dimensions."""
    counts = np.ones((1,) * ndim, np.int64)
    for number, (whole, parts) in enumerate(zip(size, out, strict=True)):
        first, past = bins(whole, parts)
        axis = ndim - len(size) + number
        counts = counts * (past - first).reshape([-1 if i == axis else 1 for i in range(ndim)])
    return counts


def _over_counts(x: jax.Array, size: tuple[int, ...], out: tuple[int, ...]) -> jax.Array:
    counts = jax.numpy.broadcast_to(_bin_counts(size, out, x.ndim).astype(x.dtype), x.shape)
    return lax.div(x, counts)


@op("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(ctx: Context, x: jax.Array, output_size: Sequence[int]) -> jax.Array:
    """_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    rank = len(output_size)
    total = channels_last(cast(x, compute_dtype(ctx.dtype)), rank)
    for axis in range(x.ndim - 1, x.ndim - 1 - rank, -1):
        total = _bin_sums(total, axis - 1, ctx.shape[axis])
    return cast(_over_counts(channels_first(total, rank), x.shape[-rank:], ctx.shape[-rank:]), ctx.dtype)


def adaptive_avg_pool_backward(ctx: Context, rank: int, grad: jax.Array, x: jax.Array) -> jax.Array:
    """_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor"""
    if 0 in (*grad.shape, *ctx.shape):
        return lax.full(ctx.shape, 0, ctx.dtype)
    total = _over_counts(cast(grad, compute_dtype(ctx.dtype)), x.shape[-rank:], grad.shape[-rank:])
    total = channels_last(total, rank)
    for axis in range(x.ndim - rank, x.ndim):
        total = _bin_spread(total, axis - 1, x.shape[axis])
    return channels_first(cast(total, ctx.dtype), rank)


for _rank in (2, 3):
    _beyond = HALF if _rank == 3 else frozenset()
    op(f"avg_pool{_rank}d", beyond_cpu=_beyond)(of_rank(_rank, avg_pool))
    op(f"avg_pool{_rank}d_backward", beyond_cpu=_beyond)(of_rank(_rank, avg_pool_backward))
    op(f"_adaptive_avg_pool{_rank}d_backward")(of_rank(_rank, adaptive_avg_pool_backward))

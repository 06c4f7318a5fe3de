"""Sliding windows along one dimension: reading them, and laying what belongs to them back over the input. Registers nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import has_open_sizes, is_open, larger, moved
from xla_core.ops.nn.conv.shape import spatial_arguments
from xla_core.ops.promote import Number
from xla_core.ops.table import Context, Lowering


@dataclass(frozen=True, slots=True)
class Slide:
    """Windows along one dimension of an array: `out` windows over `size` positions."""

    axis: int
    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Positions from the first to the last that one window covers."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overlap(self) -> int:
        """In how many windows a position can be, at most."""
        return -(-self.reach // self.stride)


def of_rank(rank: int, lowering: Lowering) -> Lowering:
    """`lowering(ctx, rank, ...)` for one number of spatial dimensions."""

    @functools.wraps(lowering)
    def lower(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        return lowering(ctx, rank, *args, **kwargs)

    lower.__doc__ = (lowering.__doc__ or "").replace("2", str(rank))
    return lower


def slides(
    rank: int,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> list[Slide]:
    """The windows along each spatial dimension of `shape`, (…, C, *spatial), for arrays with the channels last.

    An empty stride means the kernel's size.
    """
    columns = spatial_arguments(rank, kernel, stride or kernel, padding, dilation)
    first = len(shape) - rank - 1
    rows = zip(shape[-rank:], out[-rank:], *columns, strict=True)
    return [Slide(first + number, *row) for number, row in enumerate(rows)]


def channels_last(x: jax.Array, rank: int) -> jax.Array:
    """(…, C, *spatial) as (…, *spatial, C): as convolutions leave it in memory, and vectorised whatever the stride."""
    return moved(x, x.ndim - rank - 1, x.ndim - 1)


def channels_first(x: jax.Array, rank: int) -> jax.Array:
    """The inverse."""
    return moved(x, x.ndim - 1, x.ndim - rank - 1)


def _past(slide: Slide) -> int:
    """By how much the windows reach past the end."""
    return larger((slide.out - 1) * slide.stride + slide.reach - slide.size - slide.padding, 0)


def padded(x: jax.Array, slide: Slide, value: Number) -> jax.Array:
    """`x` with `value` around it wherever a window reaches past the ends."""
    gaps = [(slide.padding, _past(slide), 0) if i == slide.axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, np.asarray(value, x.dtype), gaps)


def at_offset(x: jax.Array, slide: Slide, offset: int) -> jax.Array:
    """The elements of all windows at kernel position `offset`; `x` is padded already."""
    start = offset * slide.dilation
    return lax.slice_in_dim(x, start, start + (slide.out - 1) * slide.stride + 1, slide.stride, slide.axis)


def over_input(x: jax.Array, slide: Slide, back: int, value: Number) -> jax.Array:
    """For each input position, the entry of the `back`-th window before the last one that starts at or before it; else `value`."""
    axis, stride = slide.axis, slide.stride
    windows = -(-(slide.size + slide.padding) // stride)
    gaps = [(back, windows - back - x.shape[axis], 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    moved = lax.pad(x, np.asarray(value, x.dtype), gaps)
    if stride > 1:
        spaced = (*moved.shape[: axis + 1], stride, *moved.shape[axis + 1 :])
        repeated = lax.broadcast_in_dim(moved, spaced, [i if i <= axis else i + 1 for i in range(x.ndim)])
        moved = lax.reshape(repeated, (*moved.shape[:axis], windows * stride, *moved.shape[axis + 1 :]))
    return lax.slice_in_dim(moved, slide.padding, slide.padding + slide.size, axis=axis)


def at_once(ctx: Context, x: jax.Array, windows: Sequence[Slide]) -> bool:
    """Whether windows are to be reduced along all dimensions at once, by XLA's own reduction: on TPUs, whose memory is laid out in tiles
    that slices with strides cut through. By the compiler's estimate it takes a half to a tenth of the time on a v5e.
    """
    return ctx.platform == "tpu" and x.size > 0 and not has_open_sizes(x) and any(slide.out > 1 for slide in windows)


def reduced(x: jax.Array, windows: Sequence[Slide], start: Number, reducer: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """All windows of `x` (…, C, *spatial), channels first, reduced along all dimensions at once; what is around `x` is `start`."""
    lead = [1] * (x.ndim - len(windows))
    sizes, strides = [*lead, *[slide.kernel for slide in windows]], [*lead, *[slide.stride for slide in windows]]
    gaps = [*[(0, 0) for _ in lead], *[(slide.padding, _past(slide)) for slide in windows]]
    result: jax.Array = lax.reduce_window(x, np.asarray(start, x.dtype), reducer, sizes, strides, gaps)
    return result


def position(shape: tuple[int, ...], axis: int, dtype: np.dtype) -> jax.Array:
    """Each entry's index along `axis`."""
    return lax.broadcasted_iota(dtype, shape, axis)


def starts(slide: Slide) -> np.ndarray | jax.Array:
    """Where each window begins in the input: known numbers, or those of the program where an exported one leaves their number open."""
    windows = lax.iota(np.int64, slide.out) if is_open(slide.out) else np.arange(slide.out)
    return windows * slide.stride - slide.padding


def index_dtype(shape: Sequence[int]) -> np.dtype:
    """The narrow integer dtype that counts the positions of `shape`: 32-bit arithmetic is twice as fast."""
    narrow = not any(map(is_open, shape)) and np.prod(shape, dtype=np.int64) < 2**31
    return np.dtype(np.int32 if narrow else np.int64)

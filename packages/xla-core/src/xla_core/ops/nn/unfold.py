"""im2col and col2im: the windows of an image as columns, and columns added up to an image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import jax
from jax import lax

from xla_core.ops.nn.conv.shape import spatial_arguments
from xla_core.ops.nn.windows import Slide, at_offset, padded
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op


def _slides(
    size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> list[Slide]:
    """The windows along the last two dimensions of a (N, C, H, W) image."""
    columns = zip(*spatial_arguments(2, size, kernel, stride, padding, dilation), strict=True)
    found = []
    for number, (whole, k, step, pad, gap) in enumerate(columns):
        out = (whole + 2 * pad - gap * (k - 1) - 1) // step + 1
        found.append(Slide(2 + number, whole, out, k, step, pad, gap))
    return found


@op("im2col")
def im2col(
    ctx: Context, x: jax.Array, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> jax.Array:
    """im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor: (N, C * kernel, windows)"""
    image = x if x.ndim == 4 else lax.expand_dims(x, (0,))
    windows = _slides(image.shape[2:], kernel_size, dilation, padding, stride)
    for slide in windows:
        image = padded(image, slide, 0)
    parts = []
    for offsets in product(*(range(slide.kernel) for slide in windows)):
        part = image
        for slide, offset in zip(windows, offsets, strict=True):
            part = at_offset(part, slide, offset)
        parts.append(lax.expand_dims(part, (2,)))
    return lax.reshape(lax.concatenate(parts, 2), ctx.shape)


@op("col2im")
def col2im(
    ctx: Context,
    columns: jax.Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"""
    windows = _slides(output_size, kernel_size, dilation, padding, stride)
    kernel, out = [slide.kernel for slide in windows], [slide.out for slide in windows]
    batch = columns.shape[0] if columns.ndim == 3 else 1
    channels = columns.shape[-2] // prod(kernel)
    wide = cast(columns, compute_dtype(ctx.dtype))
    split = lax.reshape(wide, (batch, channels, *kernel, *out))
    total = lax.full((batch, channels, *(slide.size for slide in windows)), 0, wide.dtype)
    for offsets in product(*map(range, kernel)):
        part = lax.squeeze(lax.slice(split, (0, 0, *offsets, 0, 0), (batch, channels, *(o + 1 for o in offsets), *out)), (2, 3))
        gaps = []
        for slide, offset in zip(windows, offsets, strict=True):
            low = offset * slide.dilation - slide.padding
            gaps.append((low, slide.size - low - ((slide.out - 1) * slide.stride + 1), slide.stride - 1))
        total = lax.add(total, lax.pad(part, lax.full((), 0, wide.dtype), [(0, 0, 0), (0, 0, 0), *gaps]))
    return lax.reshape(cast(total, ctx.dtype), ctx.shape)

"""grid_sample and affine_grid: images read at computed places, and the gradients of image and places."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import product
from math import prod

import jax
import numpy as np
from jax import lax

from xla_core.ops.nn.windows import of_rank
from xla_core.ops.promote import cast, compute_dtype, full
from xla_core.ops.table import Context, op


class Interpolation(IntEnum):
    """torch's numbers for `mode`."""

    BILINEAR = 0
    NEAREST = 1
    BICUBIC = 2


class Padding(IntEnum):
    """torch's numbers for `padding_mode`."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


def _reflected(x: jax.Array, low: float, high: float) -> jax.Array:
    """Coordinates folded back at both ends until they are inside."""
    if high <= low:
        return lax.full_like(x, 0)
    span = high - low
    distance = lax.abs(x - low)
    rest = lax.rem(distance, full(span, x.shape, x.dtype))
    turns = lax.floor(distance / span)
    even = lax.eq(lax.rem(turns, full(2, x.shape, x.dtype)), lax.full_like(x, 0))
    return lax.select(even, rest + low, span - rest + low)


def _padded(x: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    """Coordinates moved inside as the padding mode says."""
    if padding == Padding.REFLECTION:
        x = _reflected(x, 0, size - 1) if align_corners else _reflected(x, -0.5, size - 0.5)
    if padding != Padding.ZEROS:
        x = lax.clamp(full(0, (), x.dtype), x, full(size - 1, (), x.dtype))
    return x


def _pixels(grid: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Coordinates in [-1, 1] as positions along a dimension of `size`."""
    return (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2


def _read(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """image (N, C, *size) at whole positions (N, points) per dimension, (N, C, points); zero outside."""
    size = image.shape[2:]
    flat = lax.reshape(image, (*image.shape[:2], prod(size)))
    index = lax.full(places[0].shape, 0, np.int32)
    inside = lax.full(places[0].shape, True, np.bool_)
    for place, whole in zip(places, size, strict=True):
        inside = lax.bitwise_and(inside, lax.bitwise_and(place >= 0, place <= whole - 1))
        held = lax.clamp(full(0, (), place.dtype), place, full(whole - 1, (), place.dtype))
        index = index * whole + lax.convert_element_type(lax.stop_gradient(held), np.int32)
    values = jax.numpy.take_along_axis(flat, lax.expand_dims(index, (1,)), axis=2, mode="clip")
    kept = lax.broadcast_in_dim(inside, values.shape, (0, 2))
    return lax.select(kept, values, lax.full_like(values, 0))


def _weighted(image: jax.Array, places: Sequence[jax.Array], weight: jax.Array) -> jax.Array:
    values = _read(image, places)
    return values * lax.broadcast_in_dim(weight, values.shape, (0, 2))


def _linear(image: jax.Array, coordinates: Sequence[jax.Array]) -> jax.Array:
    """Weighted mean of the positions around each point."""
    low = [lax.stop_gradient(lax.floor(x)) for x in coordinates]
    total = None
    for corner in product((0, 1), repeat=len(coordinates)):
        weight = lax.full_like(coordinates[0], 1)
        for upper, x, base in zip(corner, coordinates, low, strict=True):
            weight = weight * (x - base if upper else 1 - (x - base))
        part = _weighted(image, [base + upper for base, upper in zip(low, corner, strict=True)], weight)
        total = part if total is None else total + part
    return image if total is None else total


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """Weights of the four positions around a point that is `t` past the second."""
    a = -0.75
    weights = []
    for distance, far in ((t + 1, True), (t, False), (1 - t, False), (2 - t, True)):
        if far:
            weights.append(((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a)
        else:
            weights.append(((a + 2) * distance - (a + 3)) * distance * distance + 1)
    return weights


def _cubic(image: jax.Array, coordinates: Sequence[jax.Array], padding: int, align_corners: bool) -> jax.Array:
    """Bicubic: 4 x 4 positions, each moved inside by itself."""
    low = [lax.stop_gradient(lax.floor(x)) for x in coordinates]
    weights = [_cubic_weights(x - base) for x, base in zip(coordinates, low, strict=True)]
    total = None
    for offsets in product(range(4), repeat=len(coordinates)):
        places, weight = [], lax.full_like(coordinates[0], 1)
        for axis, offset in enumerate(offsets):
            places.append(_padded(low[axis] + (offset - 1), image.shape[2 + axis], padding, align_corners))
            weight = weight * weights[axis][offset]
        part = _weighted(image, places, weight)
        total = part if total is None else total + part
    return image if total is None else total


def _sample(image: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    """image (N, C, *size) read at grid (N, *out, rank), whose last dimension counts from the last dimension of the image."""
    rank, out = image.ndim - 2, grid.shape[1:-1]
    flat = lax.reshape(grid, (grid.shape[0], prod(out), rank))
    coordinates = []
    for axis in range(rank):
        column = lax.index_in_dim(flat, rank - 1 - axis, 2, keepdims=False)
        coordinates.append(_pixels(column, image.shape[2 + axis], align_corners))
    if mode == Interpolation.BICUBIC:
        values = _cubic(image, coordinates, padding, align_corners)
    else:
        inside = [_padded(x, size, padding, align_corners) for x, size in zip(coordinates, image.shape[2:], strict=True)]
        if mode == Interpolation.NEAREST:
            values = _read(image, [lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) for x in inside])
        else:
            values = _linear(image, inside)
    return lax.reshape(values, (*image.shape[:2], *out))


def grid_sampler(
    ctx: Context, rank: int, x: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""
    dtype = compute_dtype(ctx.dtype)
    return cast(_sample(cast(x, dtype), cast(grid, dtype), interpolation_mode, padding_mode, align_corners), ctx.dtype)


def grid_sampler_backward(
    ctx: Context,
    rank: int,
    grad: jax.Array,
    x: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None]:
    """grid_sampler_2d_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, bool[2] output_mask)"""
    dtype = compute_dtype(x.dtype)

    def sample(image: jax.Array, places: jax.Array) -> jax.Array:
        return _sample(image, places, interpolation_mode, padding_mode, align_corners)

    _, back = jax.vjp(sample, cast(x, dtype), cast(grid, dtype))
    to_x, to_grid = back(cast(grad, dtype))
    return (
        cast(to_x, np.dtype(x.dtype)) if output_mask[0] and ctx.out[0] is not None else None,
        cast(to_grid, np.dtype(grid.dtype)) if ctx.out[1] is not None else None,
    )


for _rank in (2, 3):
    op(f"grid_sampler_{_rank}d")(of_rank(_rank, grid_sampler))
    op(f"grid_sampler_{_rank}d_backward")(of_rank(_rank, grid_sampler_backward))


@op("affine_grid_generator")
def affine_grid_generator(ctx: Context, theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    """affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"""
    out = tuple(size[2:])
    dtype = compute_dtype(ctx.dtype)
    columns = []
    for axis in reversed(range(len(out))):
        steps = np.linspace(-1, 1, out[axis]) if out[axis] > 1 else np.zeros(out[axis])
        steps = steps if align_corners else steps * (out[axis] - 1) / out[axis]
        columns.append(lax.broadcast_in_dim(steps.astype(dtype), out, (axis,)))
    base = lax.concatenate([lax.expand_dims(c, (len(out),)) for c in [*columns, lax.full(out, 1, dtype)]], len(out))
    places = lax.reshape(base, (prod(out), len(out) + 1))
    moved = lax.dot_general(cast(theta, dtype), places, (((2,), (1,)), ((), ())))
    return lax.reshape(cast(lax.transpose(moved, (0, 2, 1)), ctx.dtype), ctx.shape)

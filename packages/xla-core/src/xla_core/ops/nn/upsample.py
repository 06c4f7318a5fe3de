"""Interpolation of images and signals (nearest, linear, cubic, antialiased), one dimension after the other, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.facts import HALF
from xla_core.ops.nn import resample_weights
from xla_core.ops.nn.max_pool import take
from xla_core.ops.nn.resample_weights import Blend
from xla_core.ops.promote import cast, compute_dtype, full, is_integral
from xla_core.ops.table import Context, op

# Blend of one dimension: (size, out, align_corners, scale, dtype of the coordinates).
Method = Callable[[int, int, bool, float | None, type[np.floating]], Blend]


def _real(dtype: np.dtype) -> type[np.floating]:
    """The type in which torch computes coordinates: that of the values, float32 for half precision and integers."""
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def _blend(x: jax.Array, axis: int, blend: Blend) -> jax.Array:
    """One dimension interpolated."""
    total = None
    for tap, index in enumerate(blend.index):
        part = _taken(x, index, axis)
        if blend.weight is not None:
            part = lax.mul(part, lax.broadcast_in_dim(blend.weight[tap].astype(x.dtype), part.shape, (axis,)))
        total = part if total is None else lax.add(total, part)
    return x if total is None else total


def _repeats(index: np.ndarray, size: int) -> int:
    """The number of repeats of each input position in line, 0 if the index is no such repetition."""
    times = len(index) // size if size else 0
    return times if times and len(index) == times * size and (index == np.arange(len(index)) // times).all() else 0


def _taken(x: jax.Array, index: np.ndarray, axis: int) -> jax.Array:
    times = _repeats(index, x.shape[axis])
    if times <= 1:
        return x if times else take(x, index, axis)
    repeated = lax.broadcast_in_dim(
        x, (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]), [i if i <= axis else i + 1 for i in range(x.ndim)]
    )
    return lax.reshape(repeated, (*x.shape[:axis], times * x.shape[axis], *x.shape[axis + 1 :]))


def _unblend(grad: jax.Array, axis: int, size: int, blend: Blend) -> jax.Array:
    """The gradient of the `size` input positions of one interpolated dimension."""
    times = _repeats(blend.index[0], size) if blend.weight is None else 0
    if times:
        split = lax.reshape(grad, (*grad.shape[:axis], size, times, *grad.shape[axis + 1 :]))
        return lax.reduce_sum(split, (axis + 1,))
    total = lax.full((*grad.shape[:axis], size, *grad.shape[axis + 1 :]), 0, grad.dtype)
    where = (slice(None),) * axis
    for tap, index in enumerate(blend.index):
        part = grad
        if blend.weight is not None:
            part = lax.mul(part, lax.broadcast_in_dim(blend.weight[tap].astype(grad.dtype), part.shape, (axis,)))
        total = total.at[(*where, index)].add(part, mode="drop")
    return total


def _forward(ctx: Context, x: jax.Array, method: Method, align_corners: bool, scales: Sequence[float | None]) -> jax.Array:
    rank, integral = len(scales), is_integral(ctx.dtype)
    first = x.ndim - rank
    blends = [method(x.shape[first + i], ctx.shape[first + i], align_corners, scales[i], _real(x.dtype)) for i in range(rank)]
    averaged = any(blend.weight is not None for blend in blends)
    wide = cast(x, np.dtype(np.float32) if integral and averaged else compute_dtype(ctx.dtype))
    for number in reversed(range(rank)):
        wide = _blend(wide, first + number, blends[number])
        if integral and averaged:  # torch stores each pass in the image's own dtype
            wide = _rounded(wide, ctx.dtype)
    return cast(wide, ctx.dtype)


def _rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Rounded to integers that `dtype` can hold."""
    limits = np.iinfo(dtype)
    whole = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    return lax.clamp(full(int(limits.min), (), x.dtype), whole, full(int(limits.max), (), x.dtype))


def _backward(ctx: Context, grad: jax.Array, method: Method, align_corners: bool, scales: Sequence[float | None]) -> jax.Array:
    wide, rank = cast(grad, compute_dtype(ctx.dtype)), len(scales)
    for number in range(rank):
        axis = grad.ndim - rank + number
        blend = method(ctx.shape[axis], grad.shape[axis], align_corners, scales[number], _real(grad.dtype))
        wide = _unblend(wide, axis, ctx.shape[axis], blend)
    return cast(wide, ctx.dtype)


def _scales(rank: int, given: Sequence[float | None]) -> list[float | None]:
    return [*given, *[None] * (rank - len(given))]


def _register_nearest(name: str, rank: int, exact: bool) -> None:
    def method(size: int, out: int, align_corners: bool, scale: float | None, real: type[np.floating]) -> Blend:
        return resample_weights.nearest(size, out, scale, exact, real)

    def forward(ctx: Context, x: jax.Array, output_size: Sequence[int], *scales: float | None) -> jax.Array:
        return _forward(ctx, x, method, False, _scales(rank, scales))

    def backward(ctx: Context, grad: jax.Array, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None) -> jax.Array:
        return _backward(ctx, grad, method, False, _scales(rank, scales))

    forward.__doc__ = f"{name}(Tensor self, SymInt[{rank}] output_size, float? scales...) -> Tensor"
    backward.__doc__ = f"{name}_backward(grad_output, SymInt[{rank}] output_size, input_size, float? scales...) -> Tensor"
    op(name)(forward)
    op(f"{name}_backward")(backward)


def _register_blended(name: str, rank: int, method: Method, beyond_cpu: frozenset[torch.dtype] = frozenset()) -> None:
    def forward(ctx: Context, x: jax.Array, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> jax.Array:
        return _forward(ctx, x, method, align_corners, _scales(rank, scales))

    def backward(
        ctx: Context, grad: jax.Array, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> jax.Array:
        return _backward(ctx, grad, method, align_corners, _scales(rank, scales))

    forward.__doc__ = f"{name}(Tensor self, SymInt[{rank}] output_size, bool align_corners, float? scales...) -> Tensor"
    backward.__doc__ = f"{name}_backward(grad_output, output_size, input_size, bool align_corners, float? scales...) -> Tensor"
    op(name, beyond_cpu=beyond_cpu)(forward)
    op(f"{name}_backward", beyond_cpu=beyond_cpu)(backward)


def _antialiased(kind: str) -> Method:
    def method(size: int, out: int, align_corners: bool, scale: float | None, real: type[np.floating]) -> Blend:
        return resample_weights.antialiased(size, out, align_corners, scale, kind, real)

    return method


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", _rank, exact=False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", _rank, exact=True)
_register_blended("upsample_linear1d", 1, resample_weights.linear)
_register_blended("upsample_bilinear2d", 2, resample_weights.linear)
_register_blended("upsample_trilinear3d", 3, resample_weights.linear)
_register_blended("upsample_bicubic2d", 2, resample_weights.cubic)
for _kind in resample_weights.ANTIALIASED:
    _register_blended(f"_upsample_{_kind}2d_aa", 2, _antialiased(_kind), HALF)

"""Max pooling with indices, plain, adaptive and fractional, its gradients, and unpooling.

Windows are taken one dimension after the other, as slices and comparisons: they vectorise, and indices that nobody reads vanish.
Gradients look each position up in the few windows that cover it, because XLA:CPU's own select-and-scatter is a hundred times slower.
TPUs have instructions of their own for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.checks import Fault, outside
from xla_core.ops.facts import Autocast
from xla_core.ops.memory_format import like_input
from xla_core.ops.nn.conv.shape import spatial_arguments
from xla_core.ops.nn.windows import (
    Slide,
    at_offset,
    at_once,
    channels_first,
    channels_last,
    index_dtype,
    of_rank,
    over_input,
    padded,
    position,
    reduced,
    slides,
    starts,
)
from xla_core.ops.promote import cast, compute_dtype, is_float, lowest
from xla_core.ops.table import Context, Lowering, op, without_lowering

Pair = tuple[jax.Array, jax.Array]
# With more covering windows than this a scatter is faster than looking each of them up.
_LOOKUPS = 4


def _better(value: jax.Array, best: jax.Array) -> jax.Array:
    """The mask of positions at which torch's loop would move on to `value`: when it is larger, and at each NaN."""
    larger = lax.gt(value, best)
    return lax.bitwise_or(larger, lax.ne(value, value)) if is_float(value.dtype) else larger


def _first_inside(slide: Slide, offset: int) -> np.ndarray | jax.Array | None:
    """For which windows `offset` is the first kernel position inside the input, having padding before it; None for none."""
    if offset == 0 or slide.padding == 0:
        return None
    where = starts(slide) + offset * slide.dilation
    first = (where >= 0) & (where < slide.dilation)
    return first if isinstance(first, jax.Array) or first.any() else None


def _max_along(value: jax.Array, index: jax.Array | None, slide: Slide, inner: int) -> Pair:
    """Maximum of each window along one dimension, and its flat index (`inner` positions per step of this dimension)."""
    narrow = index_dtype((slide.size, inner))
    value = padded(value, slide, lowest(np.dtype(value.dtype)))
    index = None if index is None else padded(index, slide, 0)
    best = best_index = None
    for offset in range(slide.kernel):
        here = at_offset(value, slide, offset)
        start = offset * slide.dilation - slide.padding
        where = (position(here.shape, slide.axis, narrow) * slide.stride + start) * jax.numpy.asarray(inner, narrow)
        if index is not None:
            where = where + at_offset(index, slide, offset)
        if best is None or best_index is None:
            best, best_index = here, where
            continue
        moved, forced = _better(here, best), _first_inside(slide, offset)
        if forced is not None:
            moved = lax.bitwise_or(moved, lax.broadcast_in_dim(forced, moved.shape, (slide.axis,)))
        best, best_index = lax.max(best, here), lax.select(moved, where, best_index)
    if best is None or best_index is None:
        raise ValueError("a pooling window has no positions")
    return best, best_index


def _at_once(ctx: Context, x: jax.Array, windows: Sequence[Slide]) -> bool:
    """Also for the gradient, which is of the first of equal elements, as `indices` are; after a NaN in its window it is of another one."""
    return all(slide.dilation == 1 for slide in windows) and is_float(np.dtype(x.dtype)) and at_once(ctx, x, windows)


def _maxima(x: jax.Array, windows: Sequence[Slide]) -> jax.Array:
    return reduced(x, windows, lowest(np.dtype(x.dtype)), lax.max)


def max_pool(
    ctx: Context,
    rank: int,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Pair:
    """max_pool2d_with_indices(self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False)"""
    windows = slides(rank, x.shape, ctx.shape, kernel_size, stride, padding, dilation)
    value, index = _with_indices(x, windows)
    return _maxima(x, windows) if _at_once(ctx, x, windows) else value, index


def _with_indices(x: jax.Array, windows: Sequence[Slide]) -> Pair:
    value, index, inner = channels_last(x, len(windows)), None, 1
    for slide in reversed(windows):
        value, index = _max_along(value, index, slide, inner)
        inner *= slide.size
    index = cast(value if index is None else index, np.dtype(np.int64))
    return channels_first(value, len(windows)), channels_first(index, len(windows))


def _scatter(grad: jax.Array, index: jax.Array, shape: tuple[int, ...], rank: int, *, replace: bool = False) -> jax.Array:
    """Values added up, or put, at flat indices into the last `rank` dimensions of `shape`."""
    rows, columns = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    flat = lax.reshape(index, (rows, index.size // max(rows, 1), 1))
    numbers = lax.ScatterDimensionNumbers((), (1,), (1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,))
    zeros, updates = lax.full((rows, columns), 0, grad.dtype), lax.reshape(grad, flat.shape[:2])
    place = lax.scatter if replace else lax.scatter_add
    return lax.reshape(place(zeros, flat, updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP), shape)


def _look_up(grad: jax.Array, index: jax.Array, windows: list[Slide]) -> jax.Array:
    """Each position's gradient from the windows that cover it and name it in `index`."""
    rank, narrow = len(windows), index_dtype([slide.size for slide in windows])
    grad, index = channels_last(grad, rank), channels_last(index, rank)
    shape = (*grad.shape[: -rank - 1], *[slide.size for slide in windows], grad.shape[-1])
    own, inner = lax.full(shape, 0, narrow), 1
    for slide in reversed(windows):
        own = own + position(shape, slide.axis, narrow) * inner
        inner *= slide.size
    candidates = [(grad, cast(index, narrow))]
    for slide in windows:
        spread = [(over_input(g, slide, back, 0), over_input(i, slide, back, -1)) for g, i in candidates for back in range(slide.overlap)]
        candidates = spread
    total = lax.full(shape, 0, grad.dtype)
    for gradient, named in candidates:
        total = total + lax.select(lax.eq(named, own), gradient, lax.full_like(gradient, 0))
    return channels_first(total, rank)


def max_pool_backward(
    ctx: Context,
    rank: int,
    grad: jax.Array,
    x: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    """max_pool2d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, bool ceil_mode, indices) -> Tensor"""
    windows = slides(rank, x.shape, grad.shape, kernel_size, stride, padding, dilation)
    wide = cast(grad, compute_dtype(ctx.dtype))
    if grad.size and _at_once(ctx, x, windows):
        _, pull = jax.vjp(lambda values: _maxima(values, windows), cast(x, wide.dtype))
        return cast(pull(wide)[0], ctx.dtype)
    if math.prod(slide.overlap for slide in windows) > _LOOKUPS or grad.size == 0:
        return cast(_scatter(wide, indices, ctx.shape, len(windows)), ctx.dtype)
    if ctx.platform != "cpu":  # found again once the gradient is there, so that nothing holds them from the forward pass on
        x, wide = lax.optimization_barrier((x, wide))
        indices = _with_indices(x, windows)[1]
    return cast(_look_up(wide, indices, windows), ctx.dtype)


def bins(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """First and past-last position of each adaptive bin."""
    number = np.arange(out)
    return number * size // out, -(-(number + 1) * size // out)


def _adaptive_along(value: jax.Array, index: jax.Array | None, axis: int, out: int, inner: int) -> Pair:
    """Maximum of each adaptive bin along one dimension, and its flat index."""
    size = value.shape[axis]
    narrow = index_dtype((size, inner))
    first, past = bins(size, out)
    best = best_index = None
    for offset in range(int((past - first).max())):
        where = np.minimum(first + offset, past - 1)  # a shorter bin meets its last position again, which changes nothing
        here = take(value, where, axis)
        at = lax.broadcast_in_dim((where * inner).astype(narrow), here.shape, (axis,))
        if index is not None:
            at = at + take(index, where, axis)
        if best is None or best_index is None:
            best, best_index = here, at
        else:
            moved = _better(here, best)
            best, best_index = lax.max(best, here), lax.select(moved, at, best_index)
    if best is None or best_index is None:
        raise ValueError("an adaptive pooling bin has no positions")
    return best, best_index


def take(x: jax.Array, where: np.ndarray, axis: int) -> jax.Array:
    """The entries of `x` at the known positions `where` along `axis`."""
    if len(where) > 1 and (np.diff(where) == where[1] - where[0]).all() and where[1] > where[0]:
        return lax.slice_in_dim(x, int(where[0]), int(where[-1]) + 1, int(where[1] - where[0]), axis)
    return jax.numpy.take(x, where.astype(np.int32), axis=axis, mode="clip")


@op("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(ctx: Context, x: jax.Array, output_size: Sequence[int]) -> Pair:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype), lax.full(ctx.shape, 0, np.int64)
    rank, inner = len(output_size), 1
    value, index = channels_last(x, rank), None
    for axis in range(x.ndim - 1, x.ndim - 1 - rank, -1):
        value, index = _adaptive_along(value, index, axis - 1, ctx.shape[axis], inner)
        inner *= x.shape[axis]
    index = cast(value if index is None else index, np.dtype(np.int64))
    return channels_first(value, rank), channels_first(index, rank)


def adaptive_max_pool_backward(ctx: Context, rank: int, grad: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    """adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor"""
    wide = cast(grad, compute_dtype(ctx.dtype))
    axes = range(x.ndim - rank, x.ndim)
    if grad.size == 0 or any(x.shape[i] % grad.shape[i] for i in axes):
        return cast(_scatter(wide, indices, ctx.shape, rank), ctx.dtype)
    steps = [x.shape[i] // grad.shape[i] for i in axes]
    return cast(_look_up(wide, indices, slides(rank, x.shape, grad.shape, steps, steps, (0,))), ctx.dtype)


def fractional_max_pool(
    ctx: Context, rank: int, x: jax.Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: jax.Array
) -> Pair:
    """fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)"""
    kernel, out = spatial_arguments(rank, kernel_size, output_size)
    batched = x if x.ndim == rank + 2 else lax.expand_dims(x, (0,))
    random_samples = lax.slice_in_dim(random_samples, 0, batched.shape[0])  # there may be more
    value, index, inner = batched, None, 1
    for number in reversed(range(rank)):
        size = x.shape[x.ndim - rank + number]
        # torch keeps the sample of the last dimension first, but in 3-d.
        sample = lax.index_in_dim(random_samples, 1 - number if rank == 2 else number, 2, keepdims=False)
        starts = _fractional_starts(sample, size, out[number], kernel[number])
        value, index = _gathered_max(value, index, 2 + number, starts, kernel[number], inner)
        inner *= size
    results = value, cast(value if index is None else index, np.dtype(np.int64))
    return lax.reshape(results[0], ctx.shape), lax.reshape(results[1], ctx.shape)


def _fractional_starts(sample: jax.Array, size: int, out: int, kernel: int) -> jax.Array:
    """The starts of `out` windows, per example and channel (N, C, out); the last one ends with the input."""
    shape = (*sample.shape, out)
    number = cast(lax.broadcasted_iota(np.dtype(np.int32), shape, 2), np.dtype(sample.dtype))
    each = lax.broadcast_in_dim(sample, shape, (0, 1))
    step = (size - kernel) / max(out - 1, 1)
    floored = lax.sub(lax.convert_element_type((number + each) * step, np.int32), lax.convert_element_type(each * step, np.int32))
    last = lax.eq(lax.broadcasted_iota(np.dtype(np.int32), shape, 2), lax.full(shape, out - 1, np.int32))
    return lax.select(last, lax.full(shape, size - kernel, np.int32), floored)


def _gathered_max(value: jax.Array, index: jax.Array | None, axis: int, starts: jax.Array, kernel: int, inner: int) -> Pair:
    """Maximum of windows whose starts are data, along one dimension, and its flat index."""
    best = best_index = None
    shape = tuple(starts.shape[2] if i == axis else n for i, n in enumerate(value.shape))
    for offset in range(kernel):
        where = lax.broadcast_in_dim(starts + offset, shape, (0, 1, axis))
        here = jax.numpy.take_along_axis(value, where, axis=axis, mode="clip")
        at = where * inner
        if index is not None:
            at = at + jax.numpy.take_along_axis(index, where, axis=axis, mode="clip")
        if best is None or best_index is None:
            best, best_index = here, at
        else:
            moved = _better(here, best)
            best, best_index = lax.max(best, here), lax.select(moved, at, best_index)
    if best is None or best_index is None:
        raise ValueError("a pooling window has no positions")
    return best, best_index


def fractional_max_pool_backward(
    ctx: Context, rank: int, grad: jax.Array, x: jax.Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: jax.Array
) -> jax.Array:
    """fractional_max_pool2d_backward(grad_output, self, int[2] kernel_size, int[2] output_size, indices) -> Tensor"""
    return cast(_scatter(cast(grad, compute_dtype(ctx.dtype)), indices, ctx.shape, rank), ctx.dtype)


def max_unpool(ctx: Context, rank: int, x: jax.Array, indices: jax.Array, output_size: Sequence[int], *_: Sequence[int]) -> jax.Array:
    """max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor"""
    size = math.prod(ctx.shape[-rank:])
    ctx.check(Fault.UNPOOL, outside(indices, size), indices, size)
    return _scatter(x, indices, ctx.shape, rank, replace=True)


_ROWS: dict[str, Lowering] = {
    "max_pool{}d_with_indices": max_pool,
    "max_pool{}d_with_indices_backward": max_pool_backward,
    "adaptive_max_pool{}d_backward": adaptive_max_pool_backward,
    "fractional_max_pool{}d": fractional_max_pool,
    "fractional_max_pool{}d_backward": fractional_max_pool_backward,
    "max_unpool{}d": max_unpool,
}


def _results_3d(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Without a batch, too, in the memory format of the input, which torch's own does not know."""
    results = torch.ops.aten.max_pool3d_with_indices.default(x, *args)
    if x.dim() == 4 and x.unsqueeze(0).is_contiguous(memory_format=torch.channels_last_3d):
        return tuple(torch.empty_like(result.unsqueeze(0), memory_format=torch.channels_last_3d).squeeze(0) for result in results)
    return tuple(results)


def _fractional_results_3d(x: torch.Tensor, kernel_size: list[int], output_size: list[int], samples: torch.Tensor) -> Any:
    """With the CPU's checks of the samples, which torch's own has in two dimensions only."""
    if samples.dim() != 3:
        raise RuntimeError(f"Expect _random_samples to have 3 dimensions, got {samples.dim()}")
    if samples.shape[0] < (x.shape[0] if x.dim() == 5 else 1):
        raise RuntimeError("Expect _random_samples.size(0) no less then input batch size.")
    if samples.shape[1] != x.shape[-4]:
        raise RuntimeError("Expect _random_samples.size(1) equals to input channel size.")
    if samples.shape[2] != 3:
        raise RuntimeError(f"Expect _random_samples.size(2) equals to 3; got {samples.shape[2]}.")
    return torch.ops.aten.fractional_max_pool3d.default(x, kernel_size, output_size, samples)


_RESULTS = {
    "fractional_max_pool3d": _fractional_results_3d,
    "max_pool3d_with_indices": _results_3d,
    "max_unpool2d": like_input("max_unpool2d.default"),
}
for _rank in (2, 3):
    for _name, _lowering in _ROWS.items():
        _full_name = _name.format(_rank)
        op(_full_name, shapes=_RESULTS.get(_full_name))(of_rank(_rank, _lowering))
without_lowering("max_pool2d", autocast=Autocast.LOWER)

"""Counts of values in bins: histc, histogram and histogramdd."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.elementwise.create import evenly
from xla_core.ops.index.scatter import scatter_at
from xla_core.ops.index.search import insertion_points
from xla_core.ops.promote import Number, cast, full
from xla_core.ops.table import Context, op, scalar

_INT64 = np.dtype(np.int64)


def _range(x: jax.Array, low: Number, high: Number) -> tuple[jax.Array, jax.Array]:
    """The outer edges of a histogram: as given, else those of the data, widened if they coincide."""
    if low != high or not x.size:
        left, right = scalar(low, x.dtype), scalar(high, x.dtype)
    else:
        left, right = lax.reduce_min(x, (0,)), lax.reduce_max(x, (0,))
    one, same = lax.full_like(left, 1), lax.eq(left, right)
    return lax.select(same, lax.sub(left, one), left), lax.select(same, lax.add(right, one), right)


@op("histc", beyond_cpu=frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}))
def _histc(ctx: Context, x: jax.Array, bins: int = 100, min: Number = 0, max: Number = 0) -> jax.Array:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor; elements outside the range count nowhere."""
    x = lax.reshape(x, (x.size,))
    x = x if np.issubdtype(ctx.dtype, np.inexact) or x.dtype.kind == "V" else cast(x, _INT64)  # products of integers need room
    left, right = (lax.broadcast(edge, x.shape) for edge in _range(x, min, max))
    inside = lax.bitwise_and(lax.ge(x, left), lax.le(x, right))
    steps = lax.mul(lax.sub(x, left), lax.full_like(x, bins))
    place = cast(lax.div(steps, lax.sub(right, left)), _INT64)
    place = lax.min(place, lax.full_like(place, bins - 1))
    place = lax.select(inside, place, lax.full_like(place, bins))
    return scatter_at(full(0, (bins,), ctx.dtype), (0,), (place,), full(1, place.shape, ctx.dtype), 0, "sum")


def _edges(x: jax.Array, column: int, bins: int, bounds: Sequence[float] | None) -> jax.Array:
    """Evenly spaced edges of `bins` bins for one column of `x` (n, d): over `bounds`, else over the data."""
    if bounds is not None:
        left, right = (full(bound, (), x.dtype) for bound in bounds[2 * column : 2 * column + 2])
    elif not x.size:
        left, right = full(0, (), x.dtype), full(1, (), x.dtype)
    else:
        values = lax.index_in_dim(x, column, 1, keepdims=False)
        left, right = lax.reduce_min(values, (0,)), lax.reduce_max(values, (0,))
    half, same = lax.full_like(left, 0.5), lax.eq(left, right)
    left, right = lax.select(same, lax.sub(left, half), left), lax.select(same, lax.add(right, half), right)
    return cast(evenly(left, right, bins + 1, x.dtype), x.dtype)


def _counts(x: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool) -> jax.Array:
    """Count the rows of `x` (n, d), or sum their weights, in each cell between the edges of the columns; NaN fall nowhere.

    The last bin has both its edges, all others the left one only.
    """
    shape = tuple(edge.size - 1 for edge in edges)
    cells = full(0, shape, x.dtype)
    if not x.shape[0]:
        return lax.full_like(cells, float("nan")) if density else cells
    places: list[jax.Array] = []
    inside = full(True, x.shape[:1], np.dtype(np.bool_))
    for column, edge in enumerate(edges):
        values = lax.index_in_dim(x, column, 1, keepdims=False)
        first, last = (lax.broadcast(lax.index_in_dim(edge, end, keepdims=False), values.shape) for end in (0, -1))
        inside = lax.bitwise_and(inside, lax.bitwise_and(lax.ge(values, first), lax.le(values, last)))
        behind = insertion_points(lax.expand_dims(edge, (0,)), lax.expand_dims(values, (0,)), True)[0]
        places.append(lax.min(lax.sub(behind, lax.full_like(behind, 1)), lax.full_like(behind, edge.size - 2)))
    places[0] = lax.select(inside, places[0], lax.full_like(places[0], shape[0]))  # a place outside is dropped
    weights = full(1, x.shape[:1], x.dtype) if weight is None else lax.reshape(weight, x.shape[:1])
    cells = scatter_at(cells, range(len(edges)), places, weights, 0, "sum")
    if density:
        cells = lax.div(cells, lax.broadcast(lax.reduce_sum(cells, range(cells.ndim)), shape))
        for column, edge in enumerate(edges):
            widths = lax.sub(lax.slice_in_dim(edge, 1, None), lax.slice_in_dim(edge, 0, -1))
            cells = lax.div(cells, lax.broadcast_in_dim(widths, shape, (column,)))
    return cells


def _rows(x: jax.Array) -> jax.Array:
    """Points as rows: the last dimension stays."""
    return lax.reshape(x, (x.size // x.shape[-1] if x.shape[-1] else 0, x.shape[-1]))


@op("histogram.bin_ct")
def _histogram(
    ctx: Context,
    x: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """histogram.bin_ct(Tensor self, int bins=100, *, float[]? range, Tensor? weight, bool density) -> (hist, bin_edges)"""
    x = lax.reshape(x, (x.size, 1))
    edges = _edges(x, 0, bins, range)
    return _counts(x, [edges], weight, density), edges


@op("histogram.bins_tensor")
def _histogram_between(
    ctx: Context, x: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    """histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) -> (hist, bin_edges)"""
    return _counts(lax.reshape(x, (x.size, 1)), [bins], weight, density), bins


@op("_histogramdd_bin_edges")
def _bin_edges(ctx: Context, x: jax.Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: object) -> list[jax.Array]:
    """_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range, Tensor? weight, bool density) -> Tensor[]"""
    return [_edges(_rows(x), column, number, range) for column, number in enumerate(bins)]


@op("_histogramdd_from_bin_cts")
def _histogramdd(
    ctx: Context,
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range, Tensor? weight, bool density) -> Tensor"""
    x = _rows(x)
    return _counts(x, [_edges(x, column, number, range) for column, number in enumerate(bins)], weight, density)


@op("_histogramdd_from_bin_tensors")
def _histogramdd_between(
    ctx: Context, x: jax.Array, bins: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    """_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool density=False) -> Tensor"""
    return _counts(_rows(x), bins, weight, density)

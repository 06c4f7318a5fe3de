"""Reads at computed positions: gather, index_select, advanced indexing, take, embedding.

A position outside a dimension is found by a check; the read itself gives the nearest element inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.axes import at_least_1d, axis, slice_along
from xla_core.ops.checks import Fault, outside
from xla_core.ops.platforms import positions
from xla_core.ops.promote import Number, broadcast, cast, expand, full
from xla_core.ops.table import Context, op

Indices = Sequence[jax.Array | None]

CLAMPS = "an index out of range raises when a value is read or at a later sync; unchecked it reads the nearest element"
# XLA itself clamps the start of a gather and drops a scatter outside the operand, so no mode of JAX is needed on top.
UNCHECKED = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def wrapped(index: jax.Array, size: int) -> jax.Array:
    """`index` with negative positions counted from the end of a dimension of `size`."""
    if index.dtype != np.int32 or size > np.iinfo(np.int32).max:
        index = cast(index, np.dtype(np.int64))
    return lax.select(lax.lt(index, lax.full_like(index, 0)), lax.add(index, lax.full_like(index, size)), index)


def stacked(coordinates: Sequence[jax.Array]) -> jax.Array:
    """Coordinate arrays of one shape as rows of positions: shape (*shape, number of coordinates)."""
    dtype = np.result_type(*[c.dtype for c in coordinates])
    return lax.concatenate([lax.expand_dims(cast(c, dtype), (c.ndim,)) for c in coordinates], coordinates[0].ndim)


def gather_at(x: jax.Array, dims: Sequence[int], coordinates: Sequence[jax.Array], place: int) -> jax.Array:
    """`x` read at `coordinates` (arrays of one shape, one for each of `dims`), whose dimensions appear at `place` of the result."""
    shape = coordinates[0].shape
    kept = tuple(size for dim, size in enumerate(x.shape) if dim not in dims)
    result = (*kept[:place], *shape, *kept[place:])
    if 0 in result:
        return full(0, result, x.dtype)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(dim for dim in range(len(result)) if not place <= dim < place + len(shape)),
        collapsed_slice_dims=tuple(dims),
        start_index_map=tuple(dims),
    )
    sizes = tuple(1 if dim in dims else size for dim, size in enumerate(x.shape))
    return lax.gather(x, stacked(coordinates), numbers, sizes, mode=UNCHECKED)


def take_rows(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """Slices of `x` along `dim`; the dimensions of `index` stand in the place of `dim`."""
    return gather_at(x, (dim,), (index,), dim)


def take_along(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """`x[..., index[..., i, ...], ...]` along `dim`: one element per element of `index`, which may be smaller elsewhere."""
    if index.size == 0:
        return full(0, index.shape, x.dtype)
    others = tuple(d for d in range(x.ndim) if d != dim)
    for other in others:
        x = slice_along(x, other, 0, index.shape[other])
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    return lax.gather(x, lax.expand_dims(index, (index.ndim,)), numbers, (1,) * x.ndim, mode=UNCHECKED)


def is_mask(index: jax.Array | None) -> bool:
    """Whether an index selects by truth instead of position."""
    return index is not None and np.dtype(index.dtype) in (np.dtype(np.bool_), np.dtype(np.uint8))


def indexed_dims(indices: Indices) -> tuple[int, ...]:
    """The dimensions that have an index (none of them a mask)."""
    return tuple(dim for dim, index in enumerate(indices) if index is not None)


def result_place(dims: Sequence[int]) -> int:
    """The position of the indices' own dimensions in the result: in the place of adjacent indexed dimensions, else in front."""
    return dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0


def coordinates_of(ctx: Context, x: jax.Array, indices: Indices) -> tuple[tuple[int, ...], list[jax.Array]]:
    """The indexed dimensions of `x` and their indices, wrapped and broadcast against each other."""
    if any(is_mask(index) for index in indices):
        raise UnsupportedOperationError("reading by a boolean mask gives a shape that depends on data; use torch.where or masked_fill")
    dims = indexed_dims(indices)
    narrow = [positions(index, x.shape[dim], ctx.platform) for dim, index in enumerate(indices) if index is not None]
    return dims, broadcast(*[wrapped(index, x.shape[dim]) for dim, index in zip(dims, narrow, strict=True)])


def check_positions(ctx: Context, x: jax.Array, indices: Indices) -> None:
    """Let positions outside of the dimensions of `x` that `indices` speak of raise."""
    dim = 0
    for index in indices:
        if index is not None and not is_mask(index):
            index = positions(index, x.shape[dim], ctx.platform)
            ctx.check(Fault.INDEX, outside(index, x.shape[dim], -x.shape[dim]), index, dim, x.shape[dim])
        dim += index.ndim if index is not None and is_mask(index) else 1


@op("gather", notes=CLAMPS)
def _gather(ctx: Context, x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    dim = axis(dim, x.ndim)
    size = at_least_1d(x).shape[dim]
    index = positions(index, size, ctx.platform)
    ctx.check(Fault.GATHER, outside(index, size), index, dim, size)
    found = take_along(at_least_1d(x), dim, at_least_1d(index)) if index.size else full(0, index.shape, x.dtype)
    return lax.reshape(found, ctx.shape)


@op("index_select", notes=CLAMPS)
def _index_select(ctx: Context, x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    rows, dim = at_least_1d(x), axis(dim, x.ndim)
    index = positions(index, rows.shape[dim], ctx.platform)
    ctx.check(Fault.INDEX_SELECT, outside(index, rows.shape[dim]), index, rows.shape[dim])
    return lax.reshape(take_rows(rows, dim, at_least_1d(index)), ctx.shape)


def _without_mask(x: Any, indices: Sequence[Any]) -> bool:
    """Whether the shape of the result is known: a read by a mask goes to the CPU."""
    return not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


@op("index.Tensor", accepts=_without_mask, notes=CLAMPS)
def _index(ctx: Context, x: jax.Array, indices: Indices) -> jax.Array:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor; integer indices, negative ones count from the end."""
    check_positions(ctx, x, indices)
    return _unsafe_index(ctx, x, indices)


@op("_unsafe_index.Tensor", accepts=_without_mask)
def _unsafe_index(ctx: Context, x: jax.Array, indices: Indices) -> jax.Array:
    """_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor; the caller knows that positions are in range."""
    if not indexed_dims(indices):
        return x
    dims, coordinates = coordinates_of(ctx, x, indices)
    return gather_at(x, dims, coordinates, result_place(dims))


@op("_unsafe_masked_index", scalars=("fill",))
def _masked_index(ctx: Context, x: jax.Array, mask: jax.Array, indices: Indices, fill: Number | jax.Array) -> jax.Array:
    """_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor"""
    found = _unsafe_index(ctx, x, indices)
    return lax.select(expand(mask, found.shape), found, full(fill, found.shape, found.dtype))


@op("one_hot", notes="a class that there is not raises when a value is read or at a later sync")
def _one_hot(ctx: Context, x: jax.Array, num_classes: int = -1) -> jax.Array:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor; the frontend makes -1 a number."""
    ctx.check(Fault.CLASS, outside(x, num_classes), x, num_classes)
    classes = lax.broadcasted_iota(x.dtype, ctx.shape, x.ndim)
    return cast(lax.eq(lax.broadcast_in_dim(x, ctx.shape, tuple(range(x.ndim))), classes), ctx.dtype)


@op("take", notes=CLAMPS)
def _take(ctx: Context, x: jax.Array, index: jax.Array) -> jax.Array:
    """take(Tensor self, Tensor index) -> Tensor"""
    index = positions(index, x.size, ctx.platform)
    ctx.check(Fault.TAKE, outside(index, x.size, -x.size), index, x.size)
    return take_rows(lax.reshape(x, (x.size,)), 0, wrapped(index, x.size))


@op("embedding", notes=CLAMPS)
def _embedding(
    ctx: Context, weight: jax.Array, indices: jax.Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> jax.Array:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    indices = positions(indices, weight.shape[0], ctx.platform)
    ctx.check(Fault.INDEX_SELECT, outside(indices, weight.shape[0]), indices, weight.shape[0])
    return take_rows(weight, 0, indices)

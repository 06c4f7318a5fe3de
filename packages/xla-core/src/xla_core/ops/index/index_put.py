"""Writes by advanced indexing: integer tensors, boolean masks, and both together.

A mask used as an index stands for positions whose number depends on data. Here it becomes one lane for each of its
elements, and lanes past the number that is really set write out of range, where XLA drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.axes import iota_along
from xla_core.ops.checks import Fault
from xla_core.ops.index.index import Indices, check_positions, indexed_dims, is_mask, result_place, take_rows, wrapped
from xla_core.ops.index.masked import ranks_of_set, set_positions
from xla_core.ops.index.scatter import DROPS, scatter_at
from xla_core.ops.platforms import positions
from xla_core.ops.promote import broadcast, cast, expand, full
from xla_core.ops.reduce.reduce import nonzero
from xla_core.ops.table import Context, op

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class _Coordinate:
    """One index of one dimension, and how many of its last dimension's positions exist (None: all of them)."""

    index: jax.Array
    number: jax.Array | None = None

    @property
    def lanes(self) -> int:
        return self.index.shape[-1] if self.index.ndim else 1

    def length(self) -> jax.Array:
        return self.number if self.number is not None else full(self.lanes, (), _INT64)

    def over(self, lanes: int) -> jax.Array:
        """The index with `lanes` positions in its last dimension; a single position is good for all."""
        if self.number is None and self.lanes == 1:
            return self.index
        padded = _padded(self.index, self.index.ndim - 1, lanes)
        if self.number is None:
            return padded
        single = lax.eq(self.number, lax.full_like(self.number, 1))
        return lax.select(lax.broadcast(single, padded.shape), lax.broadcast(padded[0], padded.shape), padded)


def _padded(x: jax.Array, dim: int, size: int) -> jax.Array:
    widths = [(0, size - x.shape[d] if d == dim else 0, 0) for d in range(x.ndim)]
    return lax.pad(x, lax.full_like(x, 0, shape=()), widths)


def _columns(mask: jax.Array) -> list[_Coordinate]:
    """A mask as one coordinate for each of its dimensions."""
    if not mask.ndim:
        raise UnsupportedOperationError("a 0-d mask as an index of a write is not supported; use torch.where")
    number = lax.reduce_sum(cast(mask, _INT64), tuple(range(mask.ndim)))
    rest, columns = set_positions(mask), []
    for size in reversed(mask.shape):
        columns.append(_Coordinate(lax.rem(rest, lax.full_like(rest, max(size, 1))), number))
        rest = lax.div(rest, lax.full_like(rest, max(size, 1)))
    return columns[::-1]


def _coordinates(ctx: Context, x: jax.Array, indices: Indices) -> list[_Coordinate | None]:
    """One entry for each dimension of `x` that the indices speak of."""
    found: list[_Coordinate | None] = []
    for index in indices:
        if index is None:
            found.append(None)
        elif is_mask(index):
            found.extend(_columns(nonzero(index)))
        else:
            size = x.shape[len(found)]
            found.append(_Coordinate(wrapped(positions(index, size, ctx.platform), size)))
    return found


def put_at(ctx: Context, x: jax.Array, indices: Indices, values: jax.Array, accumulate: bool) -> jax.Array:
    """`x` with `values` (broadcast) written at `indices`."""
    found = _coordinates(ctx, x, indices)
    dims = tuple(dim for dim, entry in enumerate(found) if entry is not None)
    entries = [entry for entry in found if entry is not None]
    lanes = max(entry.lanes for entry in entries) if all(entry.lanes for entry in entries) else 0
    if not lanes:
        return x
    counted = any(entry.number is not None for entry in entries)
    coordinates = broadcast(*(entry.over(lanes) if counted else entry.index for entry in entries))
    place, shape = result_place(dims), coordinates[0].shape
    kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
    if counted:
        _check_lengths(ctx, entries, values, len(kept) - place)
        coordinates[0] = lax.select(_exists(entries, shape), coordinates[0], lax.full_like(coordinates[0], x.shape[dims[0]]))
        after = len(kept) - place
        if values.ndim > after and values.shape[-1 - after] != 1:
            values = _padded(values, values.ndim - 1 - after, lanes)
    result = (*kept[:place], *shape, *kept[place:])
    values = expand(_without_extra_dims(values, len(result)), result)
    return scatter_at(x, dims, coordinates, values, place, "sum" if accumulate else "set")


def _check_lengths(ctx: Context, entries: list[_Coordinate], values: jax.Array, after: int) -> None:
    """Let masks raise that pick another number of elements than other indices have, or than `values` has before its last `after` sizes."""
    others = [entry.lanes for entry in entries if entry.number is None and entry.lanes != 1]
    beside = others or ([values.shape[-1 - after]] if values.ndim > after and values.shape[-1 - after] != 1 else [])
    for number in {id(entry.number): entry.number for entry in entries if entry.number is not None}.values():
        for size in beside:
            wrong = lax.ne(number, lax.full_like(number, size))
            if others:  # one element stands for all
                wrong = lax.bitwise_and(wrong, lax.ne(number, lax.full_like(number, 1)))
            ctx.check(Fault.MASK_POSITIONS if others else Fault.MASK_VALUES, wrong, number, size)


def _exists(entries: list[_Coordinate], shape: tuple[int, ...]) -> jax.Array:
    """Which lanes are positions of the broadcast indices: those below the longest length, none if a length is zero."""
    lengths = lax.concatenate([lax.reshape(entry.length(), (1,)) for entry in entries], 0)
    longest = lax.reduce_max(lengths, (0,))
    length = lax.select(lax.gt(lax.reduce_min(lengths, (0,)), lax.full_like(longest, 0)), longest, lax.full_like(longest, 0))
    return lax.lt(iota_along(shape, len(shape) - 1, _INT64), lax.broadcast(length, shape))


def _without_extra_dims(x: jax.Array, rank: int) -> jax.Array:
    """Leading dimensions beyond `rank`, all of size 1, removed."""
    return lax.reshape(x, x.shape[x.ndim - rank :]) if x.ndim > rank else x


def _put_by_mask(ctx: Context, x: jax.Array, dim: int, mask: jax.Array, values: jax.Array, accumulate: bool) -> jax.Array:
    """Write by one mask over the dimensions from `dim` on, all others whole: a select, no scatter."""
    after = x.ndim - dim - mask.ndim
    place = values.ndim - after - 1
    if place >= 0:
        number = lax.reduce_sum(cast(mask, _INT64), tuple(range(mask.ndim)))
        if values.shape[place] != 1:
            ctx.check(Fault.MASK_VALUES, lax.ne(number, lax.full_like(number, values.shape[place])), number, values.shape[place])
        if values.shape[place] == 0:
            return x
        single = values.shape[place] == 1
        rows = values if single else take_rows(values, place, ranks_of_set(lax.reshape(mask, (mask.size,))))
        inner = (1,) * mask.ndim if single else mask.shape
        values = lax.reshape(rows, (*values.shape[:place], *inner, *values.shape[place + 1 :]))
    values = expand(_without_extra_dims(values, x.ndim), x.shape)
    if accumulate:
        values = lax.bitwise_or(x, values) if x.dtype == np.bool_ else lax.add(x, values)
    return lax.select(lax.broadcast_in_dim(mask, x.shape, tuple(range(dim, dim + mask.ndim))), values, x)


def _accepts(x: Any, indices: Sequence[Any], values: Any, *_: Any, **__: Any) -> bool:
    """A 0-d mask beside other indices goes to the CPU. Raises RuntimeError where `values` fit no number of elements that masks pick."""
    masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if any(not mask.dim() for mask in masks):
        return False
    if masks:
        _check_shape(x, indices, tuple(values.shape))
    return True


_ANY = -1  # how many elements a mask picks


def _check_shape(x: Any, indices: Sequence[Any], given: tuple[int, ...]) -> None:
    dims: list[int] = []
    others: list[torch.Size] = []
    dim = 0
    for index in indices:
        mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        count = index.dim() if mask else 1
        if index is not None:
            dims.extend(range(dim, dim + count))
        if index is not None and not mask:
            others.append(index.shape)
        dim += count
    beside = list(torch.broadcast_shapes(*others, (1,)))
    if beside[-1] == 1:
        beside[-1] = _ANY
    kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
    place = result_place(dims)
    result = [*kept[:place], *beside, *kept[place:]]
    tail, extra = given[max(len(given) - len(result), 0) :], given[: max(len(given) - len(result), 0)]
    fit = all(size in (1, wanted) or wanted == _ANY for size, wanted in zip(reversed(tail), reversed(result), strict=False))
    if not fit or any(size != 1 for size in extra):
        shown = ", ".join("elements of the mask" if size == _ANY else str(size) for size in result)
        raise RuntimeError(f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing result of shape [{shown}]")


@op("index_put", accepts=_accepts, notes=DROPS, overlapping_writes=True)
@op("_index_put_impl", accepts=_accepts, notes=DROPS)
def _index_put(
    ctx: Context, x: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False, unsafe: bool = False
) -> jax.Array:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor; integer indices and masks."""
    if not unsafe:
        check_positions(ctx, x, indices)
    return _unsafe_put(ctx, x, indices, values, accumulate)


@op("_unsafe_index_put", accepts=_accepts)
def _unsafe_put(ctx: Context, x: jax.Array, indices: Indices, values: jax.Array, accumulate: bool = False) -> jax.Array:
    """_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor; positions are in range."""
    dims = indexed_dims(indices)
    values = cast(values, x.dtype)
    if not dims:
        values = expand(_without_extra_dims(values, x.ndim), x.shape)
        return lax.add(x, values) if accumulate else values
    only = indices[dims[0]]
    if len(dims) == 1 and only is not None and is_mask(only):
        return _put_by_mask(ctx, x, dims[0], nonzero(only), values, accumulate)
    return put_at(ctx, x, indices, values, accumulate)


@op("_unsafe_masked_index_put_accumulate")
def _masked_put(ctx: Context, x: jax.Array, mask: jax.Array, indices: Indices, values: jax.Array) -> jax.Array:
    """_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor"""
    values = lax.select(expand(mask, values.shape), values, lax.full_like(values, 0))
    return _unsafe_put(ctx, x, indices, values, True)

"""Read each aten view from its base, and write it back into the base: one step of the chains of view_steps.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.axes import block_along, covered, write_along

Read = Callable[..., jax.Array]
Write = Callable[..., jax.Array]
Offset = int | jax.Array  # a constant of the program, or an input


@dataclass(frozen=True, slots=True)
class View:
    """All of one kind of view.

    read: called with the base, the shape of the view and its arguments, gives the part. write: called with the base, a new part and the
    arguments, gives the new base. overlaps: it may show an element of the base more than once. is_whole: it shows the base as it is.
    """

    read: Read
    write: Write
    overlaps: bool = False
    is_whole: bool = False


def _dim(x: jax.Array, dim: int, extra: int = 0) -> int:
    rank = x.ndim + extra
    return dim + rank if dim < 0 else dim


def _reshape(base: jax.Array, shape: tuple[int, ...], *_: Any) -> jax.Array:
    return lax.reshape(base, shape)


def _unreshape(base: jax.Array, part: jax.Array, *_: Any) -> jax.Array:
    return lax.reshape(part, base.shape)


def _permutation(x: jax.Array, dims: Any) -> tuple[int, ...]:
    return tuple(_dim(x, dim) for dim in dims)


def _permute(base: jax.Array, shape: tuple[int, ...], dims: Any) -> jax.Array:
    return lax.transpose(base, _permutation(base, dims))


def _unpermute(base: jax.Array, part: jax.Array, dims: Any) -> jax.Array:
    return lax.transpose(part, tuple(int(i) for i in np.argsort(_permutation(base, dims))))


def _swapped(x: jax.Array, first: int, second: int) -> tuple[int, ...]:
    order = list(range(x.ndim))
    if order:
        a, b = _dim(x, first), _dim(x, second)
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def _transpose(base: jax.Array, shape: tuple[int, ...], first: int = 0, second: int = 1) -> jax.Array:
    return base if base.ndim < 2 else lax.transpose(base, _swapped(base, first, second))


def _untranspose(base: jax.Array, part: jax.Array, first: int = 0, second: int = 1) -> jax.Array:
    return part if part.ndim < 2 else lax.transpose(part, _swapped(part, first, second))


def _select(base: jax.Array, shape: tuple[int, ...], index: Offset, dim: int) -> jax.Array:
    return lax.squeeze(block_along(base, dim, index, 1), (dim,))


def _write_select(base: jax.Array, part: jax.Array, index: Offset, dim: int) -> jax.Array:
    return write_along(base, lax.expand_dims(part, (dim,)), dim, index)


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end of a slice as torch clamps them, 0 ≤ start ≤ end ≤ size."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


def _slice(base: jax.Array, shape: tuple[int, ...], start: Offset, dim: int, step: int) -> jax.Array:
    block = block_along(base, dim, start, covered(shape[dim], step))
    return block if step == 1 else lax.slice_in_dim(block, 0, None, step, dim)


def _write_slice(base: jax.Array, part: jax.Array, start: Offset, dim: int, step: int) -> jax.Array:
    if part.size == 0:
        return base
    if step == 1:
        return write_along(base, part, dim, start)
    rows = jax.numpy.asarray(start + step * np.arange(part.shape[dim], dtype=np.int32))
    return _put_rows(base, part, rows, dim)


def _put_rows(base: jax.Array, part: jax.Array, rows: jax.Array, dim: int) -> jax.Array:
    moved = jax.numpy.moveaxis(base, dim, 0).at[rows].set(jax.numpy.moveaxis(part, dim, 0))
    return jax.numpy.moveaxis(moved, 0, dim)


def _expand(base: jax.Array, shape: tuple[int, ...], *_: Any, **__: Any) -> jax.Array:
    return lax.broadcast_in_dim(base, shape, tuple(range(len(shape) - base.ndim, len(shape))))


def _write_expand(base: jax.Array, part: jax.Array, *_: Any) -> jax.Array:
    return _write_changed(base, part, partial(_expand, shape=part.shape)) if part.size else base


def _write_changed(base: jax.Array, part: jax.Array, read: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """`base` after a write to a view in which one element may stand several times: those that are not what they were count."""
    places = read(lax.reshape(lax.iota(np.int64, base.size), base.shape))
    where = lax.select(_differs(part, read(base)), places, lax.full_like(places, base.size))
    flat = lax.reshape(base, (base.size,))
    return lax.reshape(flat.at[lax.reshape(where, (part.size,))].set(lax.reshape(part, (part.size,)), mode="drop"), base.shape)


def _differs(one: jax.Array, other: jax.Array) -> jax.Array:
    """The mask of positions where two arrays do not have the same bits: signs of zero count, and a NaN is what it is."""
    if one.dtype.kind == "c":
        return lax.bitwise_or(_differs(lax.real(one), lax.real(other)), _differs(lax.imag(one), lax.imag(other)))
    if not np.issubdtype(one.dtype, np.integer) and one.dtype != np.bool_:
        bits = np.dtype(f"u{one.dtype.itemsize}")
        one, other = lax.bitcast_convert_type(one, bits), lax.bitcast_convert_type(other, bits)
    return lax.ne(one, other)


def _as_strided_indices(shape: Any, stride: Any, offset: int) -> np.ndarray[Any, Any]:
    flat = np.full(tuple(shape), offset, np.int64)
    for dim, (size, step) in enumerate(zip(shape, stride, strict=True)):
        flat += (np.arange(size) * step).reshape([-1 if axis == dim else 1 for axis in range(len(shape))])
    return flat


def _as_strided(base: jax.Array, shape: tuple[int, ...], size: Any, stride: Any, storage_offset: int | None = None) -> jax.Array:
    indices = _as_strided_indices(size, stride, storage_offset or 0)
    return lax.reshape(base, (base.size,))[jax.numpy.asarray(indices)] if base.size else lax.reshape(base, shape)


def _write_as_strided(base: jax.Array, part: jax.Array, size: Any, stride: Any, storage_offset: int | None = None) -> jax.Array:
    indices = _as_strided_indices(size, stride, storage_offset or 0).reshape(-1)
    if np.unique(indices).size < indices.size:
        return _write_changed(base, part, lambda x: _as_strided(x, part.shape, size, stride, storage_offset))
    flat = lax.reshape(base, (base.size,)).at[jax.numpy.asarray(indices)].set(lax.reshape(part, (part.size,)))
    return lax.reshape(flat, base.shape)


def _diagonal_indices(base: jax.Array, offset: int, dim1: int, dim2: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows, columns = base.shape[_dim(base, dim1)], base.shape[_dim(base, dim2)]
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    steps = np.arange(count)
    return steps + max(-offset, 0), steps + max(offset, 0)


def _diagonal(base: jax.Array, shape: tuple[int, ...], offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    rows, columns = _diagonal_indices(base, offset, dim1, dim2)
    moved = jax.numpy.moveaxis(base, (_dim(base, dim1), _dim(base, dim2)), (-2, -1))
    return moved[..., rows, columns] if rows.size else lax.full(shape, 0, base.dtype)


def _write_diagonal(base: jax.Array, part: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    rows, columns = _diagonal_indices(base, offset, dim1, dim2)
    if not rows.size or not base.size:
        return base
    axes = (_dim(base, dim1), _dim(base, dim2))
    moved = jax.numpy.moveaxis(base, axes, (-2, -1)).at[..., rows, columns].set(part)
    return jax.numpy.moveaxis(moved, (-2, -1), axes)


def _windows(base: jax.Array, dimension: int, size: int, step: int) -> tuple[int, np.ndarray[Any, Any]]:
    dim = _dim(base, dimension) if base.ndim else 0
    length = base.shape[dim] if base.ndim else 1
    starts = np.arange(0, length - size + 1, step)
    return dim, starts[:, None] + np.arange(size)[None, :]


def _unfold(base: jax.Array, shape: tuple[int, ...], dimension: int, size: int, step: int) -> jax.Array:
    if not math.prod(shape):
        return lax.full(shape, 0, base.dtype)
    if not base.ndim:
        return lax.reshape(base, (1,))
    dim, windows = _windows(base, dimension, size, step)
    return jax.numpy.moveaxis(jax.numpy.take(base, jax.numpy.asarray(windows), axis=dim, mode="clip"), dim + 1, -1)


def _write_unfold(base: jax.Array, part: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    if not part.size:
        return base
    if not base.ndim:
        return lax.reshape(part, ())
    if step < size:
        return _write_changed(base, part, lambda x: _unfold(x, part.shape, dimension, size, step))
    dim, windows = _windows(base, dimension, size, step)
    rows = jax.numpy.moveaxis(part, (dim, -1), (0, 1))  # (window, element, rest)
    flat = lax.reshape(rows, (windows.size, *rows.shape[2:]))
    return _put_rows(base, jax.numpy.moveaxis(flat, 0, dim), jax.numpy.asarray(windows.reshape(-1)), dim)


def _same(base: jax.Array, shape: tuple[int, ...], *_: Any) -> jax.Array:
    return base


def _whole(base: jax.Array, part: jax.Array, *_: Any) -> jax.Array:
    return part


def _as_real(base: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.numpy.stack([lax.real(base), lax.imag(base)], axis=-1)


def _write_as_real(base: jax.Array, part: jax.Array) -> jax.Array:
    return lax.complex(part[..., 0], part[..., 1])


def _as_complex(base: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.complex(base[..., 0], base[..., 1])


def _write_as_complex(base: jax.Array, part: jax.Array) -> jax.Array:
    return _as_real(part, ())


def _conj(base: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.conj(base)


def _neg(base: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.neg(base)


def _bitcast(base: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    from xla_core.base.dtypes import device_dtype, natural_dtype

    target = device_dtype(dtype)
    if target != natural_dtype(dtype) or base.size * base.dtype.itemsize != math.prod(shape) * target.itemsize:
        raise UnsupportedOperationError(
            f"view({dtype}) needs the natural layout, but this process computes {base.dtype} or {dtype} in another"
        )
    return lax.reshape(_from_plain(_same_bits(_to_plain(base), _plain_dtype(target)), target), shape)


def _plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in whose place XLA can reinterpret bits: complex numbers are pairs, bools are bytes."""
    if dtype.kind == "c":
        return np.dtype(np.float32 if dtype == np.complex64 else np.float64)
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _to_plain(array: jax.Array) -> jax.Array:
    if array.dtype.kind == "c":
        array = _as_real(array, ())
    return lax.reshape(lax.convert_element_type(array, _plain_dtype(array.dtype)), (array.size,))


def _same_bits(flat: jax.Array, target: np.dtype[Any]) -> jax.Array:
    wide, narrow = flat.dtype.itemsize, target.itemsize
    if wide < narrow:
        flat = lax.reshape(flat, (flat.size * wide // narrow, narrow // wide))
    result = lax.bitcast_convert_type(flat, target)
    if wide != narrow:
        result = lax.optimization_barrier(result)  # XLA merges two of these, whatever their shapes, and then refuses what it made
    return lax.reshape(result, (result.size,))


def _from_plain(flat: jax.Array, target: np.dtype[Any]) -> jax.Array:
    if target.kind == "c":
        pairs = lax.reshape(flat, (flat.size // 2, 2))
        return _as_complex(pairs, ())
    return lax.convert_element_type(flat, target)


def _write_bitcast(base: jax.Array, part: jax.Array, dtype: Any) -> jax.Array:
    from xla_core.base.dtypes import torch_dtype

    return _bitcast(part, base.shape, torch_dtype(base.dtype))


VIEWS: dict[str, View] = {
    "view": View(_reshape, _unreshape),
    "_reshape_alias": View(_reshape, _unreshape),
    "squeeze": View(_reshape, _unreshape),
    "squeeze.dim": View(_reshape, _unreshape),
    "squeeze.dims": View(_reshape, _unreshape),
    "unsqueeze": View(_reshape, _unreshape),
    "permute": View(_permute, _unpermute),
    "t": View(_transpose, _untranspose),
    "transpose.int": View(_transpose, _untranspose),
    "select.int": View(_select, _write_select),
    "slice.Tensor": View(_slice, _write_slice),
    "expand": View(_expand, _write_expand, overlaps=True),
    "as_strided": View(_as_strided, _write_as_strided, overlaps=True),
    "diagonal": View(_diagonal, _write_diagonal),
    "unfold": View(_unfold, _write_unfold, overlaps=True),
    "alias": View(_same, _whole, is_whole=True),
    "detach": View(_same, _whole, is_whole=True),
    "lift_fresh": View(_same, _whole, is_whole=True),
    "view_as_real": View(_as_real, _write_as_real),
    "view_as_complex": View(_as_complex, _write_as_complex),
    "_conj": View(_conj, lambda base, part: lax.conj(part)),
    "_neg_view": View(_neg, lambda base, part: lax.neg(part)),
    "view.dtype": View(_bitcast, _write_bitcast),
}

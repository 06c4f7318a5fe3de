"""Tensors from nothing or filled over: arange, full, eye, triangles' indices, windows, fill, copy, conversions.

`empty` and its relatives are zero: there is no uninitialised memory in a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.promote import Number, as_array, cast, compute_dtype, expand, full, is_complex, is_integral, real_dtype
from xla_core.ops.table import Context, op

Value = Number | jax.Array


@op("zeros", "new_zeros", fills=lambda args: 0)
@op("zeros_like", fills=lambda args: 0, keeps_sharding=True)
@op("zero", overlapping_writes=True)
@op("_efficientzerotensor", "_new_zeros_with_same_feature_meta")
@op("empty.memory_format", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", notes="zeros")
@op("empty_like", notes="zeros", keeps_sharding=True)
def zeros(ctx: Context, *_: Any, **__: Any) -> jax.Array:
    """zeros(SymInt[] size, *, ScalarType? dtype=None) -> Tensor."""
    return full(0, ctx.shape, ctx.dtype)


@op("ones", "new_ones", fills=lambda args: 1)
@op("ones_like", fills=lambda args: 1, keeps_sharding=True)
def ones(ctx: Context, *_: Any, **__: Any) -> jax.Array:
    """ones(SymInt[] size, *, ScalarType? dtype=None) -> Tensor."""
    return full(1, ctx.shape, ctx.dtype)


@op("full", scalars=("fill_value",), fills=lambda args: args[1])
@op("full_like", scalars=("fill_value",), fills=lambda args: args[1], keeps_sharding=True)
@op("fill.Scalar", scalars=("value",), overlapping_writes=True)
@op("fill.Tensor", scalars=("value",))
def filled(ctx: Context, _: Any, fill_value: Value = 0, *, value: Value | None = None, **__: Any) -> jax.Array:
    """full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor."""
    return full(fill_value if value is None else value, ctx.shape, ctx.dtype)


@op("new_full", scalars=("fill_value",), fills=lambda args: args[2])
def new_full(ctx: Context, _: jax.Array, size: Any, fill_value: Value, **__: Any) -> jax.Array:
    """new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor."""
    return full(fill_value, ctx.shape, ctx.dtype)


@op("scalar_tensor", scalars=("s",))
def scalar_tensor(ctx: Context, s: Value, **_: Any) -> jax.Array:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None) -> Tensor."""
    return as_array(s, ctx.dtype)


@op("clone", "lift", "_lazy_clone")
@op("_to_copy", only_casts=True, shown_as="xla::cast")
def converted(ctx: Context, x: jax.Array, **_: Any) -> jax.Array:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, …) -> Tensor."""
    return cast(x, ctx.dtype)


@op("copy")
def copy(ctx: Context, x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor."""
    return expand(cast(source, ctx.dtype), ctx.shape)


def _counting(ctx: Context, start: float, step: float) -> jax.Array:
    """start, start + step, …: whole numbers exactly, others in float64 like torch's CPU kernel."""
    whole = is_integral(ctx.dtype) or (float(start).is_integer() and float(step).is_integer())
    dtype = np.dtype(np.int64) if whole else np.dtype(np.float64)
    if whole:
        start, step = int(start), int(step)
    index = lax.iota(dtype, ctx.shape[0])
    return cast(lax.add(full(start, ctx.shape, dtype), lax.mul(index, full(step, ctx.shape, dtype))), ctx.dtype)


@op("arange")
def arange(ctx: Context, end: float, **_: Any) -> jax.Array:
    """arange(Scalar end, *, ScalarType? dtype=None) -> Tensor."""
    return _counting(ctx, 0, 1)


@op("arange.start", "arange.start_step", "range", "range.step")
def arange_from(ctx: Context, start: float, end: float, step: float = 1, **_: Any) -> jax.Array:
    """arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None) -> Tensor."""
    return _counting(ctx, start, step)


def evenly(start: Value, end: Value, steps: int, dtype: np.dtype) -> jax.Array:
    """`steps` values from start to end, counted from the nearer one, before they are rounded to `dtype`."""
    wide = np.dtype(np.float64) if is_integral(dtype) else compute_dtype(dtype)
    first, last = (cast(as_array(bound, dtype if is_integral(dtype) else wide), wide) for bound in (start, end))
    if steps < 2:
        return lax.broadcast(first, (steps,))
    step = lax.div(lax.sub(last, first), full(steps - 1, (), wide))
    index = lax.iota(np.int64, steps)
    first, last, step = (lax.broadcast(part, (steps,)) for part in (first, last, step))
    up = first + step * cast(index, wide)
    down = last - step * cast(steps - 1 - index, wide)
    return lax.select(index < steps // 2, up, down)


@op("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor", scalars=("start", "end"))
def linspace(ctx: Context, start: Value, end: Value, steps: int, **_: Any) -> jax.Array:
    """linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None) -> Tensor."""
    return cast(evenly(start, end, ctx.shape[0], ctx.dtype), ctx.dtype)


@op("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", scalars=("start", "end"))
def logspace(ctx: Context, start: Value, end: Value, steps: int, base: float = 10.0, **_: Any) -> jax.Array:
    """logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None) -> Tensor."""
    exponents = evenly(start, end, ctx.shape[0], ctx.dtype)
    wide = exponents.dtype if is_complex(ctx.dtype) else np.dtype(np.float64)
    return cast(lax.pow(full(base, ctx.shape, wide), cast(exponents, wide)), ctx.dtype)


@op("eye", "eye.m")
def eye(ctx: Context, *_: Any, **__: Any) -> jax.Array:
    """eye(SymInt n, *, ScalarType? dtype=None) -> Tensor."""
    rows, columns = (lax.broadcasted_iota(np.int32, ctx.shape, axis) for axis in (0, 1))
    return cast(lax.eq(rows, columns), ctx.dtype)


def _indices(ctx: Context, first: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> jax.Array:
    """Row and column of each element of a region that has, in row i, `counts[i]` columns from `first[i]` on."""
    ends = np.cumsum(counts)
    position = lax.iota(np.int64, ctx.shape[1])
    row = jax.numpy.searchsorted(ends, position, side="right").astype(np.int64)
    column = position - jax.numpy.asarray(ends - counts - first)[row]
    return cast(lax.concatenate([row[None], column[None]], 0), ctx.dtype)


@op("tril_indices")
def tril_indices(ctx: Context, row: int, col: int, offset: int = 0, **_: Any) -> jax.Array:
    """tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4) -> Tensor."""
    if not ctx.shape[1]:
        return full(0, ctx.shape, ctx.dtype)
    rows = np.arange(row, dtype=np.int64)
    return _indices(ctx, np.zeros_like(rows), np.clip(rows + offset + 1, 0, col))


@op("triu_indices")
def triu_indices(ctx: Context, row: int, col: int, offset: int = 0, **_: Any) -> jax.Array:
    """triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4) -> Tensor."""
    if not ctx.shape[1]:
        return full(0, ctx.shape, ctx.dtype)
    first = np.clip(np.arange(row, dtype=np.int64) + offset, 0, col)
    return _indices(ctx, first, col - first)


def _register_window(name: str, make: Callable[..., torch.Tensor]) -> None:
    @op(name, notes="a constant, computed by torch when the program is built")
    def window(ctx: Context, *args: Any, **_: Any) -> jax.Array:
        """A window of fixed length: its arguments are plain numbers, so it is a constant of the program."""
        values = make(*args, dtype=torch.float64, device="cpu")
        return cast(lax.convert_element_type(values.numpy(), real_dtype(compute_dtype(ctx.dtype))), ctx.dtype)


for _name, _overloads in {
    "bartlett_window": ("", ".periodic"),
    "blackman_window": ("", ".periodic"),
    "hamming_window": ("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta"),
    "hann_window": ("", ".periodic"),
    "kaiser_window": ("", ".periodic", ".beta"),
}.items():
    for _overload in _overloads:
        _register_window(_name + _overload, getattr(torch, _name))

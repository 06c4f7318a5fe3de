"""Discrete Fourier transforms over any dimensions, one after the other, with torch's three normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import moved
from xla_core.ops.promote import cast, compute_dtype, full
from xla_core.ops.table import Context, op

_INT64 = np.dtype(np.int64)


class Normalization(IntEnum):
    """torch's numbers for how a transform is scaled."""

    NONE = 0
    BY_ROOT_N = 1
    BY_N = 2


def _scaled(x: jax.Array, normalization: int, points: int) -> jax.Array:
    """`x` scaled for a transform over `points` points."""
    if normalization == Normalization.NONE or points == 0:
        return x
    factor = 1 / math.sqrt(points) if normalization == Normalization.BY_ROOT_N else 1 / points
    return lax.mul(x, full(factor, x.shape, x.dtype))


def _along(x: jax.Array, dim: int, kind: str, length: int) -> jax.Array:
    """One unscaled transform along `dim`; `length` counts its real or complex points."""
    last = moved(x, dim, x.ndim - 1)
    result = lax.fft(last, kind, (length,))
    if kind in ("IFFT", "IRFFT"):  # XLA divides by the length
        result = lax.mul(result, full(length, result.shape, result.dtype))
    return moved(result, x.ndim - 1, dim)


def _over(x: jax.Array, dims: Sequence[int], forward: bool) -> jax.Array:
    """Complex transforms over `dims`."""
    for dim in dims:
        x = _along(x, dim, "FFT" if forward else "IFFT", x.shape[dim])
    return x


def _points(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@op("_fft_c2c")
def fft_c2c(ctx: Context, x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    """_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor"""
    if x.size == 0:
        return x
    dims = [d % x.ndim for d in dim]
    return _scaled(_over(x, dims, forward), normalization, _points(x.shape, dims))


@op("_fft_r2c")
def fft_r2c(ctx: Context, x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    """_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor"""
    if 0 in ctx.shape or x.size == 0:
        return lax.full(ctx.shape, 0, ctx.dtype)
    dims = [d % x.ndim for d in dim]
    if onesided:
        *rest, last = dims
        result = _over(_along(x, last, "RFFT", x.shape[last]), rest, True)
    else:
        result = _over(cast(x, ctx.dtype), dims, True)
    return _scaled(result, normalization, _points(x.shape, dims))


@op("_fft_c2r")
def fft_c2r(ctx: Context, x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    """_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    *rest, last = [d % x.ndim for d in dim]
    half = last_dim_size // 2 + 1
    folded = _over(x, rest, False)
    if folded.shape[last] < half:
        gaps = [(0, half - folded.shape[last] if i == last else 0, 0) for i in range(x.ndim)]
        folded = lax.pad(folded, np.zeros((), x.dtype), gaps)
    folded = lax.slice_in_dim(folded, 0, half, axis=last)
    return _scaled(_along(folded, last, "IRFFT", last_dim_size), normalization, _points(ctx.shape, [*rest, last]))


@op("fft_fftfreq")
def _fftfreq(ctx: Context, n: int, d: float = 1.0, **_: Any) -> jax.Array:
    """fft_fftfreq(int n, float d=1.0, *, ScalarType? dtype=None) -> Tensor: 0, 1, …, -2, -1 over n * d."""
    number = lax.iota(_INT64, n)
    cycles = lax.select(lax.lt(number, lax.full_like(number, (n + 1) // 2)), number, lax.sub(number, lax.full_like(number, n)))
    return _frequencies(ctx, cycles, n, d)


@op("fft_rfftfreq")
def _rfftfreq(ctx: Context, n: int, d: float = 1.0, **_: Any) -> jax.Array:
    """fft_rfftfreq(int n, float d=1.0, *, ScalarType? dtype=None) -> Tensor: 0, 1, …, n // 2 over n * d."""
    return _frequencies(ctx, lax.iota(_INT64, n // 2 + 1), n, d)


def _frequencies(ctx: Context, cycles: jax.Array, n: int, d: float) -> jax.Array:
    wide = compute_dtype(ctx.dtype)
    return cast(lax.mul(cast(cycles, wide), lax.full_like(cycles, 1.0 / (n * d), wide)), ctx.dtype)

"""Orthogonal and spectral decompositions: QR, SVD, eigenvalues, and functions of matrices that follow from them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.checks import Fault
from xla_core.ops.facts import Autocast
from xla_core.ops.linalg.solve import conjugate, identity, multiply, transposed
from xla_core.ops.platforms import with_32_bits
from xla_core.ops.promote import cast, compute_dtype, expand, full
from xla_core.ops.table import Context, op, without_lowering


def _filled(ctx: Context, index: int, value: jax.Array | None) -> jax.Array:
    """Result `index`: the value in its inferred dtype, or what torch leaves empty."""
    out = ctx.out[index]
    if out is None:
        raise ValueError("this decomposition promises a tensor for each of its results")
    if value is None or 0 in out.shape:
        return lax.full(out.shape, 0, out.dtype)
    return cast(value, np.dtype(out.dtype))


without_lowering("qr", "svd", "linalg_svd", "linalg_svdvals", autocast=Autocast.FLOAT32)


@op("linalg_qr", autocast=Autocast.FLOAT32)
def qr(ctx: Context, a: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    """linalg_qr(Tensor A, str mode="reduced") -> (Tensor Q, Tensor R); mode "r" leaves Q empty"""
    if 0 in a.shape[-2:]:
        out = ctx.out[0]
        square = out is not None and out.shape[-2:] == (a.shape[-2], a.shape[-2])
        return identity(a.shape[-2], a.shape[:-2], ctx.dtype) if square else _filled(ctx, 0, None), _filled(ctx, 1, None)
    q, r = lax.linalg.qr(a, full_matrices=mode == "complete")[:2]
    return _filled(ctx, 0, q), _filled(ctx, 1, r)


@op("_linalg_svd")
def svd(
    ctx: Context, a: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, ...]:
    """_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (U, S, Vh)"""
    if 0 in a.shape:
        return tuple(_unit_or_empty(ctx, index) for index in range(3))
    if not compute_uv:
        values = _svd(ctx, a, compute_uv=False)
        return _filled(ctx, 0, None), _filled(ctx, 1, values), _filled(ctx, 2, None)
    u, s, vh = _svd(ctx, a, full_matrices)
    return _filled(ctx, 0, u), _filled(ctx, 1, s), _filled(ctx, 2, vh)


def _svd(ctx: Context, a: jax.Array, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """The decomposition. XLA:TPU ends the process at the 64-bit counters that its loops would have (libtpu 0.0.42)."""
    decomposed = partial(lax.linalg.svd, full_matrices=full_matrices, compute_uv=compute_uv)
    return with_32_bits(decomposed, ctx.platform, a) if ctx.platform == "tpu" else decomposed(a)


def _unit_or_empty(ctx: Context, index: int) -> jax.Array:
    """For a matrix without elements: unit matrices as singular vectors, nothing as singular values."""
    out = ctx.out[index]
    if index != 1 and out is not None and len(out.shape) > 1 and out.shape[-1] == out.shape[-2]:
        return identity(out.shape[-1], out.shape[:-2], np.dtype(out.dtype))
    return _filled(ctx, index, None)


@op("_linalg_eigh")
def eigh(ctx: Context, a: jax.Array, uplo: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    """_linalg_eigh(Tensor A, str UPLO="L", bool compute_v=True) -> (eigenvalues, eigenvectors)"""
    if 0 in a.shape:
        return _filled(ctx, 0, None), _filled(ctx, 1, None)
    vectors, values = lax.linalg.eigh(a, lower=uplo.upper() == "L", symmetrize_input=False)
    return _filled(ctx, 0, values), _filled(ctx, 1, vectors if compute_v else None)


def _check_finite(ctx: Context, a: jax.Array) -> None:
    size = lax.abs(a)
    ctx.check(Fault.NOT_FINITE, lax.bitwise_not(lax.is_finite(size)))


@op("linalg_eig")
def eig(ctx: Context, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)"""
    if 0 in a.shape:
        return _filled(ctx, 0, None), _filled(ctx, 1, None)
    _check_finite(ctx, a)
    values, vectors = lax.linalg.eig(a, compute_left_eigenvectors=False)
    return _filled(ctx, 0, values), _filled(ctx, 1, vectors)


@op("_linalg_eigvals")
def eigvals(ctx: Context, a: jax.Array) -> jax.Array:
    """_linalg_eigvals(Tensor self) -> Tensor"""
    if 0 in a.shape:
        return _filled(ctx, 0, None)
    _check_finite(ctx, a)
    return _filled(ctx, 0, lax.linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0])


@op("linalg_householder_product")
def householder_product(ctx: Context, a: jax.Array, tau: jax.Array) -> jax.Array:
    """linalg_householder_product(Tensor input, Tensor tau) -> Tensor"""
    if 0 in a.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    if tau.shape[-1] == 0:
        unit = np.eye(*a.shape[-2:], dtype=a.dtype)
        return jax.numpy.broadcast_to(unit, ctx.shape)
    product: jax.Array = lax.linalg.householder_product(a, tau)
    return product


@op("geqrf", autocast=Autocast.FLOAT32)
def geqrf(ctx: Context, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """geqrf(Tensor self) -> (Tensor a, Tensor tau); R above the diagonal, the Householder vectors below it"""
    if 0 in a.shape:
        return _filled(ctx, 0, None), _filled(ctx, 1, None)
    packed, tau = jax.numpy.linalg.qr(a, mode="raw")
    return _filled(ctx, 0, jax.numpy.matrix_transpose(packed)), _filled(ctx, 1, tau)


@op("ormqr")
def ormqr(ctx: Context, a: jax.Array, tau: jax.Array, other: jax.Array, left: bool = True, transpose: bool = False) -> jax.Array:
    """ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor"""
    if 0 in ctx.shape or not tau.shape[-1]:
        return other
    product: jax.Array = lax.linalg.ormqr(a, tau, other, left=left, transpose=transpose)
    return product


@op("linalg_matrix_exp")
def matrix_exp(ctx: Context, a: jax.Array) -> jax.Array:
    """linalg_matrix_exp(Tensor self) -> Tensor"""
    if 0 in a.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    if a.shape[-1] == 1:
        return lax.exp(a)
    flat = lax.reshape(cast(a, compute_dtype(a.dtype)), (int(np.prod(a.shape[:-2], dtype=np.int64)), *a.shape[-2:]))
    return cast(lax.reshape(jax.vmap(_exponential)(flat), ctx.shape), ctx.dtype)


def _exponential(a: jax.Array) -> jax.Array:
    """exp of one matrix: scaled below norm 1/2, a Taylor polynomial of order 18, squared back."""
    largest = lax.reduce_max(lax.reduce_sum(lax.abs(a), (0,)), (0,))
    doublings = lax.max(lax.ceil(lax.log(lax.max(largest, full(1e-30, (), largest.dtype))) / math.log(2)) + 1, full(0, (), largest.dtype))
    small = lax.mul(a, expand(cast(lax.exp2(lax.neg(doublings)), np.dtype(a.dtype)), a.shape))
    unit = identity(a.shape[-1], (), np.dtype(a.dtype))
    total = unit
    for order in range(18, 0, -1):
        total = lax.add(unit, lax.div(multiply(small, total), full(order, a.shape, a.dtype)))
    times = lax.convert_element_type(doublings, np.int32)
    result: jax.Array = lax.fori_loop(np.int32(0), times, lambda _, x: multiply(x, x), total)
    return result


@op("linalg_pinv.atol_rtol_tensor")
def pinv(ctx: Context, a: jax.Array, *, atol: jax.Array | None = None, rtol: jax.Array | None = None, hermitian: bool = False) -> jax.Array:
    """linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor"""
    if 0 in a.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    if hermitian:
        vectors, values = lax.linalg.eigh(a, lower=True, symmetrize_input=False)
        u, s, vh = vectors, values, conjugate(transposed(vectors))
    else:
        u, s, vh = _svd(ctx, a)
    kept = lax.gt(lax.abs(s), _pinv_bound(s, max(a.shape[-2:]), atol, rtol))
    inverse = lax.select(kept, lax.div(lax.full_like(s, 1), s), lax.full_like(s, 0))
    right = conjugate(transposed(vh))
    columns = lax.broadcast_in_dim(cast(inverse, np.dtype(a.dtype)), right.shape, [*range(right.ndim - 2), right.ndim - 1])
    return multiply(lax.mul(right, columns), conjugate(transposed(u)))


def _pinv_bound(s: jax.Array, largest: int, atol: jax.Array | None, rtol: jax.Array | None) -> jax.Array:
    """Below which size a singular value counts as zero, in the shape of `s`."""
    real, size = np.dtype(s.dtype), lax.abs(s)
    top = lax.expand_dims(lax.reduce_max(size, (size.ndim - 1,)), (size.ndim - 1,))
    floor = full(0, top.shape, real) if atol is None else expand(lax.expand_dims(cast(atol, real), (atol.ndim,)), top.shape)
    if rtol is not None:
        share = expand(lax.expand_dims(cast(rtol, real), (rtol.ndim,)), top.shape)
    else:
        # torch leaves out a relative bound once an absolute one is given.
        default = full(largest * float(np.finfo(real).eps), top.shape, real)
        share = default if atol is None else lax.select(lax.gt(floor, lax.full_like(floor, 0)), lax.full_like(default, 0), default)
    return expand(lax.max(floor, lax.mul(share, top)), s.shape)

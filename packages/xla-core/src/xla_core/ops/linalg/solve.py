"""LU and Cholesky factorisations, determinants, inverses, and the systems solved with them."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.facts import Autocast
from xla_core.ops.promote import cast, expand, full, is_complex
from xla_core.ops.table import Context, op, without_lowering

_INT32 = np.dtype(np.int32)


def transposed(a: jax.Array) -> jax.Array:
    """Matrices with their last two dimensions exchanged."""
    return lax.transpose(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


def conjugate(a: jax.Array) -> jax.Array:
    """Complex conjugate; a real array is its own."""
    return lax.conj(a) if is_complex(a.dtype) else a


def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    """Batched a @ b."""
    lead = tuple(range(a.ndim - 2))
    return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 2,)), (lead, lead)))


def diagonal(a: jax.Array) -> jax.Array:
    """Main diagonals of (..., m, n) matrices."""
    main: jax.Array = jax.numpy.diagonal(a, axis1=-2, axis2=-1)
    return main


def triangle(a: jax.Array, *, upper: bool, keep_diagonal: bool = True) -> jax.Array:
    """The upper or lower part of each matrix, zeros elsewhere."""
    row, column = (lax.broadcasted_iota(_INT32, a.shape, a.ndim - i) for i in (2, 1))
    low, high = (row, column) if upper else (column, row)
    kept = lax.le(low, high) if keep_diagonal else lax.lt(low, high)
    return lax.select(kept, a, lax.full_like(a, 0))


def identity(n: int, lead: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Batches of unit matrices."""
    shape = (*lead, n, n)
    row, column = (lax.broadcasted_iota(_INT32, shape, len(shape) - i) for i in (2, 1))
    return cast(lax.eq(row, column), dtype)


def _zeros(ctx: Context) -> tuple[jax.Array, ...]:
    """All results filled with zeros: what torch returns for matrices without elements."""
    return tuple(lax.full(out.shape, 0, out.dtype) for out in ctx.out if out is not None)


def _empty(ctx: Context) -> bool:
    return any(0 in out.shape for out in ctx.out[:1] if out is not None)


def _as_inferred(ctx: Context, *values: jax.Array) -> tuple[jax.Array, ...]:
    """Results in the inferred shapes and dtypes; what torch leaves empty stays empty."""
    results = []
    for out, value in zip(ctx.out, values, strict=True):
        if out is None or value.shape == out.shape or value.size == np.prod(out.shape):
            results.append(value if out is None else lax.reshape(cast(value, np.dtype(out.dtype)), out.shape))
        else:
            results.append(lax.full(out.shape, 0, out.dtype))
    return tuple(results)


def factor(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(LU packed, pivots counted from 1, permutation) with a[permutation] = L @ U."""
    packed, pivots, permutation = lax.linalg.lu(a)
    return packed, pivots + np.int32(1), permutation


def _first_zero_pivot(packed: jax.Array) -> jax.Array:
    """1 + the place of the first zero on U's diagonal, 0 if there is none: LAPACK's info."""
    zero = lax.eq(diagonal(packed), full(0, (*packed.shape[:-2], min(packed.shape[-2:])), packed.dtype))
    place = lax.broadcasted_iota(_INT32, zero.shape, zero.ndim - 1) + np.int32(1)
    beyond = lax.full_like(place, zero.shape[-1] + 1)
    first = lax.reduce_min(lax.select(zero, place, beyond), (zero.ndim - 1,))
    return lax.select(lax.gt(first, lax.full_like(first, zero.shape[-1])), lax.full_like(first, 0), first)


def _permuted(b: jax.Array, permutation: jax.Array) -> jax.Array:
    """Rows of `b` in the order of `permutation`."""
    return jax.numpy.take_along_axis(b, lax.expand_dims(permutation, (permutation.ndim,)), axis=-2)


def _inverse_permutation(permutation: jax.Array) -> jax.Array:
    return jax.numpy.argsort(permutation, axis=-1)


def triangular(a: jax.Array, b: jax.Array, *, upper: bool, adjoint: bool = False, unit: bool = False, left: bool = True) -> jax.Array:
    """X with op(a) @ X = b, or X @ op(a) = b."""
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, transpose_a=adjoint, conjugate_a=adjoint and is_complex(a.dtype), unit_diagonal=unit
    )


def solve_factored(packed: jax.Array, permutation: jax.Array, b: jax.Array, *, adjoint: bool) -> jax.Array:
    """X with A @ X = b, or A^H @ X = b, from A's factors."""
    lead = lax.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed, b = (expand(x, (*lead, *x.shape[-2:])) for x in (packed, b))
    permutation = expand(permutation, (*lead, permutation.shape[-1]))
    if adjoint:
        y = triangular(packed, b, upper=True, adjoint=True)
        return _permuted(triangular(packed, y, upper=False, adjoint=True, unit=True), _inverse_permutation(permutation))
    y = triangular(packed, _permuted(b, permutation), upper=False, unit=True)
    return triangular(packed, y, upper=True)


def _determinant_factors(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(LU, pivots) as torch's determinants leave them for their gradients: of the transpose of a real matrix."""
    packed, pivots, _ = factor(a if is_complex(a.dtype) else transposed(a))
    return packed, pivots


def _needs_pivots(pivot: bool) -> None:
    if not pivot:
        raise UnsupportedOperationError("LU without pivoting is not available on XLA devices; use pivot=True")


@op("linalg_lu_factor_ex")
def lu_factor(ctx: Context, a: jax.Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[jax.Array, ...]:
    """linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (LU, pivots, info)"""
    _needs_pivots(pivot)
    if 0 in a.shape:
        return _zeros(ctx)
    packed, pivots, _ = factor(a)
    return _as_inferred(ctx, packed, pivots, _first_zero_pivot(packed))


def _lower_factor(packed: jax.Array) -> jax.Array:
    """The unit lower triangular (..., m, k) factor."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    part = lax.slice_in_dim(packed, 0, k, axis=packed.ndim - 1)
    ones = jax.numpy.broadcast_to(np.eye(m, k, dtype=packed.dtype), part.shape)
    return lax.add(triangle(part, upper=False, keep_diagonal=False), ones)


def _upper_factor(packed: jax.Array) -> jax.Array:
    """The upper triangular (..., k, n) factor."""
    part = lax.slice_in_dim(packed, 0, min(packed.shape[-2:]), axis=packed.ndim - 2)
    return triangle(part, upper=True)


def _permutation_matrix(permutation: jax.Array, dtype: np.dtype) -> jax.Array:
    """P with A = P @ L @ U."""
    size = permutation.shape[-1]
    shape = (*permutation.shape, size)
    column = lax.broadcasted_iota(_INT32, shape, len(shape) - 1)
    return transposed(cast(lax.eq(lax.broadcast_in_dim(permutation, shape, range(permutation.ndim)), column), dtype))


@op("linalg_lu")
def lu(ctx: Context, a: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, ...]:
    """linalg_lu(Tensor A, *, bool pivot=True) -> (P, L, U)"""
    _needs_pivots(pivot)
    if 0 in a.shape:
        return identity(a.shape[-2], a.shape[:-2], ctx.dtype), *_zeros(ctx)[1:]
    packed, _, permutation = factor(a)
    return _as_inferred(ctx, _permutation_matrix(permutation, np.dtype(a.dtype)), _lower_factor(packed), _upper_factor(packed))


@op("lu_unpack")
def lu_unpack(
    ctx: Context, packed: jax.Array, pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, ...]:
    """lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (P, L, U)"""
    nothing = lax.full((0,), 0, packed.dtype)
    matrix, parts = nothing, (nothing, nothing)
    if unpack_pivots:
        permutation = lax.linalg.lu_pivots_to_permutation(pivots - np.int32(1), packed.shape[-2])
        matrix = _permutation_matrix(permutation, np.dtype(packed.dtype))
    if unpack_data:
        parts = (_lower_factor(packed), _upper_factor(packed))
    return _as_inferred(ctx, matrix, *parts)


@op("linalg_lu_solve")
def lu_solve(ctx: Context, packed: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool = True, adjoint: bool = False) -> jax.Array:
    """linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    permutation = lax.linalg.lu_pivots_to_permutation(pivots - np.int32(1), packed.shape[-1])
    if left:
        return solve_factored(packed, permutation, b, adjoint=adjoint)
    # X @ op(A) = B is op(A)^H @ X^H = B^H.
    found = solve_factored(packed, permutation, conjugate(transposed(b)), adjoint=not adjoint)
    return conjugate(transposed(found))


@op("_linalg_solve_ex")
def solve(ctx: Context, a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False) -> tuple[jax.Array, ...]:
    """_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (result, LU, pivots, info)"""
    if _empty(ctx) or 0 in a.shape:
        return _zeros(ctx)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    columns = lax.expand_dims(b, (b.ndim,)) if vector else b
    packed, pivots, permutation = factor(a)
    if left:
        found = solve_factored(packed, permutation, columns, adjoint=False)
    else:
        found = conjugate(transposed(solve_factored(packed, permutation, conjugate(transposed(columns)), adjoint=True)))
    return _as_inferred(ctx, found, packed, pivots, _first_zero_pivot(packed))


@op("linalg_inv_ex", autocast=Autocast.FLOAT32)
def inv(ctx: Context, a: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, ...]:
    """linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (inverse, info)"""
    if 0 in a.shape:
        return _zeros(ctx)
    packed, _, permutation = factor(a)
    unit = identity(a.shape[-1], a.shape[:-2], np.dtype(a.dtype))
    return _as_inferred(ctx, solve_factored(packed, permutation, unit, adjoint=False), _first_zero_pivot(packed))


def _swaps_sign(pivots: jax.Array, dtype: np.dtype) -> jax.Array:
    """-1 for an odd number of row exchanges, else 1."""
    own = lax.broadcasted_iota(_INT32, pivots.shape, pivots.ndim - 1) + np.int32(1)
    moved = lax.reduce_sum(lax.convert_element_type(lax.ne(pivots, own), _INT32), (pivots.ndim - 1,))
    return cast(lax.sub(lax.full_like(moved, 1), lax.mul(lax.full_like(moved, 2), lax.rem(moved, lax.full_like(moved, 2)))), dtype)


@op("_linalg_det")
def det(ctx: Context, a: jax.Array) -> tuple[jax.Array, ...]:
    """_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)"""
    if 0 in a.shape:
        return lax.full(ctx.shape, 1, ctx.dtype), *_zeros(ctx)[1:]
    packed, pivots = _determinant_factors(a)
    product = lax.reduce_prod(diagonal(packed), (a.ndim - 2,))
    return _as_inferred(ctx, lax.mul(_swaps_sign(pivots, ctx.dtype), product), packed, pivots)


@op("_linalg_slogdet")
def slogdet(ctx: Context, a: jax.Array) -> tuple[jax.Array, ...]:
    """_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)"""
    if 0 in a.shape:
        return lax.full(ctx.shape, 1, ctx.dtype), *_zeros(ctx)[1:]
    packed, pivots = _determinant_factors(a)
    main = diagonal(packed)
    sign = lax.mul(_swaps_sign(pivots, ctx.dtype), lax.reduce_prod(lax.sign(main), (main.ndim - 1,)))
    return _as_inferred(ctx, sign, lax.reduce_sum(lax.log(lax.abs(main)), (main.ndim - 1,)), packed, pivots)


def cholesky_of(a: jax.Array, upper: bool) -> jax.Array:
    """The triangular factor, from that triangle of `a` alone; NaN where `a` is not positive definite."""
    lower = conjugate(transposed(a)) if upper else a
    found = triangle(lax.linalg.cholesky(lower, symmetrize_input=False), upper=False)
    return conjugate(transposed(found)) if upper else found


without_lowering("linalg_cholesky", "inverse", "linalg_inv", autocast=Autocast.FLOAT32)


@op("cholesky", autocast=Autocast.FLOAT32)
def cholesky(ctx: Context, a: jax.Array, upper: bool = False) -> jax.Array:
    """cholesky(Tensor self, bool upper=False) -> Tensor: NaN where torch raises"""
    return lax.full(ctx.shape, 0, ctx.dtype) if 0 in a.shape else cholesky_of(a, upper)


@op("linalg_cholesky_ex", autocast=Autocast.FLOAT32)
def cholesky_ex(ctx: Context, a: jax.Array, *, upper: bool = False, check_errors: bool = False) -> tuple[jax.Array, ...]:
    """linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (L, info)"""
    if 0 in a.shape:
        return _zeros(ctx)
    found = cholesky_of(a, upper)
    size = lax.abs(diagonal(found))
    failed = lax.reduce_or(lax.ne(size, size), (size.ndim - 1,))
    order = lax.cond(
        lax.reduce_or(failed, tuple(range(failed.ndim))),
        lambda: _not_positive_minor(conjugate(transposed(a)) if upper else a),
        lambda: lax.full(failed.shape, 0, _INT32),
    )
    return _as_inferred(ctx, found, lax.select(failed, order, lax.full_like(order, 0)))


def _not_positive_minor(a: jax.Array) -> jax.Array:
    """The order of the first leading minor that is not positive, by the pivots of an elimination without exchanges.

    a: its lower triangle counts. Where rounding lets all pivots be positive, the order of the whole.
    """
    size = a.shape[-1]
    rows, none = lax.iota(_INT32, size), np.int32(size + 1)

    def eliminate(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rest, order = state
        column = lax.dynamic_index_in_dim(rest, k, rest.ndim - 1, keepdims=False)
        pivot = lax.dynamic_index_in_dim(column, k, column.ndim - 1, keepdims=False)
        pivot = lax.real(pivot) if is_complex(pivot.dtype) else pivot
        positive = pivot > 0
        order = jax.numpy.where((order == none) & ~positive, k + np.int32(1), order)
        below = jax.numpy.where(rows > k, column, 0)
        share = below / jax.numpy.where(positive, pivot, 1)[..., None]
        return rest - share[..., :, None] * conjugate(below)[..., None, :], order

    _, order = lax.fori_loop(np.int32(0), np.int32(size), eliminate, (a, lax.full(a.shape[:-2], none, _INT32)))
    return lax.min(order, lax.full_like(order, size))


@op("cholesky_solve", autocast=Autocast.FLOAT32)
def cholesky_solve(ctx: Context, b: jax.Array, factor_: jax.Array, upper: bool = False) -> jax.Array:
    """cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor: A @ X = self with A from its factor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    lead = ctx.shape[:-2]
    b, factor_ = (expand(x, (*lead, *x.shape[-2:])) for x in (b, factor_))
    return triangular(factor_, triangular(factor_, b, upper=upper, adjoint=upper), upper=upper, adjoint=not upper)


@op("cholesky_inverse", autocast=Autocast.FLOAT32)
def cholesky_inverse(ctx: Context, factor_: jax.Array, upper: bool = False) -> jax.Array:
    """cholesky_inverse(Tensor self, bool upper=False) -> Tensor"""
    return cholesky_solve(ctx, identity(factor_.shape[-1], factor_.shape[:-2], np.dtype(factor_.dtype)), factor_, upper)


@op("linalg_solve_triangular", autocast=Autocast.FLOAT32)
def solve_triangular(ctx: Context, a: jax.Array, b: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> jax.Array:
    """linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)
    a, b = (expand(x, (*ctx.shape[:-2], *x.shape[-2:])) for x in (a, b))
    return triangular(a, b, upper=upper, unit=unitriangular, left=left)


@op("triangular_solve", autocast=Autocast.FLOAT32)
def triangular_solve(
    ctx: Context, b: jax.Array, a: jax.Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[jax.Array, jax.Array]:
    """triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (solution, A)"""
    lead = ctx.shape[:-2]
    a, b = (expand(x, (*lead, *x.shape[-2:])) for x in (a, b))
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype), a
    found = lax.linalg.triangular_solve(a, b, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unitriangular)
    return found, a

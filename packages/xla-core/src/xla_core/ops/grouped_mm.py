"""Products of groups of rows, columns or terms, each with a matrix of its own, as mixtures of experts take them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax import lax

from xla_core.ops import group_tiles, precision
from xla_core.ops.matmul import matrix_product
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op

Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
_ROWS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0])
_TERMS = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[])


def _rows(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
    height = group_tiles.height(a.shape[0], b.shape[0])
    ragged = partial(_ragged, numbers=_ROWS)
    return ragged(a, b, ends) if height is None else _by_tiles(partial(group_tiles.rows_by_groups, height=height), ragged, a, b, ends)


def _terms(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
    height = group_tiles.height(b.shape[0], ends.shape[0])
    ragged = partial(_ragged, numbers=_TERMS)
    return ragged(a, b, ends) if height is None else _by_tiles(partial(group_tiles.terms_by_groups, height=height), ragged, a, b, ends)


def _ragged(a: jax.Array, b: jax.Array, ends: jax.Array, numbers: lax.RaggedDotDimensionNumbers) -> jax.Array:
    sizes = lax.sub(ends, lax.pad(ends, np.int32(0), [(1, -1, 0)]))
    found = lax.ragged_dot_general(a, b, sizes, numbers, precision=precision.current(), preferred_element_type=compute_dtype(a.dtype))
    return cast(found, a.dtype)


def _by_tiles(tiled: Product, ragged: Product, a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
    """The product by tiles where the program runs on the CPU."""
    found: jax.Array = lax.platform_dependent(a, b, ends, cpu=lambda *factors: cast(tiled(*factors), a.dtype), default=ragged)
    return found


@op("_grouped_mm")
def grouped_mm(
    ctx: Context, a: jax.Array, b: jax.Array, offs: jax.Array | None = None, bias: jax.Array | None = None, out_dtype: object = None
) -> jax.Array:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor

    offs: where each group ends, of the rows of `a`, of the columns of `b`, or of the terms of the sums. What is in no group gives zeros.
    """
    if offs is None:
        found = matrix_product(a, b)
    elif a.ndim == b.ndim:
        found = _terms(a, b, offs)
    elif a.ndim == 2:
        found = _rows(a, b, offs)
    else:
        found = lax.transpose(_rows(lax.transpose(b, (1, 0)), lax.transpose(a, (0, 2, 1)), offs), (1, 0))
    return cast(found, ctx.dtype)

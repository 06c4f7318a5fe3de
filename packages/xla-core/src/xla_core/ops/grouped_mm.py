"""Products of groups of rows, columns or terms, each with a matrix of its own, as mixtures of experts take them."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from xla_core.ops import precision
from xla_core.ops.matmul import matrix_product
from xla_core.ops.promote import cast
from xla_core.ops.table import Context, op

_ROWS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0])
_TERMS = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[])


def _ragged(a: jax.Array, b: jax.Array, ends: jax.Array, numbers: lax.RaggedDotDimensionNumbers) -> jax.Array:
    sizes = lax.sub(ends, lax.pad(ends, np.int32(0), [(1, -1, 0)]))
    return lax.ragged_dot_general(a, b, sizes, numbers, precision=precision.current())  # in float32, but for the CPU: there in its dtype


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
        found = _ragged(a, b, offs, _TERMS)
    elif a.ndim == 2:
        found = _ragged(a, b, offs, _ROWS)
    else:
        found = lax.transpose(_ragged(lax.transpose(b, (1, 0)), lax.transpose(a, (0, 2, 1)), offs, _ROWS), (1, 0))
    return cast(found, ctx.dtype)

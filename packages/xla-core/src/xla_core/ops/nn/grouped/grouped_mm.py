"""Products of groups of rows, columns or terms, each with a matrix of its own, as mixtures of experts take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.linalg.matmul import matrix_product
from xla_core.ops.nn.grouped import group_tiles
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op

_ROWS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0])
_TERMS = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[])


def _rows(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
    return _grouped(a, b, ends, a.shape[0], _ROWS, group_tiles.rows_by_groups)


def _terms(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
    return _grouped(a, b, ends, b.shape[0], _TERMS, group_tiles.terms_by_groups)


def _grouped(
    a: jax.Array, b: jax.Array, ends: jax.Array, rows: int, numbers: lax.RaggedDotDimensionNumbers, by_tiles: Callable[..., jax.Array]
) -> jax.Array:
    """The product of groups of so many rows in all; on the CPU by tiles where they are faster."""
    height, wide = group_tiles.height(rows, ends.shape[0]), compute_dtype(a.dtype)

    def ragged(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
        sizes = lax.sub(ends, lax.pad(ends, np.int32(0), [(1, -1, 0)]))
        return lax.ragged_dot_general(a, b, sizes, numbers)

    def on_cpu(a: jax.Array, b: jax.Array, ends: jax.Array) -> jax.Array:
        # XLA's grouped product sums in float32, but for the CPU: there in the dtype of the factors.
        found = ragged(cast(a, wide), cast(b, wide), ends) if height is None else by_tiles(a, b, ends, height)
        return cast(found, a.dtype)

    found: jax.Array = lax.platform_dependent(a, b, ends, cpu=on_cpu, default=ragged)
    return found


def _result_shape(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *_: Any) -> torch.Tensor:
    """Torch's own takes bfloat16 only, and looks at strides."""
    if a.dim() == 2 and b.dim() == 2 and offs is not None:
        return a.new_empty(offs.shape[0], a.shape[0], b.shape[1])
    return a.new_empty(*(a.shape[:-1] if a.dim() < 3 or b.dim() == 3 else a.shape[1:2]), b.shape[-1])


@op("_grouped_mm", shapes=_result_shape)
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

"""Lexicographic order of rows, which torch has no operation for: what `unique(dim=...)` sorts by."""

from __future__ import annotations

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.axes import iota_along
from xla_core.ops.index.index import take_along
from xla_core.ops.index.sort import argsort
from xla_core.ops.internal import define
from xla_core.ops.table import Context, op

define("lexsort(Tensor rows) -> Tensor", lambda rows: rows.new_empty(rows.shape[:1], dtype=torch.int64))


@op("xla_core::lexsort")
def _lexsort(ctx: Context, rows: jax.Array) -> jax.Array:
    """lexsort(Tensor rows) -> Tensor; rows (n, m) to the places (n,) of the sorted ones, equal rows in their order."""

    def by_column(done: jax.Array, order: jax.Array) -> jax.Array:
        column = lax.sub(np.int64(rows.shape[1] - 1), done)
        keys = take_along(lax.reshape(lax.dynamic_slice_in_dim(rows, column, 1, 1), ctx.shape), 0, order)
        return take_along(order, 0, argsort(keys, 0))

    # Stable sorts by one column after the other, the last first: a program that does not grow with their number.
    order: jax.Array = lax.fori_loop(np.int64(0), np.int64(rows.shape[1]), by_column, iota_along(ctx.shape, 0, np.dtype(np.int64)))
    return order

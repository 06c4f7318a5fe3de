"""Arrays that XLA:CPU writes to memory, in a given order, instead of computing them anew wherever they are read. Registers nothing."""

from __future__ import annotations

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from xla_core.ops.axes import has_open_sizes, moved
from xla_core.ops.table import Context


def one_cpu(ctx: Context) -> bool:
    """Whether the program runs on one CPU device of this process. Elsewhere the compiler and its partitioner know better what to keep and
    how to divide it.
    """
    return ctx.platform == "cpu" and (ctx.mesh is None or len(ctx.mesh.local_devices) == 1)


def in_memory(ctx: Context, x: jax.Array) -> jax.Array:
    """`x`, computed once and in row-major order, on one CPU device."""
    if not one_cpu(ctx) or has_open_sizes(x):
        return x
    kept: jax.Array = lax.optimization_barrier(with_layout_constraint(x, Layout(tuple(range(x.ndim)))))
    return kept


def channels_last(x: jax.Array) -> jax.Array:
    """(N, C, *spatial) as (N, *spatial, C): the order in which XLA:CPU computes convolutions."""
    return moved(x, 1, x.ndim - 1)


def channels_first(x: jax.Array) -> jax.Array:
    """(N, *spatial, C) as (N, C, *spatial)."""
    return moved(x, x.ndim - 1, 1)

"""Sums and maxima over dimensions, in the steps that XLA:CPU vectorises. Registers nothing.

XLA:CPU reduces by a loop for each result, which takes one element after the other: each waits for the one before it, and where the last
dimension stays, each is in another line of the cache. A short reduction it writes out, for neighbours in the last dimension together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
from jax import lax

from xla_core.ops.axes import exceeds
from xla_core.ops.cpu.in_memory import one_cpu
from xla_core.ops.table import Context

Reducer = Callable[[jax.Array, Sequence[int]], jax.Array]

# So many elements at most are reduced in one step: of 8, 16, 32 and 64 the best for sums of products over all but the channels of
# ResNet's maps and for the rows of softmax, on two x86-64 cores.
_STEP = 32
# Of the last dimension itself, so many elements stay side by side.
_LANES = 8
# Smaller arrays are reduced at once, in microseconds.
_SMALL = 1 << 14


def total(ctx: Context, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """The sum of `x` over `dims`."""
    return _in_steps(ctx, lax.reduce_sum, x, dims)


def largest(ctx: Context, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """The maximum of `x` over `dims`; NaN wins."""
    return _in_steps(ctx, lax.reduce_max, x, dims)


def _in_steps(ctx: Context, reduce: Reducer, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    """`reduce` over `dims`."""
    left = sorted(dims)
    if not one_cpu(ctx):
        return reduce(x, left)
    while left and exceeds(x.size, _SMALL):
        if left[-1] == x.ndim - 1 and len(left) == 1:
            return _last(reduce, x)
        ahead = left[:-1] if left[-1] == x.ndim - 1 else left
        taken = _together(x, ahead)
        left = [dim for dim in left if dim not in taken]
        x, left = _step(reduce, x, taken), [dim - sum(gone < dim for gone in taken) for dim in left]
    return reduce(x, left) if left else x


def _together(x: jax.Array, dims: list[int]) -> list[int]:
    """The last of `dims` whose elements fit into one step, at least one."""
    count = 1
    while count < len(dims) and prod(x.shape[dim] for dim in dims[-count - 1 :]) <= _STEP:
        count += 1
    return dims[-count:]


def _kept(x: jax.Array) -> jax.Array:
    """`x`, as an array of its own: XLA would make one reduction of two."""
    kept: jax.Array = lax.optimization_barrier(x)
    return kept


def _step(reduce: Reducer, x: jax.Array, dims: list[int]) -> jax.Array:
    """`reduce` over `dims`, of which only a single one can be longer than a step."""
    dim = dims[-1]
    while len(dims) == 1 and x.shape[dim] > _STEP and (part := divisor(x.shape[dim], _STEP)) > 1:
        split = lax.reshape(x, (*x.shape[:dim], x.shape[dim] // part, part, *x.shape[dim + 1 :]))
        x = _kept(reduce(split, [dim + 1]))
    return _kept(reduce(x, dims))


def _last(reduce: Reducer, x: jax.Array) -> jax.Array:
    """`reduce` over the last dimension, elements that lie apart first."""
    dim = x.ndim - 1
    while (part := divisor(x.shape[dim], min(_STEP, x.shape[dim] // _LANES))) > 1:
        x = _kept(reduce(lax.reshape(x, (*x.shape[:dim], part, x.shape[dim] // part)), [dim]))
    return reduce(x, [dim])


def divisor(size: int, limit: int) -> int:
    """The largest divisor of `size` up to `limit`, or 1."""
    return next((part for part in range(limit, 1, -1) if size % part == 0), 1)

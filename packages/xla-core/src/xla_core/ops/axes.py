"""Count dimensions as torch does (from the end, all of them, the one of a 0-d tensor); shared by op families, registers nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.compiled_for import is_cpu

# Elements up to which XLA may work out a constant while it compiles.
_FOLDED = 1 << 12


def is_open(size: Any) -> bool:
    """Whether a size is one that an exported program leaves open."""
    return bool(jax.export.is_symbolic_dim(size))


def has_open_sizes(x: jax.Array) -> bool:
    """Whether an exported program leaves sizes of `x` open."""
    return any(map(is_open, x.shape))


def exceeds(size: int, limit: int) -> bool:
    """Whether a size is beyond a limit; not if an exported program leaves it open, and what is chosen must be right for any."""
    return not is_open(size) and size > limit


def larger(size: int, other: int) -> int:
    """The larger of two sizes, which an exported program may leave open."""
    return max(size, other) if not is_open(size) and not is_open(other) else jax.core.max_dim(size, other)


def at_run_time(x: jax.Array) -> jax.Array:
    """`x`, hidden from XLA's constant folding if large: that takes seconds to sort or add up what a compiled program does in
    milliseconds. For operands that are in memory anyway, since nothing is fused through this.
    """
    hidden: jax.Array = lax.optimization_barrier(x) if exceeds(x.size, _FOLDED) else x
    return hidden


def axis(dim: int, ndim: int) -> int:
    """`dim` counted from the front; a 0-d tensor counts as one of rank 1. Raises IndexError outside the rank."""
    rank = max(ndim, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} is outside [{-rank}, {rank - 1}]")
    return dim + rank if dim < 0 else dim


def axes(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions to reduce, sorted and counted from the front; None or an empty list means all of them."""
    if isinstance(dims, int):
        dims = (dims,)
    if ndim == 0:
        return ()
    return tuple(sorted(axis(dim, ndim) for dim in dims)) if dims else tuple(range(ndim))


def at_least_1d(x: jax.Array) -> jax.Array:
    """`x`, a 0-d one as one element of rank 1."""
    return x if x.ndim else lax.reshape(x, (1,))


def count(shape: Sequence[int], dims: Sequence[int]) -> int:
    """The number of elements that one result of a reduction over `dims` sees."""
    return math.prod(shape[dim] for dim in dims)


def iota_along(shape: Sequence[int], dim: int, dtype: np.dtype | type[np.generic]) -> jax.Array:
    """Each element's position along `dim`."""
    return lax.broadcasted_iota(np.dtype(dtype), tuple(shape), dim)


def keep_reduced(x: jax.Array, shape: Sequence[int], dims: Sequence[int]) -> jax.Array:
    """A reduced array broadcast back over the reduced `dims` of `shape`."""
    kept = tuple(dim for dim in range(len(shape)) if dim not in dims)
    return lax.broadcast_in_dim(x, tuple(shape), kept)


def moved(x: jax.Array, source: int, target: int) -> jax.Array:
    """`x` with dimension `source` moved to place `target`."""
    order = [dim for dim in range(x.ndim) if dim != source]
    order.insert(target, source)
    return lax.transpose(x, order)


def slice_along(x: jax.Array, dim: int, start: int, stop: int, step: int = 1) -> jax.Array:
    """`x[start:stop:step]` along `dim`, bounds already inside the dimension."""
    return lax.slice_in_dim(x, _position(start), _position(stop), operator.index(step), dim)


def _position(place: int) -> int:
    return place if is_open(place) else operator.index(place)


def write_block(x: jax.Array, part: jax.Array, starts: Sequence[int | jax.Array]) -> jax.Array:
    """`x` with the block that begins at `starts` replaced by `part`.

    On the CPU a barrier makes `part` whole before any of it is written: XLA:CPU otherwise works it out while it writes, also where it is
    read from the very buffer, seen in another shape, that is being written to.
    """
    return lax.dynamic_update_slice(x, lax.optimization_barrier(part) if is_cpu() else part, list(starts))


def write_along(x: jax.Array, part: jax.Array, dim: int, start: int | jax.Array) -> jax.Array:
    """`x` with what begins at `start` of dimension `dim` replaced by `part`, as long as that is."""
    return write_block(x, part, [start if d == dim else 0 for d in range(x.ndim)])


def block_along(x: jax.Array, dim: int, start: int | jax.Array, size: int) -> jax.Array:
    """`size` elements of dimension `dim` from `start`, which is in range: a number, or an input of the program."""
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + size, axis=dim)
    return lax.dynamic_slice_in_dim(x, start, size, dim)


def covered(count: int, step: int) -> int:
    """The number of elements from the first to the last of `count` that are `step` apart."""
    return (count - 1) * step + 1 if count else 0


def with_size(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """`shape` with another size at `dim`."""
    return (*shape[:dim], size, *shape[dim + 1 :])

"""Flat arrays over the tiles of a TPU's memory.

XLA:TPU sums and scatters a flat array as an all-reduce, which sends twice as much, and gathers one whose parts are no whole tiles so, too.
As rows of whole tiles it is the same memory, and both are what they are.
"""

from __future__ import annotations

import jax
from jax import lax

from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.lowering import IndexGroups

_LANES = 128
_TILE_BYTES = 8192  # two tiles as data lies in memory: parts of an odd number of them are exchanged once more
_MOST_PADDED = 1.25  # so large may a part be with its padding: what is saved is half of all, or more


def by_tiles(context: Context, x: jax.Array, size: int) -> bool:
    """Whether parts of so many elements of a flat array are sent as rows of tiles."""
    flat = context.platform == "tpu" and x.ndim == 1 and x.dtype.itemsize <= 4
    return flat and _padded(x, size) <= _MOST_PADDED * size


def gathered(x: jax.Array, count: int, groups: IndexGroups) -> jax.Array:
    """The flat arrays of all members of a group, one after the other."""
    padded = _padded(x, x.size)
    rows = lax.reshape(lax.pad(x, _zero(x), [(0, padded - x.size, 0)]), (padded // _LANES, _LANES))
    whole = lax.all_gather(rows, REPLICA_AXIS, axis_index_groups=groups, tiled=True)
    return lax.reshape(lax.slice(lax.reshape(whole, (count, padded)), (0, 0), (count, x.size)), (count * x.size,))


def scattered(x: jax.Array, count: int, groups: IndexGroups) -> jax.Array:
    """This member's part of the sum of the flat arrays of a group."""
    size = x.size // count
    padded = _padded(x, size)
    parts = lax.pad(lax.reshape(x, (count, size)), _zero(x), [(0, 0, 0), (0, padded - size, 0)])
    rows = lax.reshape(parts, (count * padded // _LANES, _LANES))
    own: jax.Array = lax.psum_scatter(rows, REPLICA_AXIS, scatter_dimension=0, axis_index_groups=groups, tiled=True)
    return lax.slice(lax.reshape(own, (padded,)), (0,), (size,))


def _padded(x: jax.Array, size: int) -> int:
    """Elements of a part of so many as whole tiles."""
    tile = _TILE_BYTES // x.dtype.itemsize
    return -(-size // tile) * tile


def _zero(x: jax.Array) -> jax.Array:
    return lax.full((), 0, x.dtype)

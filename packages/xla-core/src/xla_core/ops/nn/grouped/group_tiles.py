"""Grouped products by tiles of equal height, for the CPU, whose own grouped product multiplies all rows with the matrix of each group.

Each group begins a tile of its own, so that rows / height + groups tiles are enough for groups of any sizes. A loop goes over them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from xla_core.ops.linalg.matmul import contract
from xla_core.ops.promote import compute_dtype

_LOWEST, _HIGHEST = 32, 128
_TURN = 64
"""What a turn of the loop costs beside its product: as much as so many rows of it."""


class Tiles(NamedTuple):
    """Of each tile: its group, its first row, and how many of its rows are the group's; 0 behind the last one."""

    group: jax.Array
    first: jax.Array
    rows: jax.Array


def height(rows: int, groups: int) -> int | None:
    """The rows of a tile, or None where tiles are no faster than all rows for each group."""
    found = _LOWEST
    while 2 * found <= min(rows // (4 * groups), _HIGHEST):
        found *= 2
    return found if _count(rows, groups, found) * (found + _TURN) < groups * rows else None


def _count(rows: int, groups: int, height: int) -> int:
    return -(-rows // height) + groups


def tiles(ends: jax.Array, rows: int, height: int) -> Tiles:
    """The tiles of groups that end at `ends` (groups,), in the order of their rows."""
    groups, starts = ends.shape[0], lax.pad(ends, np.array(0, ends.dtype), [(1, -1, 0)])
    last = lax.cumsum((ends - starts + (height - 1)) // height)
    number = lax.iota(ends.dtype, _count(rows, groups, height))
    passed = lax.le(lax.broadcast_in_dim(last, (number.size, groups), (1,)), lax.broadcast_in_dim(number, (number.size, groups), (0,)))
    group = lax.reduce_sum(passed.astype(ends.dtype), [1])
    real = group < groups
    group = lax.min(group, lax.full_like(group, groups - 1))
    before = lax.pad(last, np.array(0, ends.dtype), [(1, -1, 0)])
    first = _at(starts, group) + (number - _at(before, group)) * height
    left = lax.clamp(np.array(0, ends.dtype), _at(ends, group) - first, np.array(height, ends.dtype))
    return Tiles(group, lax.select(real, first, lax.full_like(first, rows)), lax.select(real, left, lax.full_like(left, 0)))


def _at(values: jax.Array, places: jax.Array) -> jax.Array:
    return values.at[places].get(mode="promise_in_bounds")


def rows_by_groups(a: jax.Array, b: jax.Array, ends: jax.Array, height: int) -> jax.Array:
    """Rows of `a` (M, K), each with the matrix of its group of `b` (groups, K, N): (M, N), zeros for rows in no group.

    Not cast back from the accumulation dtype, as the next one.
    """
    whole = lax.pad(a, np.array(0, a.dtype), [(0, height, 0), (0, 0, 0)])

    def product(tile: Tiles) -> jax.Array:
        rows = lax.dynamic_slice_in_dim(whole, tile.first, height)
        found = contract(rows, lax.dynamic_index_in_dim(b, tile.group, keepdims=False), ((1,), (0,)))
        return _kept(found, tile)

    def turn(found: jax.Array, tile: Tiles) -> tuple[jax.Array, None]:
        # A tile's rows behind its group are zeros, until the next tile is written over them.
        return lax.dynamic_update_slice_in_dim(found, again(tile), tile.first, 0), None

    again = jax.checkpoint(product, prevent_cse=False)  # for JAX's derivatives: else they keep a matrix for each tile
    empty = lax.full((a.shape[0] + height, b.shape[2]), 0, compute_dtype(a.dtype))
    found, _ = lax.scan(turn, empty, tiles(ends, a.shape[0], height))
    return lax.slice_in_dim(found, 0, a.shape[0])


def terms_by_groups(a: jax.Array, b: jax.Array, ends: jax.Array, height: int) -> jax.Array:
    """For each group the product of its columns of `a` (K, M) with its rows of `b` (M, N): (groups, K, N)."""
    edges = [(0, height, 0), (0, 0, 0)]
    left, right = lax.pad(lax.transpose(a, (1, 0)), np.array(0, a.dtype), edges), lax.pad(b, np.array(0, b.dtype), edges)

    def product(tile: Tiles) -> jax.Array:
        # Both: a number of another group may be infinite.
        rows, others = (_kept(lax.dynamic_slice_in_dim(each, tile.first, height), tile) for each in (left, right))
        return contract(rows, others, ((0,), (0,)))

    def turn(found: jax.Array, tile: Tiles) -> tuple[jax.Array, None]:
        total = lax.add(lax.dynamic_index_in_dim(found, tile.group, keepdims=False), again(tile))
        return lax.dynamic_update_index_in_dim(found, total, tile.group, 0), None

    again = jax.checkpoint(product, prevent_cse=False)
    empty = lax.full((ends.shape[0], a.shape[0], b.shape[1]), 0, compute_dtype(a.dtype))
    found, _ = lax.scan(turn, empty, tiles(ends, b.shape[0], height))
    return found


def _kept(rows: jax.Array, tile: Tiles) -> jax.Array:
    """Rows with zeros in the place of those that are not the group's."""
    inside = lax.lt(lax.broadcasted_iota(tile.rows.dtype, rows.shape, 0), lax.broadcast(tile.rows, rows.shape))
    return lax.select(inside, rows, lax.full_like(rows, 0))

"""The indices of shards: a worked example, and random ones, which cover a tensor once per copy."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_xla.distributed.spmd as xs
from xla_spmd.errors import ShardingError
from xla_spmd.op_sharding import MANUAL, REPLICATED
from xla_spmd.shards import shard_indices, shard_shape, tile_counts

FOUR_TWO = xs.Mesh(range(8), (4, 2))
ALL = range(8)


def test_worked_example() -> None:
    sharding = FOUR_TWO.get_op_sharding((0, None))
    assert shard_shape(sharding, (10, 4)) == (3, 4)
    found = shard_indices(sharding, (10, 4), ALL)
    rows = [(0, 3), (0, 3), (3, 6), (3, 6), (6, 9), (6, 9), (9, 10), (9, 10)]
    assert [one.indices for one in found] == [[slice(*row, 1), slice(0, 4, 1)] for row in rows]
    assert [one.replica_id for one in found] == [0, 1] * 4
    assert shard_indices(sharding, (10, 4), [7, 2]) == [found[7], found[2]], "in the order asked for"


def test_replica_ids() -> None:
    assert [one.replica_id for one in shard_indices(FOUR_TWO.get_op_sharding((0, 1)), (8, 8), ALL)] == [0] * 8
    assert [one.replica_id for one in shard_indices(FOUR_TWO.get_op_sharding((None, 1)), (8, 8), ALL)] == [0, 0, 1, 1, 2, 2, 3, 3]
    for sharding in (REPLICATED, FOUR_TWO.get_op_sharding((None, None)), xs.Mesh(ALL, (2, 2, 2)).get_op_sharding((None, None))):
        found = shard_indices(sharding, (8, 8), [5, 3])
        assert [(one.indices, one.replica_id) for one in found] == [(..., 5), (..., 3)], "the device itself"
    assert shard_shape(REPLICATED, (10, 4)) == (10, 4) and shard_shape(REPLICATED, ()) == ()


def test_more_tiles_than_rows() -> None:
    sharding = FOUR_TWO.get_op_sharding((0, None))
    assert shard_shape(sharding, (5, 3)) == (2, 3)
    assert [one.indices for one in shard_indices(sharding, (5, 3), [0, 4, 6])] == [
        [slice(0, 2, 1), slice(0, 3, 1)],
        [slice(4, 5, 1), slice(0, 3, 1)],
        [slice(5, 5, 1), slice(0, 3, 1)],
    ]
    assert shard_shape(sharding, (0, 3)) == (0, 3) and shard_indices(sharding, (0, 3), [7])[0].indices == [slice(0, 0, 1), slice(0, 3, 1)]


@st.composite
def shardings(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], int]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    ids = list(range(math.prod(shape)))
    random.Random(draw(st.integers(0, 99))).shuffle(ids)
    tensor = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    spec: list[Any] = [() for _ in tensor]
    for axis in draw(st.permutations(range(len(shape)))):
        dim = draw(st.integers(-1, len(tensor) - 1))
        if dim >= 0:
            spec[dim] = (*spec[dim], axis)
    return xs.Mesh(ids, shape).get_op_sharding(tuple(spec)), tensor, len(ids)


@given(shardings())
def test_each_copy_covers_the_tensor_once(drawn: tuple[Any, tuple[int, ...], int]) -> None:
    sharding, shape, count = drawn
    covered: dict[int, Any] = {}
    largest = shard_shape(sharding, shape)
    even = all(size % tiles == 0 for size, tiles in zip(shape, tile_counts(sharding, len(shape)), strict=True))
    for one in shard_indices(sharding, shape, range(count)):
        place = (...,) if one.indices is ... else tuple(one.indices)
        copy = covered.setdefault(one.replica_id, np.zeros(shape, int))
        copy[place] += 1
        sizes = copy[place].shape
        assert all(size <= most for size, most in zip(sizes, largest, strict=True))
        assert not even or sizes == largest
    assert len(covered) * math.prod(tile_counts(sharding, len(shape))) == count
    assert all((copy == 1).all() for copy in covered.values())


@given(shardings())
def test_tiles_follow_each_other(drawn: tuple[Any, tuple[int, ...], int]) -> None:
    """numpy cuts the padded tensor into equal tiles; each device holds the tile that the tile assignment gives it."""
    sharding, shape, _ = drawn
    counts, shard = tile_counts(sharding, len(shape)), shard_shape(sharding, shape)
    padded = np.full([tiles * size for tiles, size in zip(counts, shard, strict=True)], -1)
    whole = np.arange(math.prod(shape)).reshape(shape)
    padded[tuple(map(slice, shape))] = whole
    for *tile, replica in np.ndindex(*sharding.tiles.shape) if sharding.dims else ():
        (one,) = shard_indices(sharding, shape, [int(sharding.tiles[(*tile, replica)])])
        if one.indices is ...:
            continue
        cut = padded
        for axis, (index, tiles) in enumerate(zip(tile, counts, strict=True)):
            cut = np.split(cut, tiles, axis)[index]
        assert whole[tuple(one.indices)].ravel().tolist() == cut[cut >= 0].tolist() and one.replica_id == replica


def test_what_does_not_fit() -> None:
    sharding = FOUR_TWO.get_op_sharding((0, 1))
    with pytest.raises(ShardingError, match=r"\{devices=\[4,2\]0,1,2,3,4,5,6,7\} is for 2 dimensions, the tensor has 1"):
        shard_shape(sharding, (8,))
    with pytest.raises(ShardingError, match=r"devices \[8, 11\] are not of the sharding"):
        shard_indices(sharding, (8, 8), [8, 0, 11])
    with pytest.raises(ShardingError, match="disable_manual_sharding first"):
        shard_shape(MANUAL, (8,))

"""A sharding as a value: equality by meaning, what contradicts itself, texts read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from torch_xla.distributed.spmd import ShardingType
from xla_spmd.errors import ShardingError
from xla_spmd.op_sharding import MANUAL, REPLICATED, OpSharding, parse

TILED, PARTIAL = ShardingType.TILED, ShardingType.PARTIAL


def sharding(*values: Any) -> OpSharding:
    return OpSharding(*values)


def test_equal_are_shardings_of_one_meaning() -> None:
    tiled = sharding([[0, 1]], [], [], 3)
    assert tiled == sharding([0, 1], [[0, 1]], [[0], [1]], PARTIAL), "groups of one"
    assert sharding([0, 1], [0], [[0, 1]], PARTIAL) == REPLICATED == sharding([0], [], [], ShardingType.MAXIMAL)
    assert sharding([[0]], [], [], TILED) == REPLICATED, "one device"
    assert sharding([[1], [0]], [1, 0], [[0], [1]], PARTIAL) == sharding([1, 0], [], [], TILED), "groups are numbered as one likes"
    different = {tiled, sharding([[1, 0]], [], [], TILED), sharding([0, 1], [], [], TILED), REPLICATED, MANUAL}
    assert len(different) == 5 and tiled != "{devices=[1,2]0,1}"
    assert hash(tiled) == hash(sharding([0, 1], [[0, 1]], [[0], [1]], PARTIAL))


def test_read_back_as() -> None:
    assert sharding([0, 1], [[0, 1]], [[0], [1]], PARTIAL).effective_type is TILED
    assert sharding([0, 1], [0], [[0, 1]], PARTIAL).effective_type is ShardingType.REPLICATED
    assert MANUAL.effective_type is ShardingType.MANUAL and str(MANUAL) == "{manual}"


def test_arrays_are_its_own() -> None:
    ids = np.array([0, 1])
    kept = sharding(ids, [], [], TILED)
    ids[0] = 7
    assert str(kept) == "{devices=[2]0,1}" and repr(kept) == "OpSharding('{devices=[2]0,1}')"
    for array in (kept.tile_assignment, kept.tiles, sharding([], [0, 1], [[0, 2], [1, 3]], PARTIAL).tiles):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (([0, 0], [], [], 3), r"each of its devices once, by ids from 0 on, got \[0, 0\]"),
        (([-1, 0], [], [], 3), r"got \[-1, 0\]"),
        (([], [], [], 3), r"got \[\]"),
        (([[0], [1, 2]], [], [], 3), r"tile_assignment: lists of one length each, got \[\[0\], \[1, 2\]\]"),
        ((["a"], [], [], 3), r"tile_assignment holds integers, got \['a'\]"),
        (([0, 1], [0, 1], [[0, 1]], 5), r"got groups \[\[0, 1\]\] and their assignment \[0, 1\]"),
        (([0, 1], [], [], 5), r"groups \[\]"),
        (([1], [], [], 1), r"device 0 as the only one, got \[1\]"),
        (([0], [], [], ShardingType.UNKNOWN), "one of REPLICATED, MAXIMAL, TILED, MANUAL, PARTIAL, got"),
        (([0], [], [], 9), "got 9"),
    ],
)
def test_values_that_contradict_each_other(values: Any, said: str) -> None:
    with pytest.raises(ShardingError, match=said) as caught:
        sharding(*values)
    assert isinstance(caught.value, ValueError)


def test_texts_of_xla_with_ranges() -> None:
    """As XLA abbreviates them, read as XLA reads them."""
    for shape, spec in [((4, 2), P("x", "y")), ((4, 2), P(None, "y")), ((4, 2), P(("y", "x"))), ((2, 3), P("y"))]:
        theirs = NamedSharding(AbstractMesh(shape, ("x", "y")), spec)._to_xla_hlo_sharding(2)
        assert "<=" in str(theirs)
        assert parse(str(theirs)).tiles.ravel().tolist() == theirs.tile_assignment_devices()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "replicated",
        "{maximal device=0}",
        "{devices=[2]0}",
        "{devices=[2]0,0}",
        "{devices=[2]0,1",
        "{devices=[2]0,1}}",
        "{devices=[2,]0,1}",
        "{devices=[4]<=[3]}",
        "{devices=[4]<=[2,2]T(0)}",
        "{{replicated},{replicated}}",
    ],
)
def test_texts_of_no_sharding(text: str) -> None:
    with pytest.raises(ShardingError):
        parse(text)

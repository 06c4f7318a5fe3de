"""From mesh and spec to a sharding: a table of cases, and random ones against JAX's own shardings."""

from __future__ import annotations

import math
import random
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import xla_sharding
from xla_spmd.errors import AxisError, PartitionSpecError, ShardingError
from xla_spmd.mesh import named_axes
from xla_spmd.op_sharding import OpSharding, parse

FOUR_TWO, CUBE = xs.Mesh(range(8), (4, 2), ("x", "y")), xs.Mesh(range(8), (2, 2, 2))
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
COLUMNS = [[0, 2, 4, 6], [1, 3, 5, 7]]
ONES = [[device] for device in range(8)]
CROSS = [[0, 2], [1, 3], [4, 6], [5, 7]]
TILED, PARTIAL, REPLICATED = xs.ShardingType.TILED, xs.ShardingType.PARTIAL, xs.ShardingType.REPLICATED

# mesh, spec, tile assignment, group assignment, groups, type, text; the last rows follow from the rules
TABLE: list[tuple[xs.Mesh, Any, Any, Any, Any, xs.ShardingType, str]] = [
    (FOUR_TWO, (0, 1), PAIRS, [], [], TILED, "{devices=[4,2]0,1,2,3,4,5,6,7}"),
    (FOUR_TWO, (1, 0), COLUMNS, [], [], TILED, "{devices=[2,4]0,2,4,6,1,3,5,7}"),
    (FOUR_TWO, (0, None), PAIRS, [[0], [1], [2], [3]], PAIRS, PARTIAL, "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
    (FOUR_TWO, (None, 1), COLUMNS, [[0, 1]], COLUMNS, PARTIAL, "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"),
    (FOUR_TWO, (0,), PAIRS, [0, 1, 2, 3], PAIRS, PARTIAL, "{devices=[4,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
    (FOUR_TWO, ((1, 0),), [0, 2, 4, 6, 1, 3, 5, 7], [], [], TILED, "{devices=[8]0,2,4,6,1,3,5,7}"),
    (FOUR_TWO, ((0, 1), None), list(range(8)), ONES, ONES, PARTIAL, "{devices=[8,1]0,1,2,3,4,5,6,7}"),
    (CUBE, ((0, 2), None), CROSS, [[0], [1], [2], [3]], CROSS, PARTIAL, "{devices=[4,1,2]0,2,1,3,4,6,5,7 last_tile_dim_replicate}"),
    (FOUR_TWO, (None, None), PAIRS, [], [], REPLICATED, "{replicated}"),
    (FOUR_TWO, ("y", "x"), COLUMNS, [], [], TILED, "{devices=[2,4]0,2,4,6,1,3,5,7}"),
    (FOUR_TWO, (), PAIRS, [], [], REPLICATED, "{replicated}"),
    (CUBE, (None, None), CUBE.get_logical_mesh().tolist(), [[0]], [list(range(8))], PARTIAL, "{replicated}"),
    (xs.Mesh([0], (1,)), (0,), [0], [], [], xs.ShardingType.MAXIMAL, "{replicated}"),
    (xs.Mesh([0], (1, 1)), (1,), [[0]], [0], [[0]], PARTIAL, "{replicated}"),
    (xs.Mesh([1, 0], (2, 1)), (0,), [[1], [0]], [0, 1], [[1], [0]], PARTIAL, "{devices=[2]1,0}"),
]


@pytest.mark.parametrize(("mesh", "spec", "tiles", "assignment", "groups", "kind", "text"), TABLE, ids=lambda cell: str(cell)[:30])
def test_table(mesh: xs.Mesh, spec: Any, tiles: Any, assignment: Any, groups: Any, kind: xs.ShardingType, text: str) -> None:
    assert mesh._get_op_sharding_args(spec) == (tiles, assignment, groups, int(kind))
    sharding = mesh.get_op_sharding(spec)
    assert str(sharding) == text and sharding.type is kind
    assert xla_sharding._get_tile_assignment(mesh, spec).tolist() == tiles
    whole = {dim for dim, entry in enumerate(spec) if entry is None}
    if spec:
        assert xla_sharding._get_group_assignment(kind, np.array(tiles), len(spec), whole) == (assignment, groups)
    assert OpSharding(*mesh._get_op_sharding_args(spec)) == sharding == parse(text)


def test_numbers() -> None:
    assert [(kind.name, int(kind)) for kind in xs.ShardingType] == [
        ("REPLICATED", 0),
        ("MAXIMAL", 1),
        ("TUPLE", 2),
        ("TILED", 3),
        ("MANUAL", 4),
        ("PARTIAL", 5),
        ("UNKNOWN", 6),
    ]


@pytest.mark.parametrize(
    ("spec", "count", "kind"),
    [
        ((0, 1), 8, TILED),
        ((0, None), 8, PARTIAL),
        ((None,), 8, REPLICATED),
        ((), 8, REPLICATED),
        (((), 0), 8, PARTIAL),
        ((0, None), 1, xs.ShardingType.MAXIMAL),
    ],
)
def test_type(spec: Any, count: int, kind: xs.ShardingType) -> None:
    assert xla_sharding._get_sharding_type(spec, count) is kind


def test_both_empty_unless_partial() -> None:
    assert xla_sharding._get_group_assignment(TILED, np.arange(4), 1, set()) == ([], [])
    with pytest.raises(ShardingError, match=r"dimensions \[0, 1\] are split, which a tile assignment of shape \(4,\)"):
        xla_sharding._get_group_assignment(PARTIAL, np.arange(4), 3, {2})


def test_names_become_indices() -> None:
    translate = xla_sharding._translate_named_partition_spec
    assert translate(FOUR_TWO, ("y", None, ("x",))) == (1, None, (0,))
    assert translate(FOUR_TWO, (("y", 0), np.int64(1))) == ((1, 0), 1)
    assert translate(FOUR_TWO, ((), "x")) == (None, 0), "no axes split nothing"
    assert translate(FOUR_TWO, ["x", None]) == (0, None)
    assert translate(FOUR_TWO, jax.sharding.PartitionSpec("x", ("y", 0))) == (0, (1, 0))


@pytest.mark.parametrize(
    ("mesh", "spec", "error", "said"),
    [
        (FOUR_TWO, ("z",), PartitionSpecError, r"^Axis name 'z' is not defined in mesh \(x, y\): partition spec \('z',\)"),
        (CUBE, ("x",), PartitionSpecError, r"^Axis name 'x' is not defined in mesh \(no names, use indices\)"),
        (FOUR_TWO, (("x", "z"),), PartitionSpecError, "Axis name 'z' is not"),
        (FOUR_TWO, (0.5,), PartitionSpecError, r"not 0.5: \(0.5,\)"),
        (FOUR_TWO, (True,), PartitionSpecError, "not True"),
        (FOUR_TWO, ([0, 1],), PartitionSpecError, r"not \[0, 1\]"),
        (FOUR_TWO, (("x", None),), PartitionSpecError, "not None"),
        (FOUR_TWO, "x", PartitionSpecError, "got 'x': a comma is missing?"),
        (FOUR_TWO, 0, PartitionSpecError, "got 0"),
        (FOUR_TWO, ((("x",), "y"),), AxisError, r"not tuples such as \('x',\)"),
    ],
)
def test_what_is_no_spec(mesh: xs.Mesh, spec: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        xla_sharding._translate_named_partition_spec(mesh, spec)
    assert isinstance(caught.value, ValueError if error is PartitionSpecError else AssertionError)


@st.composite
def meshes_and_specs(draw: st.DrawFn) -> tuple[xs.Mesh, Any]:
    """A mesh of up to 81 devices in any order, with or without names, and a spec of any rank up to 4."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda shape: math.prod(shape) <= 81))
    ids = list(range(math.prod(shape)))
    random.Random(draw(st.integers(0, 99))).shuffle(ids)
    names = draw(st.sampled_from([None, tuple("abcd"[: len(shape)])]))
    spec: list[Any] = [[] for _ in range(draw(st.integers(0, 4)))]
    for axis in draw(st.permutations(range(len(shape)))):
        dim = draw(st.integers(-1, len(spec) - 1))
        if dim >= 0:
            spec[dim].append(names[axis] if names and draw(st.booleans()) else axis)
    entries = [tuple(axes) if len(axes) > 1 or (axes and draw(st.booleans())) else axes[0] if axes else None for axes in spec]
    return xs.Mesh(ids, shape, names), tuple(entries)


def as_jax(mesh: xs.Mesh, spec: Any) -> tuple[tuple[str, ...], PartitionSpec]:
    """Names for the mesh's axes, and the spec in these names."""
    names = named_axes(mesh)

    def named(entry: Any) -> Any:
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        return tuple(axis if isinstance(axis, str) else names[axis] for axis in axes) or None

    return names, PartitionSpec(*map(named, spec))


@given(meshes_and_specs())
@example((xs.Mesh(range(8), (4, 2)), ((1, 0), None)))
def test_shardings_are_those_of_jax(drawn: tuple[xs.Mesh, Any]) -> None:
    """JAX numbers devices by their place in the mesh, so that place → id is all that has to be added."""
    mesh, spec = drawn
    sharding, (names, jax_spec) = mesh.get_op_sharding(spec), as_jax(mesh, spec)
    theirs = NamedSharding(AbstractMesh(mesh.mesh_shape, names), jax_spec)._to_xla_hlo_sharding(len(spec))
    if theirs.is_replicated():
        assert str(sharding) == "{replicated}" and sharding.effective_type is REPLICATED
        return
    *dims, replicas = [*theirs.tile_assignment_dimensions(), *([] if theirs.replicate_on_last_tile_dim() else [1])]
    assert sharding.tiles.shape == (*dims, replicas) and sharding.dims == tuple(dims)
    assert sharding.tiles.ravel().tolist() == mesh.device_ids[theirs.tile_assignment_devices()].tolist()
    assert sharding.effective_type is (TILED if replicas == 1 else PARTIAL)
    read = type(theirs).from_string(str(sharding))
    assert read.tile_assignment_devices() == np.sort(sharding.tiles, axis=-1).ravel().tolist(), "XLA reads a group as a set"
    assert read.tile_assignment_dimensions() == list(sharding.tiles.shape if replicas > 1 else dims)


@given(meshes_and_specs())
def test_every_device_is_in_every_assignment_once(drawn: tuple[xs.Mesh, Any]) -> None:
    mesh, spec = drawn
    tiles, assignment, groups, kind = mesh._get_op_sharding_args(spec)
    everyone = list(range(mesh.size()))
    assert sorted(np.ravel(tiles).tolist()) == everyone
    if kind == PARTIAL:
        assert sorted(np.ravel(groups).tolist()) == everyone
        assert np.ravel(assignment).tolist() == list(range(len(groups)))
        assert np.ndim(assignment) == len(spec)
    assert parse(str(mesh.get_op_sharding(spec))) == mesh.get_op_sharding(spec) == OpSharding(tiles, assignment, groups, kind)


def test_thousands_of_devices() -> None:
    ids = np.random.default_rng(0).permutation(4096)
    mesh = xs.Mesh(ids, (16, 16, 16))
    sharding = mesh.get_op_sharding(((2, 0), None))
    assert sharding.tiles.shape == (256, 1, 16)
    assert np.array_equal(sharding.tiles, ids.reshape(16, 16, 16).transpose(2, 0, 1).reshape(256, 1, 16))
    assert parse(str(sharding)) == sharding

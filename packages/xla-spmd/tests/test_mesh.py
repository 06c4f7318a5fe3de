"""Meshes: what makes one, their value, their text, the global and the one-dimensional one."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core.abi.metrics import snapshot
from xla_spmd.errors import AxisError, MeshError, PartitionSpecError


def created() -> int:
    return snapshot().counters.get("CreateOpSharding", 0)


@pytest.fixture
def no_global_mesh() -> Iterator[None]:
    previous = xs.get_global_mesh()
    xs.set_global_mesh(None)
    yield
    xs.set_global_mesh(previous)


@pytest.mark.parametrize("ids", [range(8), list(range(8)), np.arange(8), np.arange(8, dtype=np.int32), iter(range(8)), tuple(range(8))])
def test_any_iterable_of_ids(ids: Any) -> None:
    mesh = xs.Mesh(ids, [4, 2], ["x", "y"])
    assert isinstance(mesh.device_ids, np.ndarray) and mesh.device_ids.tolist() == list(range(8))
    assert mesh.mesh_shape == (4, 2) and mesh.axis_names == ("x", "y")
    assert mesh.size() == 8 and mesh.shape() == OrderedDict(x=4, y=2)
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [mesh.get_axis_name_idx(name) for name in ("x", "y", "z")] == [0, 1, None]


def test_without_names() -> None:
    mesh = xs.Mesh([3, 1, 2, 0], (1, 4))
    assert mesh.axis_names is None and mesh.shape() == OrderedDict([(0, 1), (1, 4)])
    assert mesh.get_logical_mesh().tolist() == [[3, 1, 2, 0]]
    assert mesh.get_axis_name_idx("x") is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((range(8), (4, 2), ("x",)), r"shape \(4, 2\) needs 2 axis names, got \('x',\)"),
        ((range(8), (4, 2), ("x", "x")), r"^Axis names must be unique, got \('x', 'x'\)"),
        ((range(8), (4, 2), ("x", 1)), "axis names are texts"),
        ((range(7), (4, 2)), r"^Number of device IDs \(7\) must match mesh size \(8\): .* one list of 8 ids, got ids of shape \(7,\)"),
        (([[0, 1], [2, 3]], (2, 2)), r"one list of 4 ids, got ids of shape \(2, 2\)"),
        (([0, 1, 2, 2], (2, 2)), r"^Device IDs must be unique: .* ids 0 to 3, each once; out of range: \[\], repeated: \[2\]"),
        (([0, 1, 2, 4], (2, 2)), r"^Device IDs must be less than mesh size: .* out of range: \[4\], repeated: \[\]. A mesh over a part"),
        (([0, 1, 2, -1], (2, 2)), r"^Device IDs must be 0 or more: .* out of range: \[-1\]"),
        (([0.0, 1.0], (2,)), r"integers, got \[0.0, 1.0\]"),
        (([True, False], (2,)), "integers"),
        (([], (0,)), r"size 1 or more, got shape \(0,\)"),
        ((range(4), (-2, -2)), r"size 1 or more, got shape \(-2, -2\)"),
        (([0], ()), r"at least one axis"),
    ],
)
def test_what_is_no_mesh(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(MeshError, match=said) as caught:
        xs.Mesh(*arguments)
    assert isinstance(caught.value, AssertionError)


def test_a_mesh_is_a_value() -> None:
    mesh = xs.Mesh(range(4), (2, 2), ("x", "y"))
    same = xs.Mesh(np.arange(4), [2, 2], ["x", "y"])
    assert mesh == same and hash(mesh) == hash(same)
    others = [xs.Mesh(range(4), (2, 2)), xs.Mesh(range(4), (4, 1), ("x", "y")), xs.Mesh([1, 0, 2, 3], (2, 2), ("x", "y"))]
    assert len({mesh, same, *others}) == 4 and mesh != "mesh"
    ids = np.arange(4)
    kept = xs.Mesh(ids, (4,))
    ids[0] = 9
    assert kept.device_ids.tolist() == [0, 1, 2, 3], "the caller's array stays the caller's"
    with pytest.raises(ValueError, match="read-only"):
        kept.device_ids[0] = 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda mesh: pickle.loads(pickle.dumps(mesh))])
def test_copies_are_equal(again: Any) -> None:
    mesh = xs.Mesh([1, 0], (2,), ("x",))
    sharding = mesh.get_op_sharding(("x",))
    assert again(mesh) == mesh and again(mesh).get_op_sharding((0,)) is sharding


@pytest.mark.parametrize("mesh", [xs.Mesh([1, 3, 0, 2], (2, 2), ("x", "y")), xs.Mesh(range(3), (1, 3))])
def test_text_and_back(mesh: xs.Mesh) -> None:
    assert xs.Mesh.from_str(str(mesh)) == mesh
    assert eval(repr(mesh), {"Mesh": xs.Mesh}) == mesh


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mesh",
        "{",
        "[0, 1]",
        "{'device_ids': [0, 1], 'mesh_shape': (2,)}",
        "{'device_ids': [0, 1], 'mesh_shape': (3,), 'axis_names': None}",
        "{'device_ids': [0, 1], 'mesh_shape': 2, 'axis_names': None}",
        "{'device_ids': [[0], [1, 2]], 'mesh_shape': (3,), 'axis_names': None}",
        "__import__('os').getpid()",
        "(" * 5000,
    ],
)
def test_text_of_no_mesh(text: str) -> None:
    assert xs.Mesh.from_str(text) is None


@pytest.mark.usefixtures("no_global_mesh")
def test_the_very_mesh_that_was_set() -> None:
    assert xs.get_global_mesh() is None
    mesh = xs.Mesh(range(4), (2, 2))
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh


def test_looks_the_devices_up_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xr, "global_runtime_device_count", lambda: 6)
    assert xs.get_1d_mesh() == xs.Mesh(range(6), (6,))
    assert xs.get_1d_mesh("data") == xs.Mesh(range(6), (6,), ("data",))


def test_lists_are_the_callers() -> None:
    mesh = xs.Mesh(range(4), (2, 2))
    first = mesh._get_op_sharding_args((0, None))
    first[0].clear()
    first[2][0].clear()
    assert mesh._get_op_sharding_args((0, None)) == ([[0, 1], [2, 3]], [[0], [1]], [[0, 1], [2, 3]], 5)


def test_counts_each_mesh_and_spec_once() -> None:
    mesh = xs.Mesh([5, 4, 3, 2, 1, 0], (3, 2), ("counted", "twice"))
    before = created()
    mesh._get_op_sharding_args((0, 1))
    assert created() == before, "only shardings that were asked for count"
    sharding = mesh.get_op_sharding((0, 1))
    assert mesh.get_op_sharding((0, 1)) is sharding and mesh.get_op_sharding(("counted", "twice")) is sharding
    assert created() == before + 1
    assert xs.Mesh([5, 4, 3, 2, 1, 0], (3, 2), ("counted", "twice")).get_op_sharding((0, 1)) is sharding, "an equal mesh"
    mesh.get_op_sharding((1, 0))
    mesh.get_op_sharding(())
    assert created() == before + 3
    with pytest.raises(AxisError):
        mesh.get_op_sharding((2,))
    assert created() == before + 3


def test_shardings_go_with_the_last_equal_mesh() -> None:
    def once() -> int:
        before = created()
        xs.Mesh([3, 2, 1, 0], (4,), ("short-lived",)).get_op_sharding((0,))
        gc.collect()
        return created() - before

    assert [once(), once()] == [1, 1]


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        (
            (2, None),
            AxisError,
            r"^partition_spec \(2, None\) contains out of bound index into mesh_shape \(4, 2\): it has axes 0 to 1, got 2",
        ),
        ((-1,), AxisError, "has axes 0 to 1, got -1"),
        (((0, 5),), AxisError, "got 5"),
        ((0, 0), AxisError, r"^Each device mesh dimension should appear at most once in partition_spec \(0, 0\)"),
        (((0, 1), 1), AxisError, r"at most once in partition_spec \(\(0, 1\), 1\)"),
        (("x", "x"), AxisError, "once"),
        (("z",), PartitionSpecError, r"^Axis name 'z' is not defined in mesh \(x, y\)"),
    ],
)
def test_axes_that_a_mesh_has_not(spec: Any, error: type[Exception], said: str) -> None:
    mesh = xs.Mesh(range(8), (4, 2), ("x", "y"))
    for ask in (mesh._get_op_sharding_args, mesh.get_op_sharding):
        with pytest.raises(error, match=said) as caught:
            ask(spec)
        assert isinstance(caught.value, AssertionError if error is AxisError else ValueError)


def test_a_mesh_larger_than_the_hardware_has_no_jax_mesh() -> None:
    count = xr.global_runtime_device_count()
    with pytest.raises(MeshError, match=rf"the mesh has {count + 1} devices, the hardware {count}"):
        xs.Mesh(range(count + 1), (count + 1,)).get_jax_mesh()

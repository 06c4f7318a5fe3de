"""Meshes that follow the hardware: hand-made cases on patched topologies, and random ones against JAX's own placement."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from jax.experimental import mesh_utils

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_spmd.errors import MeshError, PlacementError, TopologyError

Device = dict[str, Any]
Patch = Callable[[list[Device]], None]


def chips(shape: Sequence[int], slices: int | None = None, cores: int = 1) -> list[Device]:
    """Devices of TPUs: cores of a chip first, then along x, then y, then z, then slices (no slice_index where `slices` is None)."""
    found: list[Device] = []
    for index in range(slices or 1):
        for place in range(math.prod(shape)):
            coords = [int(at) for at in np.unravel_index(place, shape, order="F")]
            for core in range(cores):
                device = {"name": f"TPU:{len(found)}", "coords": coords, "core_on_chip": core, "num_cores": cores}
                found.append(device if slices is None else device | {"slice_index": index})
    return found


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """`hardware(attributes)`: the devices of the job, as users' tests patch them."""
    return lambda attributes: monkeypatch.setattr(xr, "global_runtime_device_attributes", lambda: list(attributes))


def test_worked_two_slices_of_four(hardware: Patch) -> None:
    hardware(chips((2, 2, 1), slices=2))
    mesh = xs.HybridMesh(ici_mesh_shape=(1, 4, 1), dcn_mesh_shape=(2, 1, 1), axis_names=("data", "fsdp", "tensor"))
    assert list(mesh.shape().items()) == [("data", 2), ("fsdp", 4), ("tensor", 1)]
    assert mesh.device_ids.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert mesh == xs.Mesh([0, 2, 1, 3, 4, 6, 5, 7], (2, 4, 1), ("data", "fsdp", "tensor")), "a mesh like any other"
    square = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))
    assert square.get_logical_mesh().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_devices_are_ordered_by_the_number_in_their_name(hardware: Patch) -> None:
    devices = chips((4, 4, 1))
    hardware(devices[::-1])
    backwards = xs.HybridMesh((4, 4))
    hardware(sorted(devices, key=lambda device: str(device["name"])))  # TPU:10 before TPU:2
    assert xs.HybridMesh((4, 4)) == backwards
    assert backwards.get_logical_mesh()[1].tolist() == [4, 5, 6, 7]


def test_worked_torus(hardware: Patch) -> None:
    hardware(chips((4, 4, 4)))
    mesh = xs.HybridMesh((4, 16))
    placed, assignment = mesh._create_device_mesh_for_nd_torus(np.arange(64).reshape(4, 4, 4), (4, 16))
    assert assignment == [(2,), (0, 1)] and placed[1, :5].tolist() == [1, 5, 9, 13, 17]
    physical = mesh._get_physical_tpu_mesh(range(64))
    assert physical[1, 2, 3] == 1 + 2 * 4 + 3 * 16
    assert np.array_equal(mesh.get_logical_mesh(), physical.transpose(2, 0, 1).reshape(4, 16))
    _, several_rather_than_one = mesh._create_device_mesh_for_nd_torus(np.arange(16).reshape(2, 2, 4), (4, 4))
    assert several_rather_than_one == [(2,), (0, 1)]
    with pytest.raises(NotImplementedError, match=r"axis 1 of mesh shape \(2, 8\) .* sizes \[4, 4, 1\]") as caught:
        mesh._create_device_mesh_for_nd_torus(np.arange(16).reshape(4, 4, 1), (2, 8))
    assert isinstance(caught.value, PlacementError)


def test_slices_come_in_order_of_their_index(hardware: Patch) -> None:
    devices = chips((2, 1, 1), slices=3)
    for device in devices:
        device["slice_index"] = (2, 0, 1)[device["slice_index"]]
    hardware(devices)
    assert xs.HybridMesh((1, 2), (3, 1)).get_logical_mesh().tolist() == [[2, 3], [4, 5], [0, 1]]


def test_axes_that_do_not_fit_take_parts_of_physical_axes(hardware: Patch) -> None:
    hardware(chips((4, 4, 1)))
    mesh = xs.HybridMesh((2, 8))
    first, second = mesh.get_logical_mesh()
    assert sorted(first) == [0, 1, 2, 3, 4, 5, 6, 7], "the inner axis takes a compact half: y = 0 and 1"
    assert sorted(second) == [8, 9, 10, 11, 12, 13, 14, 15]
    hardware(chips((6, 2, 1)))
    assert sorted(xs.HybridMesh((2, 3, 2)).device_ids) == list(range(12))


def test_no_slices_need_no_second_shape(hardware: Patch) -> None:
    hardware(chips((2, 2, 1)))
    assert xs.HybridMesh((4,)) == xs.HybridMesh(ici_mesh_shape=(4,), dcn_mesh_shape=(1,)) == xs.HybridMesh((4,), None, None)


def test_two_cores_on_a_chip(hardware: Patch) -> None:
    hardware(chips((2, 2, 1), cores=2))
    mesh = xs.HybridMesh((4, 2))
    assert mesh.get_logical_mesh().shape == (4, 2) and sorted(mesh.device_ids) == list(range(8))
    physical = mesh._get_physical_tpu_mesh(range(8))
    assert physical.shape == (2, 2, 1, 2) and physical[1, 0, 0].tolist() == [2, 3]


def test_a_subset_of_a_slice_need_not_start_at_its_corner(hardware: Patch) -> None:
    devices = chips((2, 2, 1))
    for device in devices:
        device["coords"] = [device["coords"][0] + 2, device["coords"][1], 5]
    hardware(devices)
    assert xs.HybridMesh((2, 2))._get_physical_tpu_mesh(range(4)).tolist() == [[[0], [2]], [[1], [3]]]


def test_hardware_without_coordinates_is_row_major(hardware: Patch) -> None:
    hardware([{"name": f"CPU:{number}"} for number in range(8)])
    assert xs.HybridMesh((4, 2), axis_names=("x", "y")) == xs.Mesh(range(8), (4, 2), ("x", "y"))
    hardware([{"name": f"CUDA:{number}", "slice_index": number % 2} for number in range(8)])
    assert xs.HybridMesh((1, 4), (2, 1)).get_logical_mesh().tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    ("devices", "arguments", "error", "said"),
    [
        (chips((2, 2, 1)), ((2, 2), (1,)), MeshError, r"an entry of at least 1 for each axis, got \(2, 2\) and \(1,\)"),
        (chips((2, 2, 1)), ((2, 2), (1, 1, 1)), MeshError, r"got \(2, 2\) and \(1, 1, 1\)"),
        (chips((2, 2, 1)), ((-2, -2),), MeshError, r"at least 1 for each axis, got \(-2, -2\)"),
        (chips((2, 2, 1)), ((2, 2), None, ("x",)), MeshError, "needs 2 axis names"),
        (chips((2, 2, 1), slices=2), ((2, 2),), TopologyError, r"give dcn_mesh_shape.* ici_mesh_shape is \(2, 2\)"),
        (chips((2, 2, 1), slices=2), ((2, 4), (1, 1)), TopologyError, "give dcn_mesh_shape"),
        (
            chips((2, 2, 1)),
            ((2, 1), (2, 1)),
            TopologyError,
            r"dcn_mesh_shape \(2, 1\) asks for 2 slices, and these devices are not in slices",
        ),
        (chips((2, 2, 1), slices=2), ((2, 2), (3, 1)), TopologyError, r"dcn_mesh_shape \(3, 1\) asks for 3 slices, the hardware has 2"),
        (chips((2, 2, 1), slices=2), ((2, 1), (2, 1)), TopologyError, r"shape \(2, 1\) has 2 devices, a slice of the hardware 4"),
        (chips((2, 2, 1)), ((2, 4),), TopologyError, r"shape \(2, 4\) has 8 devices, a slice of the hardware 4"),
        (chips((2, 2, 1))[:3], ((3,),), TopologyError, r"3 devices do not fill a box of \(2, 2, 1\) coordinates"),
        ([{"name": "TPU"}], ((1,),), TopologyError, "ends with its number, such as TPU:3, got 'TPU'"),
    ],
)
def test_what_does_not_fit(hardware: Patch, devices: list[Device], arguments: Any, error: type[Exception], said: str) -> None:
    hardware(devices)
    with pytest.raises(error, match=said) as caught:
        xs.HybridMesh(*arguments)
    assert isinstance(caught.value, AssertionError if error is MeshError else ValueError)


PRIMES = {1: [], 2: [2], 3: [3], 4: [2, 2], 6: [2, 3]}


@st.composite
def topologies(draw: st.DrawFn, pieces: Callable[[int], list[int]]) -> tuple[list[int], list[int], list[int]]:
    """Shape of a slice, and inner and outer mesh shapes; `pieces` of each physical axis go to any logical axis."""
    shape = draw(st.lists(st.sampled_from(sorted(PRIMES)), min_size=3, max_size=3).filter(lambda shape: math.prod(shape) <= 96))
    outer = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda outer: 1 < math.prod(outer) <= 6))
    inner = [1] * len(outer)
    for size in shape:
        for piece in pieces(size):
            inner[draw(st.integers(0, len(inner) - 1))] *= piece
    return shape, inner, outer


def placed(devices: list[Device], inner: list[int], outer: list[int]) -> Any:
    """The ids of a hybrid mesh; each device is in it once, and blocks of the inner shape stay in one slice, in order of slices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xr, "global_runtime_device_attributes", lambda: devices)
        ids = xs.HybridMesh(inner, outer).get_logical_mesh()
    assert ids.shape == tuple(a * b for a, b in zip(inner, outer, strict=True)) and sorted(ids.ravel()) == list(range(len(devices)))
    for block, corner in enumerate(np.ndindex(*outer)):
        region = ids[tuple(slice(at * size, (at + 1) * size) for at, size in zip(corner, inner, strict=True))]
        assert {devices[device]["slice_index"] for device in region.ravel()} == {block}
    return ids


@given(topologies(PRIMES.__getitem__))
def test_inner_axes_never_cross_slices(topology: tuple[list[int], list[int], list[int]]) -> None:
    shape, inner, outer = topology
    placed(chips(shape, slices=math.prod(outer)), inner, outer)


@given(topologies(lambda size: [size]))
def test_placements_are_those_of_jax(topology: tuple[list[int], list[int], list[int]]) -> None:
    shape, inner, outer = topology
    devices = chips(shape, slices=math.prod(outer))
    ids = placed(devices, inner, outer)
    objects = [SimpleNamespace(id=number, platform="tpu", device_kind="TPU v4", **device) for number, device in enumerate(devices)]
    try:
        theirs = mesh_utils.create_hybrid_device_mesh(inner, outer, objects)
    except NotImplementedError:  # an axis that came first took what another one needed
        reject()
    assert ids.ravel().tolist() == [device.id for device in theirs.ravel()]


def test_thousands_of_devices(hardware: Patch) -> None:
    hardware(chips((16, 16, 4), slices=4))
    mesh = xs.HybridMesh((1, 4, 256), (4, 1, 1))
    assert np.array_equal(np.sort(mesh.device_ids), np.arange(4096))
    assert mesh.get_logical_mesh()[3, 0, :3].tolist() == [3072, 3088, 3104]

"""Meshes laid over a torus of chips in whole or parts of its axes: properties that NumPy can check, and worked examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla.distributed.spmd import xla_sharding
from xla_spmd.errors import PlacementError, TopologyError

create = xla_sharding._create_device_mesh_for_nd_torus
split = xla_sharding._create_device_mesh_for_nd_torus_splitting_axes


@given(st.integers(1, 5000))
def test_prime_factors(number: int) -> None:
    found = xla_sharding._get_prime_factors(number)
    assert math.prod(found) == number and found == sorted(found)
    assert all(all(factor % smaller for smaller in range(2, factor)) for factor in found)


@st.composite
def tori(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """The ids of a torus, and a logical shape of the same size."""
    shape = draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=3))
    mesh_shape = [1] * draw(st.integers(1, 3))
    for prime in draw(st.permutations(xla_sharding._get_prime_factors(math.prod(shape)))):
        mesh_shape[draw(st.integers(0, len(mesh_shape) - 1))] *= prime
    return np.arange(math.prod(shape)).reshape(shape), tuple(mesh_shape)


@given(tori())
def test_axes_in_parts(asked: tuple[np.ndarray[Any, Any], tuple[int, ...]]) -> None:
    physical, shape = asked
    mesh, assignment = split(physical, shape)
    assert mesh.shape == shape and np.array_equal(np.sort(mesh.ravel()), np.arange(physical.size))
    assert assignment.prod(axis=0).tolist() == list(shape) and assignment.prod(axis=1).tolist() == list(physical.shape)
    # A step along a logical axis is a step along the physical axes that it takes parts of, and along no others.
    for axis in range(len(shape)):
        lines = np.moveaxis(mesh, axis, 0).reshape(shape[axis], -1)
        for line in lines.T:
            places = np.array(np.unravel_index(line, physical.shape))
            moved = (places != places[:, :1]).any(axis=1)
            assert not moved[assignment[:, axis] == 1].any()


@given(tori())
def test_whole_axes_where_they_do(asked: tuple[np.ndarray[Any, Any], tuple[int, ...]]) -> None:
    physical, shape = asked
    try:
        mesh, assignment = create(physical, shape)
    except NotImplementedError as error:
        assert isinstance(error, PlacementError)
        assert np.array_equal(create(physical, shape, allow_split_physical_axes=True)[0], split(physical, shape)[0])
        return
    taken = (assignment > 1).sum(axis=1)
    assert set(assignment.ravel()) <= {1, *physical.shape} and (taken <= 1).all()
    assert np.array_equal(mesh, xla_sharding._generate_logical_mesh(physical, shape, assignment))


def test_worked_examples() -> None:
    torus = np.arange(64).reshape(4, 4, 4)
    mesh, assignment = create(torus, (4, 16))
    assert assignment.tolist() == [[1, 4], [1, 4], [4, 1]] and mesh[1, :5].tolist() == [1, 5, 9, 13, 17]
    mesh, assignment = split(np.arange(16).reshape(4, 4), (2, 8))
    assert assignment.tolist() == [[1, 4], [2, 2]], "a whole axis first, and of the other the neighbours"
    assert mesh[0].tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    with pytest.raises(ValueError, match="16 devices, the torus 64") as caught:
        create(torus, (4, 4))
    assert isinstance(caught.value, TopologyError)


def test_feasible_assignments_are_all_that_there_are() -> None:
    taken = np.array([[2, 1], [1, 1], [1, 1]])
    found = [one.tolist() for one in xla_sharding._enumerate_feasible_logical_axis_assignments((4, 6, 2), taken, 4)]
    wanted = [[a, b, c] for a in (1, 2) for b in (1, 2, 3, 6) for c in (1, 2) if a * b * c == 4]
    assert sorted(found) == sorted(wanted)


def test_what_is_preferred() -> None:
    def prefers(x: list[int], y: list[int], used: tuple[int, ...] = (1, 1, 1)) -> bool:
        assignment = np.array(used)[:, None]
        return bool(
            xla_sharding._prefer_first_logical_axis_assignment(
                np.array(x), np.array(y), physical_mesh_shape=(4, 4, 2), assignment=assignment
            )
        )

    assert prefers([4, 1, 1], [2, 2, 1]) and not prefers([2, 2, 1], [4, 1, 1]), "rings"
    assert prefers([1, 2, 1], [2, 1, 1], (2, 1, 1)), "axes of their own"
    assert not prefers([4, 1, 1], [4, 1, 1])


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_linear_layers(bias: bool) -> None:
    x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    b = torch.randn(5, requires_grad=True) if bias else None
    result = torch.nn.functional.linear(x, w, b)
    grad = torch.randn_like(result)
    result.backward(grad)
    on_device = [None if one is None else one.detach().to("xla") for one in (grad, x, w, b)]
    for needs in [(True, True, True), (False, True, False), (False, False, False)]:
        found = xla_sharding._einsum_linear_backward_operation(*on_device, *needs)
        shapes = xla_sharding._einsum_linear_backward_fake(*on_device, *needs)
        for mine, empty, theirs, needed in zip(found, shapes, (x, w, b), needs, strict=True):
            if not needed or theirs is None:
                assert mine is None and empty is None
            else:
                torch.testing.assert_close(mine.cpu(), theirs.grad)
                assert (empty.shape, empty.dtype, empty.device) == (mine.shape, mine.dtype, mine.device)
    fake = xla_sharding._einsum_linear_forward_fake(*on_device[1:])
    assert (fake.shape, fake.dtype) == (result.shape, result.dtype)
    assert xla_sharding.aot_mark_sharding_fake(on_device[1], "", "").shape == x.shape

"""Lay the axes of a mesh over the axes of a torus of chips, in whole or in parts.

An assignment is an array with a row for each physical axis and a column for each logical one: the factor of the physical axis that the
logical one takes, 1 for none. Logical axes go from least to most traffic, and the last one chooses first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from xla_spmd.errors import PlacementError, TopologyError
from xla_spmd.hybrid import primes, whole_axes
from xla_spmd.op_sharding import Ids


def prime_factors(x: int) -> list[int]:
    """The prime factors of a positive number, ascending, as often as they divide it."""
    return list(primes(x))


def feasible_assignments(physical_mesh_shape: Sequence[int], assignment: Ids, logical_axis_size: int) -> Iterator[Ids]:
    """All ways to give a logical axis its size: the factor of each physical axis, of what `assignment` has left of it."""
    left = np.array(physical_mesh_shape, np.int64) // np.prod(assignment, axis=1, dtype=np.int64)
    choices = [
        [factor for factor in range(1, size + 1) if size % factor == 0 and logical_axis_size % factor == 0] for size in left.tolist()
    ]
    for factors in itertools.product(*choices):
        if math.prod(factors) == logical_axis_size:
            yield np.array(factors, np.int64)


def prefers_first(x: Ids, y: Ids, *, physical_mesh_shape: Sequence[int], assignment: Ids) -> bool:
    """Whether the factors `x` serve a logical axis better than `y`.

    Better are: more chips on whole physical axes, whose links close to a ring; more of such axes, whose links work side by side; fewer
    physical axes that other logical axes use already; larger factors of earlier axes.
    """
    shape, used = np.array(physical_mesh_shape, np.int64), np.prod(assignment, axis=1, dtype=np.int64) > 1

    def merit(factors: Ids) -> tuple[int, int, int, tuple[int, ...]]:
        taken = factors > 1
        rings = factors[taken & (factors == shape)]
        return math.prod(rings.tolist()), len(rings), -int((taken & used).sum()), tuple(factors.tolist())

    return merit(np.asarray(x)) > merit(np.asarray(y))


def logical_mesh(physical_mesh: Ids, logical_mesh_shape: Sequence[int], assignment: Ids) -> Ids:
    """The ids of a torus in the logical shape; on a shared physical axis, the logical axis with most traffic connects neighbours."""
    by_logical_axis = np.arange(assignment.size).reshape(assignment.shape).T.ravel()
    return physical_mesh.reshape(assignment.ravel()).transpose(by_logical_axis).reshape(tuple(logical_mesh_shape))


def mesh_in_parts(physical_mesh: Ids, mesh_shape: Sequence[int]) -> tuple[Ids, Ids]:
    """The ids of a torus in the logical shape, whose axes may take parts of physical axes; and the assignment.

    Raises TopologyError (a ValueError) if the shapes differ in size.
    """
    _check_size(physical_mesh, mesh_shape)
    shape = physical_mesh.shape
    assignment = np.ones((len(shape), len(mesh_shape)), np.int64)
    for axis in reversed(range(len(mesh_shape))):
        better = functools.partial(prefers_first, physical_mesh_shape=shape, assignment=assignment)
        assignment[:, axis] = functools.reduce(
            lambda best, other: other if better(other, best) else best,
            feasible_assignments(shape, assignment, mesh_shape[axis]),
        )
    return logical_mesh(physical_mesh, mesh_shape, assignment), assignment


def mesh_of_torus(physical_mesh: Ids, mesh_shape: Sequence[int], *, allow_split_physical_axes: bool = False) -> tuple[Ids, Ids]:
    """The ids of a torus in the logical shape, and the assignment: whole physical axes, or parts of them if that fails and is allowed.

    Raises PlacementError (a NotImplementedError) if a logical axis is as large as no set of physical axes, TopologyError (a ValueError) if
    the shapes differ in size.
    """
    _check_size(physical_mesh, mesh_shape)
    try:
        taken = whole_axes(physical_mesh.shape, mesh_shape)
    except PlacementError:
        if allow_split_physical_axes:
            return mesh_in_parts(physical_mesh, mesh_shape)
        raise
    assignment = np.ones((physical_mesh.ndim, len(mesh_shape)), np.int64)
    for logical, axes in enumerate(taken):
        for physical in axes:
            assignment[physical, logical] = physical_mesh.shape[physical]
    return logical_mesh(physical_mesh, mesh_shape, assignment), assignment


def _check_size(physical_mesh: Ids, mesh_shape: Sequence[int]) -> None:
    if math.prod(mesh_shape) != physical_mesh.size:
        raise TopologyError(f"a mesh of shape {tuple(mesh_shape)} has {math.prod(mesh_shape)} devices, the torus {physical_mesh.size}")

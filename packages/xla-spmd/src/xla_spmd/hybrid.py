"""Meshes whose axes follow the hardware: inner axes between the chips of a slice, outer axes between slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xla_core.abi.job import device_attributes
from xla_spmd.errors import MeshError, PlacementError, TopologyError
from xla_spmd.mesh import Mesh
from xla_spmd.op_sharding import Ids

Shape = tuple[int, ...]
Assignment = list[tuple[int, ...]]  # for each logical axis, the physical axes that it takes


class HybridMesh(Mesh):
    """A mesh of shape `ici_mesh_shape` in each slice, times `dcn_mesh_shape` over the slices (one slice unless given).

    Axes go from least to most traffic. Raises MeshError (an AssertionError) if the shapes differ in length or make no mesh,
    TopologyError (a ValueError) if the hardware has other slices or devices than the shapes say.
    """

    def __init__(
        self, ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int] | None = None, axis_names: Sequence[str] | None = None
    ) -> None:
        inner = tuple(ici_mesh_shape)
        outer = (1,) * len(inner) if dcn_mesh_shape is None else tuple(dcn_mesh_shape)
        if len(inner) != len(outer) or min(inner + outer, default=0) < 1:
            raise MeshError(f"ici_mesh_shape and dcn_mesh_shape have an entry of at least 1 for each axis, got {inner} and {outer}")
        # By number: as texts, TPU:10 comes before TPU:2.
        self._attributes = sorted(device_attributes(), key=_device_id)
        in_slices = all("slice_index" in attributes for attributes in self._attributes)
        if in_slices and math.prod(outer) == 1:
            raise TopologyError(f"the devices are in slices: give dcn_mesh_shape, how many along each axis; ici_mesh_shape is {inner}")
        if not in_slices and math.prod(outer) > 1:
            raise TopologyError(f"dcn_mesh_shape {outer} asks for {math.prod(outer)} slices, and these devices are not in slices")
        ids = self._create_hybrid_device_mesh(inner, outer) if in_slices else self._create_device_mesh(inner)
        super().__init__(ids.ravel(), [a * b for a, b in zip(inner, outer, strict=True)], axis_names)

    def _get_physical_tpu_mesh(self, devices: Sequence[int]) -> Ids:
        """The ids of one slice's devices, arranged by their coordinates; a last axis for the cores where chips have several.

        Raises TopologyError if they do not fill a box.
        """
        coordinates = np.array([_coordinates(self._attributes[device]) for device in devices], np.int64)
        coordinates = coordinates[:, :-1] if not coordinates[:, -1].any() else coordinates
        coordinates = coordinates - coordinates.min(axis=0)  # a subset of a slice need not start at its corner
        physical = np.full(coordinates.max(axis=0) + 1, -1)
        physical[tuple(coordinates.T)] = devices
        if physical.size != len(devices) or (physical < 0).any():
            raise TopologyError(
                f"{len(devices)} devices do not fill a box of {physical.shape} coordinates: use Mesh, with an order of yours"
            )
        return physical

    def _create_device_mesh_for_nd_torus(self, physical_mesh: Ids, mesh_shape: Sequence[int]) -> tuple[Ids, Assignment]:
        """The ids of one slice in the logical shape, and which physical axes each logical axis takes.

        Raises PlacementError (a NotImplementedError) if no set of physical axes has the size of a logical axis, TopologyError if the
        shapes differ in size.
        """
        _check_size(mesh_shape, physical_mesh.size)
        assignment = whole_axes(physical_mesh.shape, mesh_shape)
        return _transposed(physical_mesh, assignment).reshape(mesh_shape), assignment

    def _create_device_mesh(self, mesh_shape: Sequence[int], devices: Sequence[int] | None = None) -> Ids:
        """The ids of one slice's devices (all, unless given) in the logical shape. Raises TopologyError if there are more or fewer."""
        ids = range(len(self._attributes)) if devices is None else devices
        _check_size(mesh_shape, len(ids))
        if any(self._attributes[device].get("coords") is None for device in ids):
            return np.array(sorted(ids), np.int64).reshape(mesh_shape)
        physical = self._get_physical_tpu_mesh(ids)
        try:
            return self._create_device_mesh_for_nd_torus(physical, mesh_shape)[0]
        except PlacementError:
            return _in_prime_axes(physical, mesh_shape)

    def _create_hybrid_device_mesh(self, ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int]) -> Ids:
        """The ids of all slices, one block for each. Raises TopologyError for more or fewer slices, or devices in one of them."""
        slices: dict[int, list[int]] = {}
        for device, attributes in enumerate(self._attributes):
            slices.setdefault(attributes.get("slice_index", 0), []).append(device)
        if len(slices) != math.prod(dcn_mesh_shape):
            raise TopologyError(
                f"dcn_mesh_shape {tuple(dcn_mesh_shape)} asks for {math.prod(dcn_mesh_shape)} slices, the hardware has {len(slices)}"
            )
        blocks = np.stack([self._create_device_mesh(ici_mesh_shape, slices[index]) for index in sorted(slices)])
        axes = len(ici_mesh_shape)
        each_outer_before_its_inner = [axis for pair in zip(range(axes), range(axes, 2 * axes), strict=True) for axis in pair]
        interleaved = blocks.reshape(*dcn_mesh_shape, *ici_mesh_shape).transpose(each_outer_before_its_inner)
        return interleaved.reshape([outer * inner for outer, inner in zip(dcn_mesh_shape, ici_mesh_shape, strict=True)])


def _device_id(attributes: Mapping[str, Any]) -> int:
    name = str(attributes["name"])
    prefix, _, ordinal = name.rpartition(":")
    if not prefix or not ordinal.isdecimal():
        raise TopologyError(f"a device's name ends with its number, such as TPU:3, got {name!r}")
    return int(ordinal)


def _coordinates(attributes: Mapping[str, Any]) -> list[int]:
    return [*attributes["coords"], attributes.get("core_on_chip", 0)]


def _check_size(mesh_shape: Sequence[int], count: int) -> None:
    if math.prod(mesh_shape) != count:
        raise TopologyError(f"a mesh of shape {tuple(mesh_shape)} has {math.prod(mesh_shape)} devices, a slice of the hardware {count}")


def whole_axes(physical: Sequence[int], mesh_shape: Sequence[int]) -> Assignment:
    """Give each logical axis, from last to first, the first set of free physical axes of its size: three axes before two before one."""
    free = set(range(len(physical)))
    assignment: Assignment = [() for _ in mesh_shape]

    def candidates(size: int) -> Iterator[tuple[int, ...]]:
        sets = itertools.chain.from_iterable(itertools.combinations(sorted(free), count) for count in (3, 2, 1))
        return (axes for axes in sets if math.prod(physical[axis] for axis in axes) == size)

    for index in reversed(range(len(mesh_shape))):
        assignment[index] = next(candidates(mesh_shape[index]), ())
        if not assignment[index] and mesh_shape[index] > 1:
            sizes = [physical[axis] for axis in sorted(free)]
            raise PlacementError(
                f"axis {index} of mesh shape {tuple(mesh_shape)} is as large as no set of the physical axes that are left, of sizes {sizes}"
                f" of {tuple(physical)}: choose a shape whose axes are products of whole physical axes"
            )
        free -= set(assignment[index])
    return assignment


def _transposed(physical: Ids, assignment: Assignment) -> Ids:
    """Physical axes in the order of the logical axes that take them; those of size 1 that none took come last."""
    taken = [axis for axes in assignment for axis in axes]
    return physical.transpose(taken + [axis for axis in range(physical.ndim) if axis not in taken])


def _in_prime_axes(physical: Ids, mesh_shape: Sequence[int]) -> Ids:
    """Arrange the ids in the logical shape: logical axes take prime factors of physical axes, from last to first, neighbours first.

    Every physical axis is split into axes of prime sizes. As both shapes have one product, each logical axis finds its primes.
    """
    splits = [list(primes(size)) for size in physical.shape]
    sizes = [prime for split in splits for prime in split]
    ends = list(itertools.accumulate(map(len, splits)))
    free = [axis for end, split in zip(ends, splits, strict=True) for axis in reversed(range(end - len(split), end))]
    assignment: Assignment = [() for _ in mesh_shape]
    for index in reversed(range(len(mesh_shape))):
        remaining, taken = mesh_shape[index], []
        for axis in free:
            if remaining % sizes[axis] == 0:
                remaining //= sizes[axis]
                taken.append(axis)
        free = [axis for axis in free if axis not in taken]
        assignment[index] = tuple(sorted(taken))
    return _transposed(physical.reshape(sizes), assignment).reshape(mesh_shape)


def primes(value: int) -> Iterator[int]:
    """The prime factors of a number, ascending."""
    factor = 2
    while value > 1:
        while value % factor == 0:
            yield factor
            value //= factor
        factor += 1

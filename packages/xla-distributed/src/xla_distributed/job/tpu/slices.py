"""The slices of TPUs that Google Cloud offers by name: how their chips lie, and how hosts share them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class MeshShape(NamedTuple):
    """How many chips or processes lie along each axis of a slice."""

    x: int
    y: int
    z: int

    @classmethod
    def from_string(cls, mesh: str) -> MeshShape:
        """The shape that a text such as `2,2,1` says. Raises ValueError for another."""
        sizes = mesh.split(",")
        if len(sizes) != 3 or not all(size.strip().isdecimal() and int(size) for size in sizes):
            raise ValueError(f"{mesh!r} is no shape of a TPU mesh: three positive integers are expected, as in 2,2,1")
        return cls(*map(int, sizes))

    @property
    def size(self) -> int:
        """Chips or processes in all."""
        return math.prod(self)

    @property
    def text(self) -> str:
        """As in environment variables: `2,2,1`."""
        return ",".join(map(str, self))


@dataclass(frozen=True, slots=True)
class SliceBounds:
    """A slice as a mesh of processes, each with a mesh of chips."""

    processes: MeshShape
    chips: MeshShape

    def by_chip(self) -> MeshShape:
        """The mesh of all chips."""
        return MeshShape(*(process_count * chip_count for process_count, chip_count in zip(self.processes, self.chips, strict=True)))


# Chips along each axis, by the number in a slice's name. For v2 to v5p that counts cores, two for each chip; for v5e and v6e chips.
_V2 = {8: (2, 2, 1), 32: (4, 4, 1), 128: (8, 8, 1), 256: (8, 16, 1), 512: (16, 16, 1)}
_V3 = {**_V2, 64: (4, 8, 1), 1024: (16, 32, 1), 2048: (32, 32, 1)}
_V4 = {
    8: (2, 2, 1),
    16: (2, 2, 2),
    32: (2, 2, 4),
    64: (2, 4, 4),
    128: (4, 4, 4),
    256: (4, 4, 8),
    512: (4, 8, 8),
    1024: (8, 8, 8),
    1536: (8, 8, 12),
    2048: (8, 8, 16),
    4096: (8, 16, 16),
}
_V5P = {**_V4, 6144: (12, 16, 16), 8192: (16, 16, 16), 12288: (16, 16, 24)}
_FLAT = {
    1: (1, 1, 1),
    4: (2, 2, 1),
    8: (2, 4, 1),
    16: (4, 4, 1),
    32: (4, 8, 1),
    64: (8, 8, 1),
    128: (8, 16, 1),
    256: (16, 16, 1),
}
_SIZES = {"v2": _V2, "v3": _V3, "v4": _V4, "v5p": _V5P, "v5litepod": _FLAT, "v6e": _FLAT}
_ON_ONE_HOST = 8  # the most chips that a host has; slices of more have hosts of four


def _bounds(chips: tuple[int, int, int]) -> SliceBounds:
    mesh = MeshShape(*chips)
    host = mesh if mesh.size <= _ON_ONE_HOST and mesh.z == 1 else MeshShape(2, 2, 1)
    return SliceBounds(MeshShape(*(slice_size // host_size for slice_size, host_size in zip(mesh, host, strict=True))), host)


KNOWN_SLICES = {f"{generation}-{number}": _bounds(chips) for generation, sizes in _SIZES.items() for number, chips in sizes.items()}
ACCELERATOR_TYPE_TO_HOST_BOUNDS = {name: bounds.processes.text for name, bounds in KNOWN_SLICES.items()}

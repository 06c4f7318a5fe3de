"""A sharding as a value: which devices hold which tile of a tensor, its text, and its canonical form."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xla_spmd.errors import ShardingError

Ids = npt.NDArray[np.int64]


class ShardingType(IntEnum):
    """The kinds of shardings. TILED: one tile each; PARTIAL: one tile per group of devices that are replicas of each other."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


_KINDS = (ShardingType.REPLICATED, ShardingType.MAXIMAL, ShardingType.TILED, ShardingType.MANUAL, ShardingType.PARTIAL)


@dataclass(frozen=True, eq=False, repr=False)
class OpSharding:
    """A sharding, as the four values that `Mesh._get_op_sharding_args` gives (nested lists or arrays of ids).

    tile_assignment: the device of each tile, one axis per tensor dimension (TILED); otherwise it says nothing more.
    group_assignment, replication_groups: the group of each tile, one axis per tensor dimension, and the devices of each group (PARTIAL).
    Equal are shardings of one canonical form: PARTIAL with groups of one device is TILED.
    Raises ShardingError for values that contradict each other and for the types TUPLE and UNKNOWN.
    """

    tile_assignment: Ids
    group_assignment: Ids
    replication_groups: Ids
    type: ShardingType

    def __post_init__(self) -> None:
        for name in ("tile_assignment", "group_assignment", "replication_groups"):
            object.__setattr__(self, name, _frozen(getattr(self, name), name))
        if self.type not in list(_KINDS):
            raise ShardingError(f"a sharding is one of {', '.join(kind.name for kind in _KINDS)}, got {self.type!r}")
        object.__setattr__(self, "type", ShardingType(self.type))
        if self.type is ShardingType.PARTIAL:
            self._check_groups()
        if self.type is ShardingType.MAXIMAL and self.tile_assignment.ravel().tolist() != [0]:
            raise ShardingError(f"a maximal sharding is for device 0 as the only one, got {self.tile_assignment.tolist()}")
        ids = self.tiles
        if ids.size != len(np.unique(ids)) or (ids.size and ids.min() < 0) or (self.type is ShardingType.TILED and not ids.size):
            raise ShardingError(f"a sharding names each of its devices once, by ids from 0 on, got {ids.ravel().tolist()}")

    def _check_groups(self) -> None:
        groups = self.replication_groups
        indices = np.sort(self.group_assignment.ravel())
        if groups.ndim != 2 or not groups.size or not np.array_equal(indices, np.arange(len(groups))):
            raise ShardingError(
                f"a partial sharding has groups of equal size, each assigned to one tile, got groups {groups.tolist()}"
                f" and their assignment {self.group_assignment.tolist()}"
            )

    @cached_property
    def tiles(self) -> Ids:
        """The devices of each tile: one axis per tensor dimension, then the replicas. Empty where the type alone says it all."""
        if self.type is ShardingType.TILED:
            return self.tile_assignment[..., None]
        if self.type is ShardingType.PARTIAL:
            return _frozen(self.replication_groups[self.group_assignment], "tiles")
        return NO_IDS

    @cached_property
    def effective_type(self) -> ShardingType:
        """The type of the canonical form: REPLICATED, TILED, PARTIAL or MANUAL."""
        if self.type is ShardingType.MANUAL:
            return self.type
        # NO_IDS has one axis, so that its `dims` are () and their product 1: MAXIMAL, of the only device, is replicated.
        if math.prod(self.dims) == 1:
            return ShardingType.REPLICATED
        return ShardingType.TILED if self.tiles.shape[-1] == 1 else ShardingType.PARTIAL

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Number of tiles along each tensor dimension; () for a type that fits any rank."""
        return tuple(self.tiles.shape[:-1])

    @cached_property
    def text(self) -> str:
        """HLO's text of the sharding, with the ids spelled out, such as `{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}`."""
        if self.effective_type in (ShardingType.MANUAL, ShardingType.REPLICATED):
            return f"{{{self.effective_type.name.lower()}}}"
        partial = self.effective_type is ShardingType.PARTIAL
        dims = ",".join(map(str, self.tiles.shape if partial else self.dims))
        ids = ",".join(map(str, self.tiles.ravel().tolist()))
        return f"{{devices=[{dims}]{ids}{_REPLICAS_LAST if partial else ''}}}"

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        kind = self.effective_type
        return (kind,) if kind in (ShardingType.MANUAL, ShardingType.REPLICATED) else (kind, self.tiles.shape, self.tiles.tobytes())

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, OpSharding) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"OpSharding({self.text!r})"


def _frozen(ids: Any, field: str) -> Ids:
    """A read-only copy of the ids. Raises ShardingError if the ids are not a regular array of integers."""
    try:
        array = np.array(ids)
    except ValueError as error:
        raise ShardingError(f"{field}: lists of one length each, got {ids}") from error
    if array.size and array.dtype.kind not in "iu":
        raise ShardingError(f"{field} holds integers, got {ids}")
    array = array.astype(np.int64, copy=False)
    array.setflags(write=False)
    return array


NO_IDS = _frozen((), "nothing")
REPLICATED = OpSharding(NO_IDS, NO_IDS, NO_IDS, ShardingType.REPLICATED)
MANUAL = OpSharding(NO_IDS, NO_IDS, NO_IDS, ShardingType.MANUAL)

_REPLICAS_LAST = " last_tile_dim_replicate"
_NUMBERS = r"\d+(?:,\d+)*"
# Ids spelled out, or as XLA abbreviates them: a range in this shape, perhaps transposed.
_TILED = re.compile(
    rf"\{{devices=\[({_NUMBERS})\](?:({_NUMBERS})|<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?)({_REPLICAS_LAST})?\}}",
)


def parse(text: str) -> OpSharding:
    """The sharding behind HLO's text of one tensor's sharding. Raises ShardingError if it is not one, or not of a kind used here."""
    for sharding in (REPLICATED, MANUAL):
        if text == sharding.text:
            return sharding
    match = _TILED.fullmatch(text)
    if match is None:
        raise ShardingError(f"this is no text of a sharding such as {{replicated}} or {{devices=[2,1]0,1}}: {text!r}")
    dims, spelled, source, order, partial = match.groups()
    try:
        ids = np.array(_numbers(spelled)) if spelled else np.arange(math.prod(_numbers(source))).reshape(_numbers(source))
        grid = (ids.transpose(_numbers(order)) if order else ids).reshape(_numbers(dims))
    except ValueError as error:
        raise ShardingError(f"the devices do not fill the tiles of {text!r}: {error}") from error
    if not partial:
        return OpSharding(grid, NO_IDS, NO_IDS, ShardingType.TILED)
    groups = grid.reshape(-1, grid.shape[-1])
    return OpSharding(grid, np.arange(len(groups)).reshape(grid.shape[:-1]), groups, ShardingType.PARTIAL)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))

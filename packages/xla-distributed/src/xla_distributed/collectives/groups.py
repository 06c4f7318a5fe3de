"""Groups of replicas as users give them: lists of lists of ordinals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from xla_core.abi.collectives import check_groups
from xla_core.abi.job import is_spmd, ordinal, world_size
from xla_core.abi.process import client

ReplicaGroups = Sequence[Sequence[int]] | None


class Members(tuple[tuple[int, ...], ...]):
    """One group, whose collectives only its members issue: in a program of their own (`apart.py`)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """Disjoint groups of ordinals. `members` in line, `sizes` of each; all replicas in one group have neither.

    size: of the group that this replica is in; place: its position there; apart: its members, if the collective is theirs alone.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    place: int
    apart: tuple[int, ...] = ()


def groups_of(given: ReplicaGroups) -> Groups:
    """Check what a user gave; None and [] mean one group of all. In SPMD mode, numbers are those of devices, and `place` says nothing.

    Raises ValueError if an ordinal repeats or is out of range, or one is in no group: the same on all replicas.
    """
    if is_spmd():  # one program: its devices are meant, of which none is this process's
        count, mine = client().default_shardings[0].num_devices, 0
    else:
        count, mine = world_size(), ordinal()
    if isinstance(given, Members):
        members = given[0]
        return Groups((), (), len(members), members.index(mine), members)
    if not given:
        return _everyone(count, mine)
    listed = check_groups(given, count)
    members = tuple(member for group in listed for member in group)
    own = next(group for group in listed if mine in group)
    if members == tuple(range(count)) and len(listed) == 1:
        return _everyone(count, mine)
    return Groups(members, tuple(len(group) for group in listed), len(own), own.index(mine))


@cache
def _everyone(count: int, place: int) -> Groups:
    return Groups((), (), count, place)


def even_groups_of(given: ReplicaGroups, what: str) -> Groups:
    """As `groups_of`, of one size. Raises AssertionError if they are not."""
    groups = groups_of(given)
    if len(set(groups.sizes)) > 1:
        raise AssertionError(f"{what} needs groups of one size, got sizes {list(groups.sizes)}")
    return groups

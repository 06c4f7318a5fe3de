"""Groups of replicas as users give them: lists of lists of ordinals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ReplicaGroups = Sequence[Sequence[int]] | None
"""Lists of ordinals; None or an empty list is one group of all."""


class Members(tuple[tuple[int, ...], ...]):
    """One group, given alone: only its members issue a collective, of which other replicas know nothing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Groups:
    """Disjoint groups of ordinals, all in one line: `members`, and `sizes` of each group; both empty for one group of all replicas.

    size: of the group that this replica is in; position: of this replica in it; apart: the members, if the collective is theirs alone.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    position: int
    apart: tuple[int, ...] = ()

"""Collectives among replicas: reductions, groups, and the token that keeps collectives in order.

    >>> from xla_core.abi.collectives import ReduceOp, groups_of
    >>> ReduceOp("sum").check_dtypes([]), groups_of([[0]]).size
    (None, 1)
    >>> groups_of([[0, 1]])
    Traceback (most recent call last):
    ...
    ValueError: groups are lists of ordinals from 0 to 0, each named at most once, got [[0, 1]]

* `ReduceOp` has the reductions of `xm.all_reduce` and its kin.
* `groups_of` checks the `ReplicaGroups` that a user gave, and gives `Groups`, with this replica's position in its own; `even_groups_of`
  wants groups of one size. `Members` is one group given alone, whose collectives only its members issue.
* `get_all_reduce_token` is the token of a device's last collective, which the next one takes, and the context that keeps it.
* `note_replica_wait` tells those who hear of events (`events.subscribe`) that a thread waited for the other replicas before it launched a
  program that they all run, by a `ReplicaWaitEvent`.

Guarantees: a check only looks and records nothing, and raises the same on all replicas.
"""

from __future__ import annotations

from xla_core.api.collective_arguments import even_groups_of, groups_of
from xla_core.api.collectives import get_all_reduce_token
from xla_core.api.reductions import ReduceOp
from xla_core.api.replica_groups import Groups, Members, ReplicaGroups
from xla_core.base.metrics import ReplicaWaitEvent
from xla_core.engine.runtime.timing import note_replica_wait

__all__ = [
    "Groups",
    "Members",
    "ReduceOp",
    "ReplicaGroups",
    "ReplicaWaitEvent",
    "even_groups_of",
    "get_all_reduce_token",
    "groups_of",
    "note_replica_wait",
]

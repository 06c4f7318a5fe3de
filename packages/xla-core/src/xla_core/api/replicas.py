"""The place of this process and this thread among the replicas of a job."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from xla_core.api.plugins import implementations
from xla_core.base import config
from xla_core.engine.runtime.topology import Topology, topology


def place() -> Topology:
    """The place of this process in its job: as set by a launcher or a plugin, else by torchrun's variables, else alone."""
    implementations()  # a plugin may know what to put into the variables
    explicit = topology()
    count, local_count = config.WORLD_SIZE.get(), config.LOCAL_WORLD_SIZE.get()
    if explicit != Topology(spmd=explicit.spmd) or count is None or count == 1:
        return explicit
    rank, local_rank = config.RANK.get() or 0, config.LOCAL_RANK.get() or 0
    return Topology(rank, count, local_rank, local_count or local_rank + 1, replicas=True, spmd=explicit.spmd)


class _Membership(threading.local):
    """The replica set that this thread was put into; None: whatever the process's place says."""

    devices: tuple[str, ...] | None = None


_membership = _Membership()


def join(names: Sequence[str] | None) -> None:
    """Put this thread into the replica set of these real devices; none: a replica on its own.

    A single device is no set of its own in a job of several processes, where each sees only one: the thread is the replica that its
    process is.
    """
    only = len(names or ()) == 1 and place().replicas
    _membership.devices = None if only else tuple(names or ())


def joined() -> tuple[str, ...]:
    """The replica set that this thread was put into."""
    return _membership.devices or ()


def is_replica() -> bool:
    """Whether this thread runs as one replica of several."""
    if config.USE_SPMD.get():
        return False
    if _membership.devices is not None:
        return len(_membership.devices) > 1
    return place().replicas

"""The place of this process in its job, as a launcher told it; one process on its own unless it did. `api/job.py` takes and gives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """A process's place in a job.

    process_index, process_count: over the whole job; local_rank, local_count: on this host.
    replicas: processes of the job are replicas of one program (a multi-replica launch).
    Raises ValueError for an index outside its count.
    """

    process_index: int = 0
    process_count: int = 1
    local_rank: int = 0
    local_count: int = 1
    replicas: bool = False

    def __post_init__(self) -> None:
        for index, count, what in (
            (self.process_index, self.process_count, "process"),
            (self.local_rank, self.local_count, "local process"),
        ):
            if not 0 <= index < count:
                raise ValueError(f"{what} {index} is not one of {count}")


_ALONE = Topology()
_current = _ALONE


def topology() -> Topology:
    """This process's place, as told; the environment is not asked."""
    return _current


def set_topology(place: Topology | None) -> Topology:
    """Tell the core where this process stands (None: alone); gives the previous place."""
    global _current
    previous, _current = _current, place or _ALONE
    return previous

"""The place of this process in its job, as a launcher set it; by default one process on its own. `api/job.py` sets and reads it."""

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
        for index, count, name in (
            (self.process_index, self.process_count, "process"),
            (self.local_rank, self.local_count, "local process"),
        ):
            if not 0 <= index < count:
                raise ValueError(f"{name} {index} is not one of {count}")


_ALONE = Topology()
_current = _ALONE


def topology() -> Topology:
    """This process's place in its job, as it was set; reads no environment variables."""
    return _current


def set_topology(current: Topology | None) -> Topology:
    """Set this process's place in its job (None: alone). Returns the previous one."""
    global _current
    previous, _current = _current, current or _ALONE
    return previous

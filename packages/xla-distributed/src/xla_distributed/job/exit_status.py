"""The exit status of processes of a job, and its text for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# How many programs with collectives a process has run, for each group of replicas that ran them together, by `group_key`.
Runs = Mapping[str, int]
# How many a group has launched, and a digest of these in line.
Position = tuple[int, str]


def group_key(members: Iterable[int]) -> str:
    """The key of a group of replicas in a job, from its ordinals in order; no members stand for all replicas."""
    return ",".join(map(str, members))


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The exit of one process. reason: what went wrong, "" if nothing did; runs: programs with collectives so far, None if unknown.

    positions: what was launched, by `group_key`.
    """

    reason: str
    runs: Runs | None = None
    positions: Mapping[str, Position] = field(default_factory=dict)


def exit_status(reason: Any, runs: Any, positions: Any) -> ExitStatus:
    """An exit from the parts of a message. Raises TypeError, ValueError for anything else."""
    counts = None if runs is None else {str(key): int(count) for key, count in dict(runs).items()}
    return ExitStatus(str(reason), counts, {str(key): (int(count), str(digest)) for key, (count, digest) in dict(positions).items()})


def describe_exits(exits: Mapping[int, ExitStatus]) -> str:
    """The replicas that have exited and why, in one line, the first first."""
    return ", ".join(
        f"replica {rank} {f'was lost: {status.reason}' if status.reason else 'has left the job'}" for rank, status in exits.items()
    )


def describe_error(error: BaseException) -> str:
    """The error with which a process ends, in words for the others."""
    text = str(error)[:500]
    return f"it failed with {type(error).__name__}{f': {text}' if text else ''}"

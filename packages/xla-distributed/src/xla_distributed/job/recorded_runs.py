"""Runs of programs with collectives as the flight recorder keeps them, their history as a digest, and both in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from xla_distributed.job.exit_status import group_key

_SHOWN = 6  # collectives of each side in an error
_DIGEST_SIZE = 16
START = bytes(_DIGEST_SIZE)  # the history of a group that has run nothing


@dataclass(frozen=True)
class ProgramCollectives:
    """The collectives of a program in order: a text of what all replicas must share, and lines for people.

    members: the ordinals of the replicas that run it; none for all.
    """

    text: str
    lines: tuple[str, ...]
    members: tuple[int, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that two programs share if their collectives are the same."""
        return _digest(self.text.encode())

    @cached_property
    def digests(self) -> list[str]:
        """A digest of each collective."""
        return [_digest(line.encode()).hex() for line in self.text.split("\n")]

    @cached_property
    def group(self) -> str:
        """The key of the group that runs it."""
        return group_key(self.members)

    @cached_property
    def group_digest(self) -> bytes:
        """The key of the group in 16 bytes."""
        return group_digest(self.group)

    def run_name(self, number: int) -> str:
        """The name of a run of such a program, the same on all that run it, and no other's."""
        return f"run {number} of {self.group}" if self.members else f"run {number}"


@dataclass(slots=True, eq=False)
class RecordedRun:
    """An execution of a program with collectives.

    history: digest of what its group has launched up to it, with it; start: when it was to begin; token: is ready when it is done, None
    while it is being launched, or compiled; failed: it was not launched, whatever the reason.
    """

    number: int
    collectives: ProgramCollectives
    history: bytes
    start: float
    token: jax.Array | None = None
    failed: bool = False

    @property
    def name(self) -> str:
        """The name of the run in the job."""
        return self.collectives.run_name(self.number)

    @property
    def over(self) -> bool:
        """Whether it has run, or will not."""
        return self.failed or (self.token is not None and self.token.is_ready())  # type: ignore[attr-defined]

    def record(self) -> list[Any]:
        """What the other replicas need to find out where theirs differ: number, digest, first collective."""
        more = f" and {len(self.collectives.lines) - 1} more" if len(self.collectives.lines) > 1 else ""
        return [self.number, self.collectives.digest.hex(), self.collectives.lines[0] + more]


def history_after(history: bytes, collectives: ProgramCollectives) -> bytes:
    """The digest of a history once these collectives are added."""
    return _digest(history + collectives.digest)


def group_digest(key: str) -> bytes:
    """The key of a group in 16 bytes."""
    return _digest(key.encode())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).digest()


def run_shown(rank: int, run: RecordedRun, start: int = 0) -> str:
    """A run of a replica in words."""
    among = f" among {list(run.collectives.members)}" if run.collectives.members else ""
    gave_up = " no more, since that failed" if run.failed else ""
    return f"replica {rank} runs{among}{gave_up}{lines_shown(run.collectives.lines, start)}"


def runs_shown(rank: int, runs: Iterable[RecordedRun]) -> str:
    """The last of some runs of a replica in words, one a line."""
    last = [run.record() for run in runs][-_SHOWN:]
    return "\n".join([f"replica {rank} ran", *(f"  run {number}: {line}" for number, _, line in last)])


def lines_shown(lines: tuple[str, ...], start: int = 0) -> str:
    """Some collectives, one a line, from one on."""
    shown = lines[start : start + _SHOWN]
    more = len(lines) - start - len(shown)
    numbered = [f"  {start + index + 1}. {line}" for index, line in enumerate(shown)]
    return "\n".join(["", *numbered, *([f"  and {more} more"] if more > 0 else [])])


def first_difference(records: Mapping[int, Sequence[Sequence[Any]]]) -> str:
    """Where replicas have launched different programs, in words, from the `RecordedRun.record` of their last runs, by rank."""
    by_rank = {rank: {int(number): (digest, line) for number, digest, line in runs} for rank, runs in records.items()}
    shared = sorted(set.intersection(*(set(runs) for runs in by_rank.values())))
    number = next((number for number in shared if len({runs[number][0] for runs in by_rank.values()}) > 1), None)
    if number is None:
        return "they differ in runs that are too long ago to be named"
    return "\n".join(f"run {number} of replica {rank} was {runs[number][1]}" for rank, runs in by_rank.items())

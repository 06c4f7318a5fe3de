"""Departures of processes from a job, as the others are told and say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Departure:
    """One process's. why: what went wrong, "" if nothing did; runs: how many programs with collectives it has run, None if unknown."""

    why: str
    runs: int | None = None


def described(departures: Mapping[int, Departure]) -> str:
    """Describe who has left and how, the first first."""
    return ", ".join(
        f"replica {rank} {f'was lost: {departure.why}' if departure.why else 'has left the job'}" for rank, departure in departures.items()
    )


def failure(error: BaseException) -> str:
    """Describe the error with which a process ends, for the others."""
    text = str(error)[:500]
    return f"it failed with {type(error).__name__}{f': {text}' if text else ''}"

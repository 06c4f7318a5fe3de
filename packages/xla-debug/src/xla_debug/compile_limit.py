"""Limit the compilations of a block of code in a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xla_debug.core import events, tensors
from xla_debug.recording.program_differences import KnownPrograms
from xla_debug.run_report.schema import ProgramDifference


class TooManyCompilesError(AssertionError):
    """More programs were compiled than a test allows; the text explains each."""


@contextmanager
def assert_max_compiles(limit: int) -> Iterator[list[ProgramDifference]]:
    """Let the block compile at most `limit` programs; gives a list that gets the reason of each compilation as it happens.

    Operations that are pending before the block run first, so that they do not count.
    Raises TooManyCompilesError when the block ends, unless the block itself raised, and ValueError for a negative limit.
    """
    if limit < 0:
        raise ValueError(f"the limit of compilations is {limit}, must be at least 0")
    tensors.sync()
    known_programs = KnownPrograms()
    compiles: list[tuple[events.CompileEvent, ProgramDifference]] = []
    reasons: list[ProgramDifference] = []

    def compiled(event: events.CompileEvent) -> None:
        reasons.append(known_programs.explain(event))
        compiles.append((event, reasons[-1]))

    end = events.subscribe(compiled, events.CompileEvent)
    try:
        yield reasons
    finally:
        end()
    if len(compiles) > limit:
        rows = [_row(position, event, reason) for position, (event, reason) in enumerate(compiles, 1)]
        raise TooManyCompilesError("\n".join([f"{len(compiles)} programs were compiled, at most {limit} were allowed:", *rows]))


def _row(position: int, event: events.CompileEvent, reason: ProgramDifference) -> str:
    line = f" ({reason.line})" if reason.line and reason.line != event.line else ""
    advice = f"\n     {reason.advice}" if reason.advice else ""
    program = f"{event.num_nodes} operations, {event.duration_ns * 1e-9:.2f} s, at {event.line or 'no line'}"
    return f"  {position}. {program}: {reason.text}{line}{advice}"

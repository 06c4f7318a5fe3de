"""Explain why a program was compiled: how it differs from the nearest program that was compiled before."""

from __future__ import annotations

import threading
from collections import deque

from xla_debug.core import differences, events
from xla_debug.run_report.schema import Change, ProgramDifference

_COMPARED = 64
"""How many of the newest programs a new one is compared with."""


class KnownPrograms:
    """The programs that a process has compiled; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: deque[differences.KnownProgram] = deque(maxlen=_COMPARED)

    def explain(self, event: events.CompileEvent) -> ProgramDifference:
        """Compare the program of `event` with the nearest known one, and add it to the known ones. Keeps no graph."""
        program = differences.KnownProgram.of(event.graph, event.constants, event.line, event.graph_hash)
        with self._lock:
            difference = differences.explained(program, tuple(self._programs))
            self._programs.appendleft(program)
        nearest = None if difference.nearest is None else difference.nearest.name
        return ProgramDifference(Change(difference.change.value), difference.text, difference.line, difference.advice, nearest)

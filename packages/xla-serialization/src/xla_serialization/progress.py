"""How far a save or a load is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, after each tensor."""


class Meter:
    """Adds up what is done, and tells."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._done, self._total = 0, total

    def add(self, nbytes: int) -> None:
        """So much more is done."""
        self._done += nbytes
        self._progress(self._done, self._total)


def nobody(done: int, total: int) -> None:
    """For those who do not ask."""

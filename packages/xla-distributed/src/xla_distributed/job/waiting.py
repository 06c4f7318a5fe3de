"""Waiting for the other processes of a job while it comes about: notices on stderr that say for whom, where, and for how long yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)

# The first notice comes after this part of the time in which the others may come, and after this many seconds at the latest.
_FIRST_PART, _FIRST_SECONDS = 1 / 20, 30.0


class Wait:
    """A wait of at most `timeout` seconds, from now, at the place `where`. Each notice comes after twice the time of the one before."""

    def __init__(self, rank: int, where: str, timeout: float) -> None:
        self.timeout = timeout
        self._who = f"process {rank} waits at {where}"
        self._begin = time.monotonic()
        self._next = min(_FIRST_SECONDS, timeout * _FIRST_PART)

    def left(self) -> float:
        """Seconds until the time is over, none below 0."""
        return max(0.0, self._begin + self.timeout - time.monotonic())

    def until_notice(self) -> float:
        """Seconds until a notice is due, or the time is over."""
        return max(0.0, min(self.left(), self._begin + self._next - time.monotonic()))

    def notice(self, whom: Callable[[], str]) -> None:
        """Say for whom this process waits, if that is due. whom: asked only then."""
        waited = time.monotonic() - self._begin
        if waited < self._next:
            return
        self._next = waited * 2
        times = f"{waited:.0f} s so far, {self.left():.0f} s more until it gives up (XLA_COLLECTIVE_TIMEOUT_SECONDS)"
        _logger.warning("%s for %s: %s", self._who, whom(), times)

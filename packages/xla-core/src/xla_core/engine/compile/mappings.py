"""Memory mappings of the process: each compiled program of the CPU takes some, and a process that needs more than Linux allows ends."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

_TAKEN = 8
"""At most so many mappings are taken for each operation of a program (measured: 1 to 5), and for as many as `_LEAST` if it has fewer."""
_LEAST = 8
_SCARCE = 0.7
"""The share of the allowed mappings from which on programs are forgotten."""


def most_mappings() -> int | None:
    """How many mappings a process may have; None where there is no limit, or the system does not say."""
    file = Path("/proc/sys/vm/max_map_count")
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def count_mappings() -> int:
    """How many mappings this process has; reading them takes a microsecond for each."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


class Mappings:
    """Knows when mappings become scarce, and counts them only when they may be."""

    def __init__(self, most: int | None, count: Callable[[], int] = count_mappings) -> None:
        self._most = most
        self._count = count
        self._lock = threading.Lock()
        self._taken = self._room = 0
        self._warned = False

    def make_room(self, operations: int, forget: Callable[[], None]) -> None:
        """Called before a program of so many operations compiles; calls `forget`, which drops programs, if mappings are scarce."""
        if self._most is None:
            return
        with self._lock:
            self._taken += _TAKEN * max(operations, _LEAST)
            if 2 * self._taken < self._room:
                return
            if self._counted() > _SCARCE * self._most:
                forget()
                left = self._counted()
                if left > _SCARCE * self._most and not self._warned:
                    self._warned = True
                    warnings.warn(
                        f"this process has {left:,} memory mappings, though programs were forgotten, and Linux ends it at {self._most:,}: "
                        "raise vm.max_map_count with sysctl, or keep fewer captured steps",
                        RuntimeWarning,
                        stacklevel=2,
                    )

    def _counted(self) -> int:
        count = self._count()
        self._taken, self._room = 0, max((self._most or 0) - count, 0)
        return count


mappings = Mappings(most_mappings())

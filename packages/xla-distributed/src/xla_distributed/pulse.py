"""Whether a process of this host runs, as the kernel tells: a stopped one cannot say so, and a busy one may say nothing for long."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass


class Life(enum.Enum):
    """The states of a process."""

    RUNS = enum.auto()
    STOPPED = enum.auto()  # by a signal; one that a debugger holds counts as running
    ENDED = enum.auto()


@dataclass(frozen=True, slots=True)
class Pulse:
    """Of one process. begun: when it was started, since its number may be given to another one later."""

    pid: int
    begun: str

    def life(self) -> Life:
        """The state of the process now."""
        found = _stat(self.pid)
        if found is None or found[1] != self.begun or found[0] in "ZX":
            return Life.ENDED
        return Life.STOPPED if found[0] == "T" else Life.RUNS


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], fields[19]


def host() -> str:
    """A name that two processes share if each finds the other in /proc; "" where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def pulse_of(pid: int, its_host: str) -> Pulse | None:
    """The pulse of a process; None if it is not of this host, so that nothing can be said."""
    if not its_host or its_host != host():
        return None
    found = _stat(pid)
    return Pulse(pid, found[1] if found is not None else "")

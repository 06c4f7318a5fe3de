"""The state of a process of this host, from /proc: a stopped one sends no heartbeat that says so, and a busy one may send none for long."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass


class ProcessState(enum.Enum):
    """The states of a process."""

    RUNNING = enum.auto()
    STOPPED = enum.auto()  # by a signal; one that a debugger holds counts as running
    ENDED = enum.auto()


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process of this host. started: when it was, since its number may be given to another one later."""

    pid: int
    started: str

    def state(self) -> ProcessState:
        """The state of the process now."""
        stat = _stat(self.pid)
        if stat is None or stat[1] != self.started or stat[0] in "ZX":
            return ProcessState.ENDED
        return ProcessState.STOPPED if stat[0] == "T" else ProcessState.RUNNING


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], fields[19]


def host_id() -> str:
    """A name that two processes share if each finds the other in /proc; "" where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def local_process(pid: int, its_host: str) -> LocalProcess | None:
    """The process of this number; None if it is not of this host, so that nothing can be said."""
    if not its_host or its_host != host_id():
        return None
    stat = _stat(pid)
    return LocalProcess(pid, stat[1] if stat is not None else "")

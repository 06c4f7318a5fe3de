"""Append text to a file of each replica, or to a standard stream."""

from __future__ import annotations

import sys
import threading

from xla_debug.core import job

STDERR, STDOUT = "STDERR", "STDOUT"
_lock = threading.Lock()


def target_of_replica(target: str) -> str:
    """`target` as this replica writes to it: a file of several replicas gets the number of each."""
    return target if target in (STDERR, STDOUT) or job.world_size() == 1 else f"{target}.{job.ordinal()}"


def append(target: str, text: str) -> None:
    """Add `text` to a stream or a file, in one piece. Raises OSError if the file cannot be written."""
    with _lock:
        if target in (STDERR, STDOUT):
            print(text, end="", flush=True, file=sys.stderr if target == STDERR else sys.stdout)
            return
        with open(target, "a", encoding="utf-8") as file:
            file.write(text)

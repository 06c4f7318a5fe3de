"""Append text to this replica's file, or to a standard stream."""

from __future__ import annotations

import sys
import threading

from xla_debug.core import job

STDERR, STDOUT = "STDERR", "STDOUT"
_lock = threading.Lock()


def target_of_replica(target: str) -> str:
    """Give this replica's own target: with several replicas, a file's name gets the ordinal."""
    return target if target in (STDERR, STDOUT) or job.world_size() == 1 else f"{target}.{job.ordinal()}"


def append(target: str, text: str) -> None:
    """Append `text` to a stream or a file in one piece. Raises OSError if the file cannot be written."""
    with _lock:
        if target in (STDERR, STDOUT):
            print(text, end="", flush=True, file=sys.stderr if target == STDERR else sys.stdout)
            return
        with open(target, "a", encoding="utf-8") as file:
            file.write(text)

"""Shut a process down in which nothing can be raised, because its threads wait in XLA."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import NoReturn

from xla_distributed.errors import JobError


def exit_with_error(error: JobError) -> NoReturn:
    """Print an error with the place where the main thread is, as if it were raised there, and end the process at once."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = ["Traceback (most recent call last):\n", *traceback.format_stack(frame)] if frame is not None else []
    sys.stderr.write("".join([*stack, *traceback.format_exception_only(error)]))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(1)
